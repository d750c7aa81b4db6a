import asyncio

import pytest

from serfer.api.http.body_budget import BodyBudget
from serfer.api.http.problems import Problem


class Requests:
    """An application that reads its body, and runs until it is told to end."""

    def __init__(self, most):
        self.app = BodyBudget(self.answer, most)
        self.end = asyncio.Event()
        self.read = []

    async def answer(self, _scope, receive, _send):
        self.read.append(len((await receive())["body"]))
        await self.end.wait()

    def start(self, size):
        async def receive():
            return {"type": "http.request", "body": bytes(size), "more_body": False}

        return asyncio.create_task(self.app({"type": "http"}, receive, None))


def test_total_body_bytes_are_bounded_and_released():
    async def check():
        requests = Requests(100)
        first = [requests.start(40) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="hold all the memory") as caught:
            await requests.start(21)
        assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
        fits = requests.start(20)
        requests.end.set()
        await asyncio.gather(*first, fits)
        await requests.start(100)
        assert requests.read == [40, 40, 20, 100]

    asyncio.run(check())
