"""Users of locust who stream a chat, and report first tokens and times between tokens as requests of their own."""

import time

from locust import HttpUser, constant_throughput, task

QUESTION = "What does a scheduler of an inference engine do with prompts that are longer than one step? " * 16


class Reader(HttpUser):
    """Asks, reads the whole answer, and asks again."""

    wait_time = constant_throughput(0.25)

    @task
    def ask(self) -> None:
        document = {
            "messages": [{"role": "user", "content": f"{time.time()} {QUESTION}"}],
            "max_tokens": 80,
            "ignore_eos": True,
            "stream": True,
        }
        began = time.perf_counter()
        reply = self.client.post("/v1/chat/completions", json=document, stream=True)
        times = [time.perf_counter() for line in reply.iter_lines(chunk_size=None) if b'"delta":{"content"' in line]
        told = {"TTFT": times[0] - began, "TPOT": (times[-1] - times[0]) / (len(times) - 1)}
        for name, seconds in told.items():
            self.environment.events.request.fire(
                request_type=name, name=name, response_time=1e6 * seconds, response_length=0, exception=None, context={}
            )  # in microseconds, for locust rounds to whole ones
