import pickle
from importlib import import_module

from serfer.core.errors import SerferError

MODULES = ("serfer.core.errors", "serfer.applications.answering", "serfer.mapping.comparison", "serfer.raster.objects")
MODULES += ("serfer.sam.smoke", "serfer.storage.s3.coordination", "serfer.splitter.network.source")
MODULES += ("serfer.splitter.network.unsupported", "serfer.splitter.plan_dir.assemble")


def kinds():
    found = {kind for module in map(import_module, MODULES) for kind in vars(module).values() if isinstance(kind, type)}
    return {kind for kind in found if issubclass(kind, SerferError)}


def test_every_error_reaches_another_process_with_its_fields():
    """Seen with Python 3.11: what cannot be rebuilt there is BrokenProcessPool for all tasks of a pool."""
    assert len(kinds()) > 40
    for kind in kinds():
        error = kind.__new__(kind, "why")
        error.more = 2.5
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        assert (type(again), str(again), again.more) == (kind, "why", 2.5)
