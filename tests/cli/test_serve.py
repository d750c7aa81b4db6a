"""What `serfer serve` shows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from serfer.api.entrypoints.serving import Address
from serfer.cli import serve
from serfer.settings import Settings


def test_the_line_of_the_present_step_goes_when_the_service_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextmanager
    def status_line() -> Iterator[Callable[[str], None]]:
        yield shown.append
        shown.append("ended")

    async def serve_models(*_: Any, on_started: Callable[[str], None], progress: Callable[[str], None]) -> None:
        progress("starting workers")
        on_started("http://127.0.0.1:8000")
        shown.append("answers queries")

    monkeypatch.setattr(serve, "status_line", status_line)
    monkeypatch.setattr(serve, "serve_models", serve_models)
    monkeypatch.setattr(serve, "configure_logs", lambda *_, **__: None)
    opening: Any = SimpleNamespace(choices=SimpleNamespace(driver="stepfunctions"), applications=None)

    serve._serve_alone(Address("127.0.0.1", 8000), {}, opening, Settings(), as_json=True)

    assert shown == ["starting workers", "ended", "answers queries"]
