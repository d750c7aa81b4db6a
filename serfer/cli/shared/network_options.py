"""Shared by the commands that take a network's file or name: what that does not say, as options, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serfer.cli.shared.option_groups import NetworkFileOptions
from serfer.cli.shared.plan_summary import described, in_cache
from serfer.cli.shared.terminal import complain
from serfer.core.errors import ModelError, UsageError
from serfer.core.options import changed
from serfer.core.plan import MAX_ELEMENTS, InputSizes, Plan
from serfer.plan_directory import is_network_file, load_plan
from serfer.settings import load_settings
from serfer.splitter.network.description import Description
from serfer.splitter.network.named_models import NamedModel
from serfer.splitter.planning.split_options import size_in

NO_OPTIONS = NetworkFileOptions()
_RGB = 3  # channels by default


def check_described(options: NetworkFileOptions, networks: Sequence[Path | str]) -> None:
    if len(networks) == 1:
        options.model_with_weights(str(networks[0]))
        return
    count = len(networks)
    which = f"there are {count}: split all but one before" if count else "a plan has its own"
    if options.weights_given:
        raise UsageError(
            f"{options.weights_given} says where the weights of timm:NAME or torchvision:NAME are from; {which}"
        )
    if given := changed(options, NO_OPTIONS):
        raise UsageError(f"{' and '.join(given)} describe an .onnx file, timm:NAME or torchvision:NAME; {which}")


def plan_of(
    network: Path | str,
    options: NetworkFileOptions,
    progress: Callable[[str], None],
    *,
    deployed: bool,
    says: bool = True,
    again: bool = False,
) -> Path:
    """Return the directory of the plan of a network, in the cache; it `says` how images and outputs are read.

    `again` is that of `in_cache`. Raises UsageError for functions that are `deployed`, which a network has none of.
    """
    if deployed:
        raise UsageError(
            f"{network} has no functions in AWS: write a plan (serfer split {network} --out plan; --whole: in seconds) "
            "and deploy that (serfer deploy package plan --out build), and give --plan plan"
        )
    from serfer.wiring.network_file import plan_of_file  # noqa: PLC0415 - the command line starts fast

    example, sizes = example_of(options.size, options.channels, network, ranges=True), range_in(options.size)
    chosen = options.model_with_weights(str(network))
    description = Description.of(options.preprocess, options.labels or (), options.output)
    given = chosen if isinstance(chosen, NamedModel) else Path(chosen)

    def found(step: Callable[[str], None]) -> Path:
        return plan_of_file(given, load_settings(), step, example, description, sizes)

    directory = in_cache(found, progress, again=again)
    if says:
        tell_reading(load_plan(directory), options.preprocess, options.output)
    return directory


def tell_reading(plan: Plan, preprocess: Path | None, output: str | None) -> None:
    """Say how a network's images are read, at which size, and its outputs where these may be boxes, and no one said."""
    from serfer.splitter.network.detection_heads import BoxOptions  # noqa: PLC0415 - the command line starts fast
    from serfer.wiring.network_file import assumption  # noqa: PLC0415 - same

    assumed = assumption(plan) if preprocess is None or plan.preprocess is None else ""
    complain(assumed or f"{plan.model}: {described(plan)[0]}")
    if output is None and plan.detection is None and not (plan.labels or plan.windows):
        with suppress(ModelError):  # the outputs are of no detector that is known
            head = BoxOptions().head(plan.output_tensors, plan.input, 0)
            complain(
                f"the output {head.outputs[0]!r} may be a detector's: --output boxes:{head.family} reads it as boxes "
                "(docs/how-to/detect.md)"
            )


def range_in(size: str | None) -> str | None:
    """Return `size` where it is a range, for images of many sizes; None where it is one size, or not given."""
    return size if size is not None and ".." in size else None


def example_of(
    size: str | None, channels: int | None, network: str | Path = "", *, ranges: bool = False
) -> NDArray[np.float32] | None:
    """Return an example of the input of `size` and `channels`, None without them; raises UsageError.

    Without `channels`, it has those that the network's file fixes. Where `ranges` may be given, it is of the largest
    size of one; raises InputError for text that is not a range.
    """
    if size is None:
        if channels is not None:
            raise UsageError("channels says more about size: give both")
        return None
    many = range_in(size) if ranges else None
    rows_and_columns = InputSizes.of(many).largest if many else size_in("--size", size)
    if channels is None and is_network_file(network):
        from serfer.splitter.network.source import channels_of  # noqa: PLC0415 - the command line starts fast

        channels = channels_of(Path(network))
    shape = (channels or _RGB, *rows_and_columns)
    if prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"--size {size} is too large: an image may have {MAX_ELEMENTS:,} values, not {prod(shape):,}")
    return np.random.default_rng(0).standard_normal((1, *shape), dtype=np.float32)
