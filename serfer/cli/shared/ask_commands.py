"""The options of `serfer classify`, `serfer predict` and `serfer run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from serfer.cli.shared.option_groups import JsonOptions, NamedNetworkOptions, NetworkFileOptions
from serfer.core.options import REQUIRED, argument, option
from serfer.offline.options import YieldOptions
from serfer.wiring.pipeline_options import PipelineOptions

_NETWORK = "network model plan size preprocess labels output random"
_PIPELINE = "store workers stack"


@dataclass(frozen=True, kw_only=True)
class AskOptions(PipelineOptions, NetworkFileOptions, NamedNetworkOptions, JsonOptions):
    """Which network is asked about which images, and for how long."""

    images: tuple[str, ...] = argument(
        REQUIRED,
        "Image files, or folders of them; of run also .npy arrays (N, C, H, W) float32 that are the input itself; - "
        "reads one from standard input. A plan directory, or an .onnx file, timm:NAME or torchvision:NAME, which is "
        "run as it is, among them is the network.",
        metavar="[NETWORK] IMAGE...",
    )
    model: str | None = option(None, "A model of the zoo (docs/reference/networks.md).", metavar="NAME")
    plan: Path | None = option(None, "A plan directory; or an .onnx file, timm:NAME or torchvision:NAME, run whole.")
    deadline_ms: int = option(120_000, "Give up on an image then.", least=1, most=86_340_000)
    compare: bool = option(False, "Also run the model as it was given, unsplit, and print the difference.")
    cache_s: float = option(0.0, "Keep answers in the store for so many seconds; 0: keep none.")


@dataclass(frozen=True, kw_only=True)
class ClassifyCommand(AskOptions, YieldOptions):
    """Classify images, each as one query through a network, split or whole: predict, of classes alone."""

    command: ClassVar[str] = "classify"
    line: ClassVar[str] = f"{_NETWORK} demo {_PIPELINE} top_k compare trace as_json"

    demo: bool = option(False, "Take efficientnet-lite0 of the zoo, which knows ImageNet's classes; planned once.")
    top_k: int = option(5, "Of a classifier: how many classes to print at most.", least=1)
    trace: Path | None = option(None, "Write where time went, for ui.perfetto.dev, chrome://tracing.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class PredictCommand(ClassifyCommand):
    """Say what a network finds in images: classes, boxes of a detector, or values of vectors and tables.

    Each image is one query. Maps and masks are written to files by serfer run.
    """

    command: ClassVar[str] = "predict"
    line: ClassVar[str] = f"{_NETWORK} demo {_PIPELINE} top_k min_score draw as_coco as_json"

    min_score: float | None = option(None, "A detector's least score, in place of the plan's.", least=0, most=1)
    draw: Path | None = option(
        None, "Draw boxes over the image: a file (.png, .jpg, .webp), or a folder for several.", metavar="PATH"
    )
    as_coco: bool = option(False, "Print the boxes of all images as one COCO data set, with scores.", "--coco")


@dataclass(frozen=True, kw_only=True)
class RunCommand(AskOptions):
    """Run images, each as one query through a network, split or whole, and write each of its outputs to a file.

    The files of photo.jpg are FOLDER/photo.OUTPUT.npy (or .png, .tiff), and appear whole. An image that fails does not
    stop the others: the exit code is then that of the first failure.
    """

    command: ClassVar[str] = "run"
    line: ClassVar[str] = f"out {_NETWORK} format overwrite {_PIPELINE} compare keep results as_json"

    out: Path | None = option(None, "Where outputs are written; it is made if it is not there.", metavar="FOLDER")
    format: Literal["npy", "png", "tiff"] = option(
        "npy",
        "npy: the array (N, ...), of any output; png: masks with a palette, maps of one channel with 16 bits; tiff: "
        "maps in float32, a page for each channel. What png or tiff cannot hold is written as npy.",
    )
    overwrite: bool = option(False, "Replace files that exist.")
    keep: bool = option(
        False, "Leave outputs where tiles write them, however large, and print their id; with --out write files, too."
    )
    results: str | None = option(
        None, "The store of results; by default one in the cache.", metavar="URL", setting="results", own_default=True
    )
