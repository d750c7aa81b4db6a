import pickle
from importlib import import_module

from serfer.core.errors import SerferError


def kinds(kind=SerferError):
    return {kind}.union(*map(kinds, kind.__subclasses__()))


MODULES = ("applications.answering", "mapping.comparison", "raster.objects", "sam.smoke", "storage.s3.coordination")
MODULES += ("splitter.network.source", "splitter.network.unsupported", "splitter.plan_dir.assemble")


def test_every_error_reaches_another_process_with_its_fields():
    """Seen with Python 3.11: what cannot be rebuilt there is BrokenProcessPool for all tasks of a pool."""
    for module in MODULES:
        import_module(f"serfer.{module}")
    assert len(kinds()) > 40
    for kind in kinds():
        error = kind.__new__(kind, "why")
        error.more = 2.5
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        assert (type(again), str(again), again.more) == (kind, "why", 2.5)
