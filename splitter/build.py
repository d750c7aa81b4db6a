"""The steps from a network to a plan directory: read, fit, write, and check against the whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from serfer.arrays import array_of
from serfer.core.costs.cold_queries import ColdPrice, price_cold
from serfer.core.costs.operator_costs import Profiles
from serfer.core.errors import ModelError
from serfer.core.exactness import difference
from serfer.core.plan import ImageLimits, InputSizes, PackageLimit, Plan, classes_of
from serfer.core.plan.answers import Answer
from serfer.core.plan.sized_plan import sized_plan
from serfer.images import check_channels
from serfer.plan_directory import COLD_DIRECTORY, write_plan
from serfer.splitter.head.calibration import Calibration, read_calibration
from serfer.splitter.network.as_is import opset_of
from serfer.splitter.network.description import ARGMAX, Description, Reduction, assumed_preprocess
from serfer.splitter.network.detection_heads import NOT_TURNED, ORIENTED, BoxOptions
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.metadata import FileDescription
from serfer.splitter.network.open_sizes import compared_sizes
from serfer.splitter.network.reductions import of_one_class, with_reduction
from serfer.splitter.network.source import MIN_OPSET, Array, Progress, Run, Source, load, noise
from serfer.splitter.network.unsupported import CannotSplitError
from serfer.splitter.package_fit import fit
from serfer.splitter.plan_dir.assemble import PackageOverflowError, assemble
from serfer.splitter.plan_dir.check import check_exact
from serfer.splitter.plan_dir.output_directory import appearing_whole
from serfer.splitter.planning.cold.plan import ColdOffer, cold_offer, describe_cold
from serfer.splitter.planning.explanation import alternative, as_is_sentence, why_nothing_fits
from serfer.splitter.planning.limits import WeightStorage
from serfer.splitter.planning.optional import optional
from serfer.splitter.planning.planner import Decision, choices_of, prepare
from serfer.splitter.planning.search import BALANCED
from serfer.splitter.planning.split_options import Budget, SplitOptions
from serfer.splitter.profiling.part_costs import with_costs_of, with_timed_part
from serfer.splitter.tiling.cuts import Cut
from serfer.splitter.tiling.from_onnx import from_onnx, split_graph, whole_graph
from serfer.splitter.tiling.grids import ONE, GridChoice
from serfer.splitter.time_left import TimeLeft

_SURFACES = 40
_CHOICES = 4
_NO_OTHER = " There is no cold plan: the one with the earliest first answer is this plan."
_TO_CHANNELS_FIRST = [0, 3, 1, 2]
_MOST_CHANNELS = 4


_ONE_BY_ONE = (
    "the module answers several images at once differently from one at a time, or not at all: the plan computes them "
    "one at a time"
)
_ONE_CLASS = (
    "the model gives the images that the plan was checked on one class everywhere, so that the check says "
    "little: split once without reduce, which compares scores, or look at `serfer verify` on your images"
)


@dataclass(frozen=True)
class Network:
    """What is split, as `split` takes it: a model, an example of its input, and what its file does not say of it."""

    model: Any
    example: Any | None
    description: Description
    calibration: Calibration | Path | str | None
    assume_preprocess: bool = False


@dataclass(frozen=True)
class _Planner:
    """Chooses plans of a graph within a budget; `sentences` stand in every explanation, before and after the budget."""

    graph: Graph
    options: SplitOptions
    images: Calibration | None
    progress: TimeLeft
    sentences: tuple[str, str]

    def choose(self, budget: Budget) -> Decision:
        planned_for = f" Planned for {budget.account}." if budget.account else ""
        decision = fit(self.graph, self.options, budget, self.images, self.progress)
        return replace(decision, sentences=planned_for.join(self.sentences))

    def offer_cold(self, decision: Decision, price: ColdPrice, budget: Budget) -> ColdOffer:
        def offer() -> ColdOffer:
            return cold_offer(decision, price, self.options, budget, self.progress)

        if self.options.cold_plan == "always":
            return offer()
        return optional("the choice of a cold plan", offer, ColdOffer)

    def choose_cold(self, budget: Budget, decision: Decision, price: ColdPrice) -> Decision:
        always = replace(self.options, cold_plan="always")
        return cold_offer(decision, price, always, budget, self.progress).decision or decision


def build_plan(
    network: Network, place: Path, options: SplitOptions, budget: Budget, progress: Progress
) -> tuple[Plan, tuple[str, ...]]:
    """Read a network, choose its plan and write it to `place`, a path of `place_for`.

    Where the parts do not run, or not on a batch, the whole network runs as it is. Returns what `split` warns of as
    well; raises what that does.
    """
    try:
        return _build(network, place, options, budget, TimeLeft(progress, network.model))
    except CannotSplitError as failure:
        return _build(network, place, options, budget, TimeLeft(progress, network.model), failure)


def _build(
    network: Network,
    place: Path,
    options: SplitOptions,
    budget: Budget,
    progress: TimeLeft,
    failure: CannotSplitError | None = None,
) -> tuple[Plan, tuple[str, ...]]:
    progress("reading the network")
    source, sample = load(network.model, _example_of(network))
    description, notes = network.description, list[str]()
    graph, source = _read(source, sample, description.reduction, notes, progress, failure)
    _check_example(graph, sample)
    source, metadata = _described(source, network, graph)
    source = _with_boxes(graph, source, description, notes)
    _check_answer(graph, source)
    graph = with_timed_part(graph, sample[:1], budget.profiles)
    source = _reduced(source, description.reduction, notes)
    answers = _answers(graph, description.reduction, notes)
    images = _calibration(network.calibration, graph, source, progress)
    planner = _Planner(graph, options, images, progress, (as_is_sentence(graph) + answers, metadata))
    progress.expect(graph)
    progress.begin()
    batch = _check_batch(source, sample)
    with appearing_whole(place) as directory:
        plan, decision = _write_plan(planner.choose, source, graph, budget, directory, progress)
        price = price_cold(plan, budget.platform)
        offer = planner.offer_cold(decision, price, budget)
        progress.begin()
        progress("checking the parts against the whole")
        notes.append(check_exact(plan, directory, source, batch, graph))
        sentence = offer.sentence
        if offer.decision is not None:
            cold_directory = directory / COLD_DIRECTORY
            cold_directory.mkdir()
            choose_cold = partial(planner.choose_cold, decision=decision, price=price)
            cold_plan, cold = _write_plan(choose_cold, source, graph, budget, cold_directory, progress)
            if cold_plan.digest == plan.digest:
                shutil.rmtree(cold_directory)
                sentence = _NO_OTHER
            else:
                cold_price = price_cold(cold_plan, budget.platform)
                sentence = describe_cold(cold_price, cold, price, budget.facts.functions)
                progress("checking the parts of the cold plan")
                check_exact(cold_plan, cold_directory, source, batch, graph)
        if sentence:
            plan = replace(plan, why=plan.why + sentence)
            write_plan(plan, directory)
    return plan, (*decision.notes, *filter(None, notes))


def whole(
    network: Network,
    place: Path,
    budget: Budget,
    places: tuple[str, ...],
    progress: Progress,
    sizes: InputSizes | None = None,
) -> tuple[Plan, tuple[str, ...]]:
    """Read a network and write the plan of one task that runs it as it is, without a search; see `build_plan`.

    With `sizes`, of which the example has the largest, the plan takes images of all of them.
    """
    progress("reading the network")
    source, sample = load(network.model, _example_of(network), as_is=True)
    read, (graph, source) = source, whole_graph(source, sample, (), network.description.reduction, sizes)
    _check_example(graph, sample)
    source, metadata = _described(source, network, graph)
    source = _with_boxes(graph, source, network.description, notes := list[str]())
    _check_answer(graph, source)
    progress("predicting what one image takes")
    graph = _with_costs(graph, read, sample, network, budget.profiles)
    source = with_reduction(source, network.description.reduction)
    decision = in_one_function(graph, budget, places)
    takes = f" It takes images of {sizes}; time, memory and dollars are those of the largest." if sizes else ""
    decision = replace(decision, sentences=decision.sentences + as_is_sentence(graph) + takes + metadata)
    with appearing_whole(place) as directory:
        plan = assemble(decision, source, graph, budget, directory, progress)
        progress("checking the plan against the network")
        notes += filter(None, _checked(plan, directory, source, sample, sizes, graph))
    return plan, (*dict.fromkeys(notes),)


def _with_costs(graph: Graph, source: Source, sample: Array, network: Network, profiles: Profiles) -> Graph:
    """Return a graph that runs as it is, whole, with the costs of its operators as `split` reads them, or as timed."""
    try:
        if opset_of(source.onnx.proto) < MIN_OPSET:
            source, _ = load(network.model, sample)
        known, _ = _read(source, sample, None, [], lambda _step: None, None)
        return with_costs_of(graph, with_timed_part(known, sample[:1], profiles))
    except Exception:  # noqa: BLE001 - what cannot be read runs as it is nevertheless
        return with_timed_part(graph, sample[:1], profiles)


def _checked(
    plan: Plan, directory: Path, source: Source, sample: Array, sizes: InputSizes | None, graph: Graph
) -> Iterator[str]:
    for size in compared_sizes(sizes) if sizes else [None]:
        image = sample if size is None else source.like_images(noise(sample.shape[1], size))
        yield check_exact(sized_plan(plan, size), directory, source, _check_batch(source, image), graph)


def _read(
    source: Source,
    sample: Array,
    reduction: Reduction | None,
    notes: list[str],
    progress: Progress,
    failure: CannotSplitError | None,
) -> tuple[Graph, Source]:
    """`notes` get one where a module answers a batch otherwise than its images one by one."""
    try:
        graph = _of_operators(source, sample, reduction, failure)
    except CannotSplitError as refusal:
        progress(f"a part runs as it is: {refusal}")
        given = source.run
        if failure or source.unread:
            graph, source = whole_graph(source, sample, [refusal.reason], reduction)
        else:
            graph, source = split_graph(source, sample, refusal, reduction)
        if source.exported and not _alike(given, source.run, _check_batch(source, sample)):
            notes.append(_ONE_BY_ONE)
    return graph, source


def _alike(run: Run, other: Run, batch: Array) -> bool:
    try:
        return difference(run(batch), other(batch)).exact
    except Exception:  # noqa: BLE001 - the user's own code may raise anything, on a batch as well
        return False


def _of_operators(
    source: Source, sample: Array, reduction: Reduction | None, failure: CannotSplitError | None
) -> Graph:
    if failure:
        raise failure
    if source.unread:
        raise CannotSplitError(source.unread)
    graph = from_onnx(source.onnx, sample.shape[2], sample.shape[3], source.outputs, reduction)
    _check_layout(graph)
    return graph


def _write_plan(
    choose: Callable[[Budget], Decision],
    source: Source,
    graph: Graph,
    budget: Budget,
    directory: Path,
    progress: TimeLeft,
) -> tuple[Plan, Decision]:
    """Choose a plan and write it; the bytes of its graphs are known only then, so it may have to be chosen again."""
    reserve, limit, tries = 0, budget.limit, 0
    while True:
        tries += 1
        decision = choose(replace(budget, limit=PackageLimit(limit.package, limit.dependencies + reserve)))
        progress.begin()
        try:
            return assemble(decision, source, graph, budget, directory, progress, reserve), decision
        except PackageOverflowError as overflow:
            if tries == _CHOICES:
                raise
            reserve += overflow.excess
            for entry in directory.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _calibration(
    calibration: Calibration | Path | str | None, graph: Graph, source: Source, progress: Progress
) -> Calibration | None:
    shape, classes = graph.shape(graph.input), graph.shape(graph.output).elements
    if calibration is not None and graph.answers:
        raise ModelError("calibration needs a network that classifies: one output (N, K)")
    if isinstance(calibration, Path | str):
        labels = source.labels or tuple(map(str, range(classes)))
        calibration = read_calibration(Path(calibration), source.preprocess, shape, labels, ImageLimits(), progress)
    elif calibration is not None:
        calibration.check(shape, classes)
    return calibration


def _example_of(network: Network) -> Array | None:
    return None if network.example is None else array_of(network.example, "example", ModelError)


def _check_layout(graph: Graph) -> None:
    readers = [node for node in graph.nodes if graph.input in graph.activations(node)]
    if graph.shape(graph.input).width <= _MOST_CHANNELS and all(
        node.kind == "Transpose" and node.attributes.get("perm") == _TO_CHANNELS_FIRST for node in readers
    ):
        given = graph.shape(graph.input)
        raise ModelError(
            f"the model takes (N, {given.channels}, {given.height}, {given.width}), images with their channels last: "
            "export it with (N, C, H, W)"
        )


def _check_example(graph: Graph, sample: Array) -> None:
    channels = graph.shape(graph.input).channels
    if sample.shape[1] != channels:
        raise ModelError(
            f"the model takes images of {channels} channels, the example has {sample.shape[1]}: give --set "
            f"channels={channels}"
        )


def _described(source: Source, network: Network, graph: Graph) -> tuple[Source, str]:
    """A file's labels are left out where they are not one for each class; of images, what nothing says is assumed."""
    given = network.description
    own = FileDescription(
        None if given.preprocess else source.preprocess,
        () if given.labels or len(source.labels) != (_classes(graph) or len(source.labels)) else source.labels,
        source.origin,
    )
    preprocess = given.preprocess or own.preprocess
    if preprocess is None and network.assume_preprocess:
        numbers = source.given.dtype if source.given else "float32"
        preprocess = assumed_preprocess(graph.shape(graph.input).channels, numbers)
    described = replace(
        source,
        name=given.name or source.name,
        preprocess=preprocess,
        labels=given.labels or own.labels,
        activation=given.activation or source.activation,
    )
    return described, f" {own.sentence}" if source.origin and own.sentence else ""


