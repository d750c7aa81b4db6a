"""`serfer bench peers`: `serfer serve` beside other ways to serve the same ONNX file, on the same images and threads.

    round 1: bare uvicorn, Lambda handler, ..., serfer serve      each started, asked, weighed and ended by itself,
    round 2: serfer serve, ..., Lambda handler, bare uvicorn      so that none takes another one's memory or cores

Each has an environment of its own, made on first use in the cache. One that cannot be installed or does not answer is
left out by name.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import onnxruntime
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.settings import load_settings
from serfer.system import processors
from serfer_bench.core.photographs import photograph
from serfer_bench.core.plans import Progress, write_onnx
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import publish
from serfer_bench.peers.apps.classifier import Classifier
from serfer_bench.peers.peers import NULL_PEER, PEERS, Peer
from serfer_bench.peers.report import results
from serfer_bench.peers.rounds import Example, Load, Round, measure
from serfer_bench.peers.running import prepared, running

_IMAGES = 8
_COARSE = 8  # pixels of noise's grain, so that a JPEG is as large as a photograph's
_NAMES = tuple(peer.name for peer in PEERS)


@dataclass(frozen=True)
class Comparison:
    """What systems are compared on; `pythons` are the interpreters of those that could be installed."""

    network: Path
    examples: Sequence[Example]
    threads: int
    workers: int
    load: Load
    home: Path
    progress: Progress
    pythons: dict[Peer, Path] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def said(self) -> str:
        height, width = image_size(self.network)
        return (
            f"{self.network.name} at {height} x {width} pixels, {len(self.examples)} images as JPEG; {self.workers} "
            f"workers of {self.threads} threads; {self.load.at_once} clients that each wait for their answer; all "
            "answers compared with the unsplit network's."
        )

    def install(self, peers: Sequence[Peer], cache: Path) -> None:
        for peer in peers:
            try:
                self.pythons[peer] = prepared(peer, cache, self.progress) or Path(sys.executable)
            except UnavailableError as error:
                self.left_out[peer.name] = str(error)

    def rounds(self, count: int) -> list[Round]:
        for peer in [*self.pythons]:
            self._try(peer, "a first start", Load(1, len(self.examples), 1, 0))
        done = []
        for number in range(count):
            for peer in [*self.pythons][:: 1 if number % 2 == 0 else -1]:
                done += self._try(peer, f"round {number + 1} of {count}", self.load)
        return [measured for measured in done if measured.system not in self.left_out]

    def _try(self, peer: Peer, what: str, load: Load) -> list[Round]:
        self.progress(f"{what}: {peer.name}")
        examples = [Example(example.image, None) for example in self.examples] if peer is NULL_PEER else self.examples
        try:
            with tempfile.TemporaryDirectory(dir=self.home) as home:
                return [asyncio.run(self._round(peer, Path(home), examples, load))]
        except UnavailableError as error:
            self.left_out[peer.name] = str(error)
            del self.pythons[peer]
            return []

    async def _round(self, peer: Peer, home: Path, examples: Sequence[Example], load: Load) -> Round:
        python, image = self.pythons[peer], examples[0].image
        async with running(peer, python, self.network, self.threads, self.workers, home, image) as server:
            return await measure(server, examples, load)


def image_size(network: Path) -> tuple[int, int]:
    try:
        session = onnxruntime.InferenceSession(str(network), providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own are of many kinds
        raise InputError(f"{network} cannot be read as a network: {' '.join(str(error).split())[:200]}") from error
    inputs, outputs = _described(session.get_inputs()), _described(session.get_outputs())
    match inputs, outputs:
        case [([_, 3, int(height), int(width)], "tensor(float)")], [([_, _], "tensor(float)")]:
            return height, width
    raise InputError(
        f"{network} has inputs {inputs} and outputs {outputs}: give one whose input is (N, 3, H, W) float32 of a fixed "
        "size, and whose output is (N, classes)"
    )


def _described(tensors: Sequence[Any]) -> list[tuple[list[Any], str]]:
    return [(tensor.shape, tensor.type) for tensor in tensors]


def examples_of(network: Path) -> list[Example]:
    size, classifier = image_size(network), Classifier(str(network), 1)
    images = [photograph(size[::-1], seed, _COARSE) for seed in range(_IMAGES)]
    return [Example(image, classifier.answer(image)["predictions"]) for image in images]


def command(
    network: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="An .onnx file with one input (N, 3, H, W), RGB from 0 to 1, and one output (N, classes) before "
            "softmax; by default --model.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="A network of the zoo, where no file is given.")] = "squeezenet",
    size: Annotated[int, typer.Option(min=32, help="The side of its images, in pixels.")] = 96,
    only: Annotated[
        list[str] | None, typer.Option("--peer", help=f"{', '.join(_NAMES)}; may be repeated; all by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each system is started and loaded, in turn.")] = 3,
    queries: Annotated[
        int,
        typer.Option(
            min=1,
            help="Queries at once, in all rounds. Of 29,200, by LoadGen's formula, the p99 is right within 0.15 points "
            "with 99% confidence.",
        ),
    ] = 29_200,
    alone: Annotated[int, typer.Option(min=1, help="Queries one at a time, in all rounds.")] = 1_500,
    at_once: Annotated[int, typer.Option(min=1, max=1000, help="Queries in flight.")] = 32,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Workers of each system; by default one for each processor.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Threads of a pass, in each worker of a peer.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Compare serfer serve with uvicorn, a Lambda handler, LitServe, BentoML, Ray Serve and MLServer.

    Each is installed on first use in an environment of its own, below SERFER_CACHE_DIR (docs/results/peers.md).
    """
    if strange := next((name for name in only or () if name not in _NAMES), None):
        raise UsageError(f"--peer is one of {', '.join(_NAMES)}, not {strange!r:.80}")
    load = Load(max(1, alone // rounds), max(1, queries // rounds), at_once, 4 * at_once)
    chosen = [peer for peer in PEERS if not only or peer.name in only]
    with status_line() as progress, tempfile.TemporaryDirectory(prefix="serfer-peers-") as home:
        file = network or Path(home, f"{model}.onnx")
        if network is None:
            progress(f"writing {model}")
            write_onnx(model, size, file)
        comparison = Comparison(
            file.resolve(), examples_of(file), threads, workers or processors(), load, Path(home), progress
        )
        comparison.install([*chosen, NULL_PEER], load_settings().cache_dir)
        done, said = comparison.rounds(rounds), comparison.said
    publish(results(chosen, done, comparison.left_out, [said, *stamp_now().lines]), as_json=as_json)
