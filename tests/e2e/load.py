"""Queries at a service: closed loops of clients, and an open loop at a rate."""

import asyncio
import threading

import httpx

from tests.e2e.conftest import PATIENCE, eventually
from tests.support.served import png


class Burst:
    """Clients that ask a service one query after the other, and keep what became of each."""

    def __init__(self, url, clients=2, pause_s=0.02):
        self.seen = []
        self.costs = set()
        self._url, self._pause_s = url, pause_s
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _ask(self):
        image = png()
        with httpx.Client(base_url=self._url, timeout=PATIENCE) as http:
            while not self._over.wait(self._pause_s):
                try:
                    reply = http.post("/v1/classify", content=image, headers={"Content-Type": "image/png"})
                    self.seen.append(reply.json()["target"] if reply.status_code == 200 else reply.text)
                    self.costs.add(reply.json().get("cost_usd"))
                except httpx.TransportError as error:
                    self.seen.append(repr(error))

    def mark(self):
        return len(self.seen)

    def answered(self, target, since=0):
        """Wait for an answer of a target after those that were seen before."""
        eventually(lambda: target in self.seen[since:], f"an answer by {target}", every=0.02)


class Load:
    """Queries, one every `gap_s` seconds whatever the answers take; all answers are kept."""

    def __init__(self, url, image, gap_s):
        self.answers = []
        self.gap_s = gap_s
        self._url, self._image = url, image
        self._queries = set()

    async def __aenter__(self):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._http = await httpx.AsyncClient(base_url=self._url, timeout=PATIENCE, limits=limits).__aenter__()
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_):
        self._sending.cancel()
        await asyncio.gather(*self._queries)
        await self._http.__aexit__()

    async def _send(self):
        due_s = asyncio.get_running_loop().time()
        while True:
            query = asyncio.create_task(self._ask())
            self._queries.add(query)
            query.add_done_callback(self._queries.discard)
            due_s += self.gap_s
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())

    async def _ask(self):
        reply = await self._http.post("/v1/classify", files={"image": self._image})
        self.answers.append((reply.status_code, reply.json()))

    async def until(self, look, what):
        """Look again and again until `look()` is true, and return what it gives."""
        return await asyncio.to_thread(eventually, look, what, 0.1, 3 * PATIENCE)  # less than the suite's own limit