def _classes(graph: Graph) -> int | None:
    return classes_of(graph.shape(graph.output), graph.output_tensors[0])


def _check_answer(graph: Graph, source: Source) -> None:
    classes = _classes(graph)
    if source.preprocess:
        check_channels(source.preprocess, graph.shape(graph.input))
        source.preprocess.check_sizes(graph.sizes.input if graph.sizes else None)
        source.check_numbers(source.preprocess)
    if source.detection is None and source.labels and classes is not None and len(source.labels) != classes:
        raise ModelError(f"there are {len(source.labels)} labels for a network with {classes} outputs")


def _with_boxes(graph: Graph, source: Source, description: Description, notes: list[str]) -> Source:
    """Turned boxes are not read: they are refused where they were asked for, and else said in `notes`."""
    tensors, shape, labels = graph.output_tensors, graph.shape(graph.input), len(source.labels)
    if description.boxes is not None:
        if source.origin == ORIENTED:
            raise ModelError(f"{NOT_TURNED}: leave --output boxes out")
        return replace(source, detection=description.boxes.head(tensors, shape, labels))
    if description.activation or description.reduction:
        return source
    if source.detects:
        with suppress(ModelError):
            return replace(source, detection=BoxOptions().head(tensors, shape, labels))
    if source.origin == ORIENTED:
        notes.append(f"{NOT_TURNED}: its output is given as it is")
    return source


