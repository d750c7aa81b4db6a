"""Variants are loaded and unloaded by requests, whose results count until the instance says something newer."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from serfer.applications.scaling.copies import VariantCopies
from tests.applications.worlds import model_state
from tests.support.aiohttp_server import serve_route
from tests.support.hand_clock import Clock

MODEL = "faces:b1"
KEY = "sf_" + "k" * 43


class Instance:
    """An instance that answers as it is told, once `gate` is open; it keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()

    async def change(self, request):
        self.asked.append((request.match_info["model"], request.match_info["action"], request.headers.get("X-API-Key")))
        await self.gate.wait()
        return web.json_response({"detail": "as it is told"}, status=self.status)

    def serve(self):
        return serve_route("POST", "/v2/repository/models/{model}/{action}", self.change)


@asynccontextmanager
async def world():
    clock, looks, instance = Clock(), [], Instance()
    copies = VariantCopies(KEY, clock, lambda: looks.append(clock.now))
    async with instance.serve() as url:
        yield copies, instance, url, clock, looks
        await copies.close()


async def done(copies):
    await asyncio.wait([*copies.tasks])


async def test_a_load_is_asked_for_once_with_the_key_and_counts_until_the_instance_says_something_newer():
    async with world() as (copies, instance, url, clock, looks):
        clock.now = 10.0
        instance.gate.clear()
        copies.change("load", url, MODEL)
        copies.change("load", url, MODEL)
        assert copies.status(url, MODEL, model_state("unloaded"), 9.0) == "loading"
        instance.gate.set()
        await done(copies)
        assert instance.asked == [(MODEL, "load", KEY)]
        assert looks == [10.0]
        assert copies.status(url, MODEL, model_state("unloaded"), 9.0) == "loaded"
        assert copies.status(url, MODEL, model_state("unloaded"), 11.0) == "unloaded"
        assert copies.changes == {"load": 1}


async def test_what_is_being_unloaded_counts_as_gone_and_stays_where_it_has_queries():
    async with world() as (copies, instance, url, _clock, _looks):
        instance.status = 409
        copies.change("unload", url, MODEL)
        assert copies.status(url, MODEL, model_state("loaded"), 0.0) == "unloaded"
        await done(copies)
        assert copies.status(url, MODEL, model_state("loaded"), 0.0) == "loaded"
        assert not copies.is_blocked(url, MODEL)


@pytest.mark.parametrize("status", [404, 429, 503])
async def test_a_load_that_failed_is_not_tried_again_at_once(status):
    async with world() as (copies, instance, url, clock, _looks):
        instance.status = status
        copies.change("load", url, MODEL)
        await done(copies)
        assert copies.is_blocked(url, MODEL)
        assert copies.status(url, MODEL, model_state("unloaded"), 0.0) == "unloaded"
        clock.now += 31.0
        assert not copies.is_blocked(url, MODEL)
        assert copies.changes == {"failed": 1}


async def test_an_instance_that_is_gone_is_a_failed_load():
    copies = VariantCopies("", Clock(), lambda: None)
    copies.change("load", "http://127.0.0.1:9", MODEL)
    await done(copies)
    assert copies.is_blocked("http://127.0.0.1:9", MODEL)
    copies.forget(())
    assert not copies.is_blocked("http://127.0.0.1:9", MODEL)
    await copies.close()


async def test_closing_ends_what_is_under_way():
    async with world() as (copies, instance, url, _clock, _looks):
        instance.gate.clear()
        copies.change("load", url, MODEL)
        await asyncio.sleep(0)
        await copies.close()
        assert copies.tasks == set()
        instance.gate.set()
