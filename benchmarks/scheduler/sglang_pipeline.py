"""SGLang's own scheduler on a pipeline against ours, decision by decision: batches that take turns in a ring.

    python benchmarks/scheduler/sglang_pipeline.py [--runs 100] [--seed 0] [--sglang DIR]

The loop is that of ``scheduler_pp_mixin.py`` (0.5.16) without its messages: a batch is planned and launched, then the
result of the batch whose turn is next is taken in.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import sglang_tree as tree
from our_prefill_first import Ours
from sglang_cases import Case, draw
from sglang_turns import turns

from infercast.errors import InputError
from infercast.serve.scheduler.prefill_ring import PrefillRing


class OurRing(Ours):
    """infercast's ring, with as many steps under way as batches."""

    def __init__(self, case: Case, num_batches: int) -> None:
        super().__init__(case)
        self.scheduler = PrefillRing(self.scheduler.policy, self.cache, num_batches, case.max_model_len)
        self.results: list[Any] = [None] * (num_batches - 1)

    def turn(self) -> list[Any]:
        """Plan, launch, take in what is due."""
        ring, page = self.scheduler, self.case.page_size
        before = {each: each.num_preemptions for each in [*ring.running, *ring.waiting]}
        plan = ring.plan()
        rows = [] if plan is None else self._rows(plan)
        retracted = sorted(each.index for each, count in before.items() if each.num_preemptions > count)
        decision = [rows, retracted, self.cache.num_blank * page, self.cache.num_evictable * page]
        if plan is not None:
            ring.start(plan)
        self.results.append(plan)
        due = self.results.pop(0)
        if due is not None:
            ring.complete(due)
        return decision

    def is_busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.scheduler.running or self.scheduler.waiting or any(self.results))


def real_ring(case: Case, num_batches: int) -> Any:
    """SGLang's scheduler in the same loop."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch  # noqa: PLC0415
    from sglang_scheduler import OutOfTokensError, Real, _rows  # noqa: PLC0415 - imports SGLang

    class Ring(Real):
        def __init__(self) -> None:
            super().__init__(case)
            self.scheduler.server_args.pp_max_micro_batch_size = case.max_running_requests // num_batches
            self.running = [ScheduleBatch(reqs=[], batch_is_full=False) for _ in range(num_batches)]
            self.last: list[Any] = [None] * num_batches
            self.now: list[Any] = [None] * num_batches
            self.number = -1

        def turn(self) -> list[Any]:
            scheduler = self.scheduler
            self.number = number = (self.number + 1) % num_batches
            known = [*self.running[number].reqs, *(self.last[number].reqs if self.last[number] else ())]
            before = {request.rid: request.retraction_count for request in known}
            try:
                plan = scheduler.get_next_batch_to_run(self.running[number], self.last[number])
            except RuntimeError as error:
                raise OutOfTokensError(str(error)) from error
            self.running[number], self.now[number] = plan.running_batch, plan.batch_to_run
            again = scheduler.waiting_queue
            retracted = sorted(int(each.rid) for each in again if each.retraction_count > before.get(each.rid, 1 << 30))
            decision = [_rows(plan.batch_to_run), retracted, *self._room()]
            after = (number + 1) % num_batches
            if self.now[after] is not None:
                self._process(self.now[after])
                self.last[after] = self.now[after]
            return decision

        def is_busy(self) -> bool:
            scheduler = self.scheduler
            held = scheduler.waiting_queue or scheduler.chunked_req is not None or any(self.now)
            return bool(held or any(not each.is_empty() for each in self.running))

    return Ring()


def main() -> None:
    """Parse the command line and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang", type=Path, help="a folder with the package; default: the wheel's, fetched once")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tree.use(tree.find(arguments.sglang))
    from sglang_scheduler import OutOfTokensError  # noqa: PLC0415 - imports SGLang

    equal = steps = gave_up = 0
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        rng = random.Random(f"pipeline:{seed}")
        case, num_batches = (
            draw(rng.choice(["no-overlap", "mixed-no-overlap", "page-no-overlap"]), seed),
            rng.randint(2, 4),
        )
        case.max_running_requests = max(case.max_running_requests, num_batches)
        case.num_tokens *= rng.choice([1, 3])
        found = ""
        try:
            for real, ours in turns(case, real_ring(case, num_batches), OurRing(case, num_batches)):
                steps += 1
                if real != ours:
                    found = f"SGLang {real}, ours {ours}"
                    break
        except (OutOfTokensError, InputError):
            gave_up += 1
        except RuntimeError as error:
            found = str(error)
        equal += not found
        if found:
            print(f"seed {seed}, {num_batches} batches, {case.mode}: step {steps}: {found}", file=sys.stderr)
    print(f"{equal} of {arguments.runs} equal, {steps:,} steps; {gave_up} ran out of tokens")


if __name__ == "__main__":
    main()