def _reduced(source: Source, reduction: Reduction | None, notes: list[str]) -> Source:
    source = with_reduction(source, reduction)
    if reduction is None or reduction.kind != ARGMAX:
        return source
    own = source.run

    def run(batch: Array) -> Answer:
        answer = own(batch)
        if of_one_class(answer):
            notes[:] = [*(note for note in notes if note != _ONE_CLASS), _ONE_CLASS]
        return answer

    return replace(source, run=run)


def _answers(graph: Graph, reduction: Reduction | None, notes: list[str]) -> str:
    if graph.unreduced is None:
        return ""
    number, before = graph.unreduced
    tensor = graph.output_tensors[number]
    if others := [other.name for other in graph.output_tensors if other != tensor]:
        notes.append(f"reduce is for one output, {tensor.name}: {', '.join(others)} as they are")
    after = prod(tensor.dims) * np.dtype(tensor.dtype).itemsize
    made = f"{reduction} makes {after:,} bytes of {before:,}"
    return f" Of an image's output {tensor.name!r}, {made}, in the last stage's tiles."


def _check_batch(source: Source, sample: Array) -> Array:
    return np.concatenate([sample[:1], source.like_images(picture(sample.shape[1:])[None])])


def picture(shape: Sequence[int]) -> Array:
    """Return an image (C, H, W) of surfaces with edges, and some noise.

    What looks for text or objects answers noise alone with a map whose whole range is rounding.
    """
    random = np.random.default_rng(1)
    image = np.zeros(shape)
    for _ in range(_SURFACES):
        top, left = (random.integers(side) for side in shape[1:])
        height, width = (random.integers(1, side // 4 + 2) for side in shape[1:])
        image[:, top : top + height, left : left + width] = random.standard_normal((shape[0], 1, 1))
    return (image + random.normal(0, 0.1, shape)).astype(np.float32)


def in_one_function(graph: Graph, budget: Budget, places: tuple[str, ...]) -> Decision:
    """Return the decision for one task that computes the whole network, with the best of the budget's memory sizes.

    `places` are where it may have its weights. Raises ModelError where no function holds it.
    """
    cuts = (Cut(0, (graph.input,)), Cut(len(graph.nodes), graph.outputs))
    grids, storage = GridChoice((ONE,)), WeightStorage(places=places)
    search = prepare(graph, cuts, grids, None, budget, storage)
    chain = search.best(BALANCED) if search.fastest else None
    if chain is None:
        raise ModelError(why_nothing_fits(graph, cuts, grids, None, budget, storage))
    listed = alternative(chain, budget.platform, chosen=True)
    said = f"As given, {listed.stages}: nothing else was looked for."
    return Decision(graph, cuts, choices_of(chain), alternatives=(listed,), sentences=said)
