"""Makes plans of one network: read once and written as ONNX, then split again for each variant."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from serfer.core.costs.account import DEFAULT
from serfer.core.costs.aws import AwsFacts, LambdaFacts
from serfer.core.costs.pricing import cold_share_of
from serfer.core.errors import PlanError, PlanWarning
from serfer.core.plan import Plan, Preprocess, sealed
from serfer.core.plan.layout import PLAN_FILE
from serfer.core.plan.window_plan import check_whole_images
from serfer.pipeline.labelled.accuracy import check_labelled
from serfer.pipeline.reference import normalised
from serfer.plan_directory import check_artefacts, is_network_file, load_plan, write_plan
from serfer.variants.candidates import PlanRequest
from serfer.variants.images import ImageFiles
from serfer.wiring.network_file import assumed_preprocess, assumption

Progress = Callable[[str], None]
_UNDESCRIBED: Final = (
    "nothing says how an image becomes the network's input: give --preprocess FILE.toml (in Python, preprocess=)"
)
_AS_IS: Final = "what cannot be split of the network runs as it is, in one task (serfer explain says why)"
_HALF_VCPU: Final = 0.5
_WITHIN: Final = 1 + 1e-9  # of dollars that were written as text


@dataclass(frozen=True)
class NetworkOptions:
    """What says how a network's file is read, as `serfer split` has it.

    What is known by a name and plan directories need none.
    """

    example: Any = None
    preprocess: Preprocess | None = None
    labels: Sequence[str] = ()
    activation: str | None = None


@dataclass(frozen=True)
class BaseNetwork:
    """A network as it was read: a plan of it in fp32, its whole graph as ONNX, and the digest of graph and weights.

    `assumed` says how an image becomes its input, where nothing else does.
    """

    plan: Plan
    onnx: Path
    digest: str
    assumed: str = ""

    @property
    def kept(self) -> str:
        parts = [operator for stage in self.plan.stages for operator in stage.operators if operator.kind == "AsIs"]
        return _AS_IS if parts else ""


def read_network(
    network: Any,  # noqa: ANN401 - as serfer.splitter.split takes it
    name: str,
    options: NetworkOptions,
    facts: AwsFacts,
    work: Path,
    progress: Progress,
    *,
    labelled: bool = True,
) -> BaseNetwork:
    """Read a network (as `split` takes it, or a plan directory) and write a plan of it below `work`.

    Where nothing says how an image becomes the input of an ONNX file, that is assumed. Raises ModelError and PlanError,
    also for a map plan, and where images are `labelled` for a network that does not classify them.
    """
    check = check_labelled if labelled else check_whole_images
    directory = work / "base"
    given: Plan | None = None
    if isinstance(network, Path | str) and (Path(network) / PLAN_FILE).exists():
        given = load_plan(Path(network))
        check_artefacts(given, Path(network))
        check(given)
        options = _options_of(given)
        network = str(Path(network) / (given.original[0] if given.original else given.unsplit).path)
    is_file = isinstance(network, Path | str) and is_network_file(network)
    says = is_file or _is_named(network) or (isinstance(network, str) and ".py:" not in network)
    if options.preprocess is None and not says:
        raise PlanError(_UNDESCRIBED)  # before the network is read and split
    plan = _split(network, directory, options, facts, precision="fp32", progress=progress)
    if given is not None:
        plan = _as_given(plan, given, directory)
    check(plan)
    plan, said = _described(plan)
    onnx = directory / f"{name}.onnx"  # beside the weights: its name is what plans call the network
    shutil.copyfile(directory / plan.unsplit.path, onnx)
    return BaseNetwork(plan, onnx, network_digest(onnx), said)


def _described(plan: Plan) -> tuple[Plan, str]:
    if plan.preprocess is not None:
        return plan, ""
    assumed = assumed_preprocess(plan)
    if assumed is None:
        raise PlanError(_UNDESCRIBED)
    plan = replace(plan, preprocess=assumed)
    return plan, assumption(plan)


def _is_named(network: object) -> bool:
    from serfer.splitter.network.named_models import is_named  # noqa: PLC0415 - the base is installed without it

    return is_named(network)


def network_digest(path: Path) -> str:
    import onnx  # noqa: PLC0415 - it takes a while to load

    model = onnx.load(path)
    digest = hashlib.sha256()
    for weight in sorted(model.graph.initializer, key=lambda artefact: artefact.name):
        value = onnx.numpy_helper.to_array(weight)
        digest.update(f"{weight.name} {value.dtype} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    for part in (*model.graph.node, *model.graph.input, *model.graph.output):
        digest.update(part.SerializeToString(deterministic=True))
    return digest.hexdigest()


def make_plan(
    base: BaseNetwork,
    request: PlanRequest,
    out: Path,
    facts: AwsFacts,
    calibration: ImageFiles | None,
    progress: Progress,
) -> Plan:
    plan = base.plan
    options = _options_of(plan)
    chosen: dict[str, Any] = {"precision": request.precision, "cold_share": cold_share_of(plan)}
    if request.whole:
        chosen |= {"stages": 1, "grids": (1, 1), "objective": "cost"}
    if request.most_usd is not None:
        chosen |= {"objective": "latency", "max_cost_usd": request.most_usd * _WITHIN}
    if request.slo_ms is not None:
        chosen |= {"objective": "cost", "slo_ms": request.slo_ms}
    if request.pooled:
        if calibration is None:
            raise PlanError("a head is fitted to images that accuracy is not measured on: give 100 images or more")
        chosen |= {"gap": "always", "calibration": _calibration(plan, calibration)}
    return _as_given(_split(str(base.onnx), out, options, facts, progress=progress, **chosen), plan, out)


def _options_of(plan: Plan) -> NetworkOptions:
    """Return what a plan says of its network, but for the labels of boxes, which `_as_given` puts back."""
    labels = () if plan.detection else plan.labels
    return NetworkOptions(None, plan.preprocess, labels, plan.activation)


def _as_given(plan: Plan, given: Plan, directory: Path) -> Plan:
    """Give a plan what only the network's own file says: its tensors, types and sizes of other outputs, and boxes."""
    outputs = plan.outputs if given.classifies else given.outputs
    labels = given.labels if given.detection else plan.labels
    plan = sealed(replace(plan, file=given.file, outputs=outputs, detection=given.detection, labels=labels))
    write_plan(plan, directory)
    return plan


