"""Query parameters: checked as FastAPI checks them, once for a query string, and documented as FastAPI writes it."""

import asyncio
from contextlib import suppress
from typing import Annotated

import pytest
from fastapi import FastAPI, Query
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from starlette.requests import ClientDisconnect, Request

from serfer.api.http.problems import Problem
from serfer.api.http.validation import QueryParameters
from serfer.api.requests import unless_gone
from serfer.api.routes.classify import PredictParameters


class Few(QueryParameters):
    count: int = Field(5, ge=1, le=9, description="How many.")
    form: str | None = Field(None, alias="format", max_length=3)


def asked(query, receive=None):
    return Request({"type": "http", "query_string": query.encode(), "headers": []}, receive)


def test_a_query_string_is_checked_once():
    assert PredictParameters.of(b"top_k=3&model=a") is PredictParameters.of(b"top_k=3&model=a")
    assert PredictParameters.of(b"top_k=4&model=a").top_k == 4
    assert PredictParameters.of(b"").top_k == 5


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("count=0", "count: Input should be greater than or equal to 1"),
        ("count=x", "count: Input should be a valid integer"),
        ("format=long", "format: String should have at most 3"),
        ("form=a", "'form' is not a parameter here: there is count, format"),
        ("count=1&count=1", "count is given more than once"),
        ("colour=red&count=0", "'colour' is not a parameter here"),
    ],
)
def test_the_first_wrong_parameter_is_named_every_time(query, detail):
    for _ in range(2):  # what is refused is not kept
        with pytest.raises(Problem) as refused:
            Few.of(query.encode())
        assert refused.value.status == 422
        assert refused.value.detail.startswith(detail)


@given(st.text(max_size=20))
def test_any_query_string_gives_parameters_or_a_problem(query):
    with suppress(Problem):
        assert 1 <= Few.of(query.encode()).count <= 9


def test_parameters_are_documented_as_fastapi_documents_them():
    app = FastAPI()

    @app.get("/")
    def few(
        count: Annotated[int, Query(ge=1, le=9, description="How many.")] = 5,
        form: Annotated[str | None, Query(alias="format", max_length=3)] = None,
    ) -> None: ...

    def without_defaults(parameters):
        return [{**one, "schema": {k: v for k, v in one["schema"].items() if v is not None}} for one in parameters]

    assert without_defaults(Few.described()) == app.openapi()["paths"]["/"]["get"]["parameters"]


class TestUnlessGone:
    async def test_a_client_that_goes_away_cancels_the_work_and_nothing_else(self):
        async def gone():
            return {"type": "http.disconnect"}

        ended = []

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        with pytest.raises(ClientDisconnect):
            await unless_gone(asked("", gone), work())
        await asyncio.sleep(0)  # the task goes on
        assert ended == [True]

    @pytest.mark.parametrize("turns", range(6))
    async def test_a_client_that_goes_away_as_the_work_ends_cancels_nothing_after_it(self, turns):
        leaves = asyncio.Event()

        async def gone():
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def work():
            await asyncio.sleep(0)  # the client is waited for
            leaves.set()
            for _ in range(turns):
                await asyncio.sleep(0)

        with suppress(ClientDisconnect):
            await unless_gone(asked("", gone), work())
        for _ in range(3):
            await asyncio.sleep(0)

    async def test_a_caller_that_is_cancelled_is_no_client_that_goes_away(self):
        task = asyncio.create_task(unless_gone(asked("", asyncio.Event().wait), asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
