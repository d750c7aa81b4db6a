"""The systems under load: a plan through our driver, and what it is compared with.

| system     | what it is                                                                              |
|------------|-----------------------------------------------------------------------------------------|
| `serfer`   | the plan, through the push driver                                                       |
| `unshared` | the same, but no two queries ever share an invocation                                   |
| `function` | the same network as one function with the same memory, through the same driver          |
| engines    | the same plan through another driver: `poll`, `stepfunctions`, `stepfunctions-express`   |
| `unsplit`  | ONNX Runtime busy on every processor of this process: the machine's own limit           |
| others     | the baselines: SerFer as published and repaired, Gillis's fork-join                     |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from serfer.build_cache import forget_unused, in_use
from serfer.cli.shared.terminal import ignore_signals
from serfer.core.errors import UsageError
from serfer.packaging.bundle import code_stamp
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.pipeline import DEADLINE_S
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer.wiring.options import DRIVERS
from serfer_bench.core.container_settings import IMAGE_MB, ContainerSettings
from serfer_bench.core.null_workers import null_pipeline
from serfer_bench.core.system import System
from serfer_bench.load.pipeline_system import PipelineSystem, UnsplitSystem
from serfer_bench.load.queries import Example
from serfer_bench.study.baselines.fork_join import ForkJoin
from serfer_bench.study.papers.serfer.poll_driver import PUBLISHED, REPAIRED
from serfer_bench.study.papers.serfer.system import SerFerPaper

WORKERS = ("inprocess", "local")
SERFER, UNSHARED, FUNCTION, UNSPLIT = "serfer", "unshared", "function", "unsplit"
BASELINES: dict[str, Callable[..., System]] = {
    **{mechanics.name: partial(SerFerPaper, mechanics=mechanics) for mechanics in (PUBLISHED, REPAIRED)},
    ForkJoin.name: ForkJoin,
}
ENGINES = DRIVERS[1:]
SYSTEMS = (SERFER, UNSHARED, *ENGINES, FUNCTION, UNSPLIT, *BASELINES)
ORDERS = ("oldest", "arrival")
_TITLES = {"oldest": "oldest first", "arrival": "order of arrival"}
NULL = "null"
_EXAMPLES = 4

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    """The options of systems: `workers` is "local", "inprocess" or "null"; `service_s` is what a null worker takes.

    `concurrency` bounds the invocations in flight, `orders` are the orders of release when it is reached, and queries
    of our own driver have `deadline_s`.
    """

    workers: str
    concurrency: int
    service_s: float = 0.005
    orders: tuple[str, ...] = ORDERS[:1]
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        if self.workers not in (*WORKERS, NULL):
            raise UsageError(f"workers are {', '.join(WORKERS)} or {NULL}, not {self.workers!r}")
        for order in self.orders:
            if order not in ORDERS:
                raise UsageError(f"the order is {' or '.join(ORDERS)}, not {order!r}")
        if self.workers != NULL and self.orders != ORDERS[:1]:
            raise UsageError(f"--order {self.orders[-1]} is for --workers {NULL}: other drivers are always fair")


@contextmanager
def open_systems(
    names: Sequence[str], directory: Path, setup: Setup, settings: Settings, progress: Progress
) -> Iterator[list[System]]:
    for name in names:
        if name not in SYSTEMS:
            raise UsageError(f"systems are {', '.join(SYSTEMS)}, not {name!r}")
    with ExitStack() as systems:
        opened = []
        for name in names:
            progress(f"starting {name}")
            opened += [systems.enter_context(system) for system in _systems(name, directory, setup, settings, progress)]
        try:
            yield opened
        except Exception:
            raise
        except BaseException:
            ignore_signals()  # a second Ctrl-C must not leave the cleaning up half done
            raise


def _systems(name: str, directory: Path, setup: Setup, settings: Settings, progress: Progress) -> Iterator[System]:
    settings = settings.model_copy(update={"local_concurrency": setup.concurrency})
    if name == SERFER:
        for order in setup.orders:
            title = name if setup.orders == ORDERS[:1] else f"{name}, {_TITLES[order]}"
            yield PipelineSystem(title, _pipeline(directory, setup, settings, order=order), setup.deadline_s)
    elif name == UNSHARED and setup.workers != NULL:
        yield PipelineSystem(name, _pipeline(directory, setup, settings, share=False), setup.deadline_s)
    elif name in ENGINES and setup.workers != NULL:
        yield PipelineSystem(name, _pipeline(directory, setup, settings, driver=name), setup.deadline_s)
    elif name == FUNCTION:
        target = one_function(directory, settings, progress)
        yield PipelineSystem(
            name, _pipeline(target, setup, ContainerSettings(**settings.model_dump())), setup.deadline_s
        )
    elif setup.workers == NULL:
        raise UsageError(f"{NULL} workers compute nothing: --system {name} does")
    elif name == UNSPLIT:
        yield UnsplitSystem(name, load_plan(directory), directory)
    else:
        yield BASELINES[name](directory, settings=settings)


def _pipeline(
    directory: Path,
    setup: Setup,
    settings: Settings,
    *,
    order: str = ORDERS[0],
    share: bool = True,
    driver: str = DRIVERS[0],
) -> Pipeline:
    if setup.workers != NULL:
        return open_pipeline(directory, workers=setup.workers, driver=driver, share=share, settings=settings)
    oldest_first = order == ORDERS[0]
    return null_pipeline(directory, settings, oldest_first=oldest_first, service_s=setup.service_s)


def one_function(directory: Path, settings: Settings, progress: Progress) -> Path:
    """Return the plan of a plan directory's network as one function with the memory of its largest stage."""
    plan = load_plan(directory)
    target = settings.cache_dir / "plans" / f"whole-{plan.digest[:16]}-{code_stamp(('serfer.splitter', 'serfer.core'))}"
    if not in_use(target):
        from serfer.splitter.split import split  # noqa: PLC0415 - imports onnx and torch, which a plan in the cache spares

        progress(f"splitting {plan.model} into one function, once: the plan stays in {target.parent}")
        target.parent.mkdir(parents=True, exist_ok=True)
        size = plan.input.channels, plan.input.height, plan.input.width
        split(
            str(directory / plan.unsplit.path),
            np.zeros((1, *size), dtype=np.float32),
            target,
            grids=[(1, 1)],
            memory_mb=max(stage.memory_mb for stage in plan.stages),
            limit_mb=IMAGE_MB,
            preprocess=plan.preprocess,
            labels=plan.labels,
            activation=plan.activation,
            progress=progress,
        )
        forget_unused(target.parent)
    return target


def examples(directory: Path, setup: Setup) -> list[Example]:
    plan = load_plan(directory)
    shape, random = plan.input, np.random.default_rng(0)
    pixels = [
        random.integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)
        for _ in range(_EXAMPLES)
    ]
    if setup.workers == NULL:
        return [Example(each) for each in pixels]
    run = unsplit(plan, directory)
    return [Example(each, run(each)) for each in pixels]