def short_name(plan: Plan, request: PlanRequest) -> str:
    memory = max(stage.memory_mb for stage in plan.stages)
    widest = max(stage.grid.tiles for stage in plan.stages)
    shape = "whole" if plan.tasks == 1 else f"split{len(plan.stages)}x{widest}"
    lossy = ["fp16"] * (request.precision == "fp16") + ["pooled"] * request.pooled
    return "-".join([shape, f"{memory}mb", *lossy])


def _split(
    network: Any,  # noqa: ANN401 - as serfer.splitter.split takes it
    out: Path,
    options: NetworkOptions,
    facts: AwsFacts,
    *,
    progress: Progress,
    **chosen: Any,  # noqa: ANN401 - serfer.splitter.split's own
) -> Plan:
    from serfer.splitter.split import split  # noqa: PLC0415 - imports onnx, over a second

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        return split(
            network,
            options.example,
            out,
            preprocess=options.preprocess,
            labels=options.labels,
            activation=options.activation,
            memory_mb=_memories(facts.functions),
            account=DEFAULT,
            facts=facts,
            progress=progress,
            **chosen,
        )


def _memories(functions: LambdaFacts) -> list[int]:
    from serfer.splitter.planning.split_options import memory_sizes  # noqa: PLC0415 - the command line starts fast

    return [round(_HALF_VCPU * functions.memory_per_vcpu), *memory_sizes(functions)]


def _calibration(plan: Plan, images: ImageFiles) -> Any:  # noqa: ANN401 - the splitter's, imported when it is needed
    from serfer.splitter.head.calibration import Calibration  # noqa: PLC0415 - the command line starts fast

    return Calibration(normalised(plan, np.asarray(images.pixels)), images.labels)
