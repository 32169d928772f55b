"""Try two rules of an autoscaler on a day of long documents, in seconds: engines serve every request of it."""

from collections import deque
from collections.abc import Callable
from math import ceil, cos, pi

import numpy as np

from infercast import deploy
from infercast.forecast.system import system_of
from infercast.serve import Request
from infercast.serve.fleet.live import LiveSystem

DAY, START_UP, EVERY, TTFT = 86_400.0, 240.0, 30.0, 30.0  # Seconds; a replica loads its weights for four minutes
Rule = Callable[[int, int, int], int]  # Requests that wait and that run, and the replicas so far: how many it wants


def at_once(waiting: int, running: int, replicas: int) -> int:
    """A replica for every two requests."""
    return ceil((waiting + running) / 2)


RECENT: deque[int] = deque(maxlen=20)


def calmly(waiting: int, running: int, replicas: int) -> int:
    """The same, but no fewer than were wanted at any time of the last ten minutes."""
    RECENT.append(at_once(waiting, running, replicas))
    return max(RECENT)


class Replica:
    """One engine from its start to its end."""

    def __init__(self, started: float) -> None:
        self.live, self.started, self.ready = LiveSystem(SYSTEM.pools[0].engines), started, started + START_UP
        self.sent: dict[int, float] = {}  # When requests were sent that have no token yet
        self.num_done = 0

    @property
    def load(self) -> tuple[int, int]:
        """Requests that wait, and that run."""
        (engine,) = self.live.pools[0].engines
        running = len(engine.loop.scheduler.running)
        return self.live.num_requests - self.num_done - running, running

    def advance(self, now: float, latencies: list[float]) -> None:
        for emission in self.live.advance(now):
            for tokens in emission.tokens:
                if tokens.request in self.sent:
                    latencies.append(emission.time - self.sent.pop(tokens.request))
                self.num_done += tokens.is_last


def day(rule: Rule) -> tuple[float, int, np.ndarray]:
    """Hours of replicas, the most at once, and all times to the first token."""
    random, latencies, now, decided, hours, most = np.random.default_rng(0), list[float](), 0.0, 0.0, 0.0, 1
    fleet, ending = [Replica(-START_UP)], list[Replica]()
    while now < DAY:
        now += random.exponential(1 / PEAK)
        is_sent = random.random() < 0.1 + 0.9 * (0.5 - 0.5 * cos(2 * pi * now / DAY)) ** 4  # steep around noon
        while decided <= now:
            for replica in (*fleet, *ending):
                replica.advance(decided, latencies)
            loads = [replica.load for replica in fleet]
            wanted = max(1, rule(sum(load[0] for load in loads), sum(load[1] for load in loads), len(fleet)))
            fleet += [Replica(decided) for _ in range(wanted - len(fleet))]
            while len(fleet) > wanted:
                ending.append(fleet.pop())
            for replica in [each for each in ending if sum(each.load) == 0]:
                ending.remove(replica)
                hours += (decided - replica.started) / 3600
            decided, most = decided + EVERY, max(most, len(fleet) + len(ending))
        if is_sent:
            ready = [replica for replica in fleet if replica.ready <= now] or fleet[:1]
            for replica in ready:
                replica.advance(now, latencies)
            chosen = min(ready, key=lambda replica: sum(replica.load))
            chosen.sent[chosen.live.submit(Request(now, 60_000, int(random.integers(2, 8))), now)] = now
    return hours + sum(DAY - replica.started for replica in fleet) / 3600, most, np.array(latencies)


SYSTEM = system_of(
    deploy("llama-3.3-70b", "h100-sxm", max_num_batched_tokens=16384, tensor_parallel_size=2, quantization="fp8")
)
PEAK = 0.12  # Requests per second at noon
for rule in (at_once, calmly):
    hours, most, latencies = day(rule)
    print(
        f"{rule.__name__:8} {hours:5.1f} replica hours, {most:2} at most   TTFT p50 {np.median(latencies):4.1f} s, "
        f"p99 {np.percentile(latencies, 99):5.1f} s   {np.mean(latencies <= TTFT):.1%} of {len(latencies):,} in time"
    )
