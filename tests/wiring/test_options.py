from contextlib import suppress
from importlib.metadata import EntryPoint, EntryPoints
from itertools import product

import pytest

from serfer.core.errors import UsageError
from serfer.wiring.options import DRIVERS, WORKERS, Choices, workers_of

STORES = (None, "memory://", "file:///tmp/x", "redis://h", "rediss://h", "redis+cluster://h", "s3://b/p")


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (Choices("memory://", "local", "push"), "memory:// cannot be shared with local workers"),
        (Choices("delay://?store=memory%3A%2F%2F&put_ms=1", "local", "push"), "memory:// cannot be shared"),
        (Choices("memory://x", "local", "poll"), "memory:// cannot be shared with local workers"),
        (Choices("memory://", "aws", "push"), "memory:// cannot be reached by functions in AWS"),
        (Choices("file:///x", "aws", "push"), "file:// cannot be reached by functions in AWS"),
        (Choices(None, "aws", "push"), "--workers aws needs --store"),
        (Choices(None, "local", "push", stack="demo"), "--stack names functions in AWS"),
        (Choices(None, "inprocess", "stepfunctions"), "engine=stepfunctions invokes functions"),
        (Choices(None, "inprocess", "stepfunctions-express"), "engine=stepfunctions-express invokes functions"),
        (Choices("redis://h", "aws", "push", "file:///x"), "object_store file:// cannot be reached"),
        (Choices(None, "local", "push", inline="sometimes"), "inline is planned, always or never, not 'sometimes'"),
        (Choices(None, "moon", "push"), "workers are inprocess, local or aws, not 'moon'"),
        (
            Choices(None, "local", "pull"),
            "the driver is push, poll, stepfunctions or stepfunctions-express, not 'pull'",
        ),
        (Choices(None, "local", "push", cache_s=-1), "answers are kept for 0 to 86400 seconds"),
        (Choices(None, "local", "push", cache_s=float("nan")), "answers are kept for 0 to 86400 seconds"),
    ],
)
def test_incompatible_options_are_refused_by_name(choices, words):
    with pytest.raises(UsageError) as caught:
        choices.check()
    assert words in str(caught.value)


def test_a_scheme_that_only_ends_like_another_is_not_taken_for_it(monkeypatch):
    mine = EntryPoints(
        [EntryPoint(name, "serfer.storage.memory:open_memory", "serfer.stores") for name in ("myfile", "inmemory")]
    )
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: mine.select(group=group))
    Choices("myfile://x", "aws", "push").check()
    Choices("inmemory://x", "local", "push").check()


def test_all_other_combinations_are_accepted():
    taken = 0
    for store, workers, driver in product(STORES, WORKERS, DRIVERS):
        with suppress(UsageError):
            Choices(store, workers, driver).check()
            taken += 1
    inprocess, local, aws = 2 * len(STORES), 4 * (len(STORES) - 1), 4 * (len(STORES) - 3)
    assert taken == inprocess + local + aws


def test_elsewhere_than_on_linux_workers_are_in_process_by_default_and_local_ones_refused(monkeypatch):
    assert workers_of(None, None, "local") == "local"
    monkeypatch.setattr("sys.platform", "darwin")
    assert workers_of(None, None, "local") == "inprocess"
    with pytest.raises(UsageError, match=r"--workers local, .* needs Linux"):
        Choices(None, "local", "push").check()
