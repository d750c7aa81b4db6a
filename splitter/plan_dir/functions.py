"""Writes the functions of a stage: weights files, and graphs that are named by content, so that equal ones are one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serfer.core.plan import Artefact, Function
from serfer.core.plan.layout import weights_file
from serfer.plan_directory import file_sha256
from serfer.splitter.plan_dir.emit import TileGraph
from serfer.splitter.plan_dir.weights import WeightsFile


@dataclass(frozen=True)
class StageFiles:
    """A stage's functions, their weights files, and the path of each tile's graph."""

    functions: tuple[Function, ...]
    weights: tuple[WeightsFile, ...]
    graphs: tuple[str, ...]


def write_functions(tiles: Sequence[TileGraph], groups: Sequence[Sequence[int]], directory: Path) -> StageFiles:
    """Write a stage's weights files, one for each group of tiles, and graphs; tiles of one shape share a graph."""
    directory.mkdir()
    functions, files, graphs = [], [], [""] * len(tiles)
    for number, group in enumerate(groups):
        weights = {name: value for tile in group for name, value in tiles[tile].weights.items()}
        file = WeightsFile(weights_file(number), weights, half_weights([tiles[tile] for tile in group]))
        file.write(directory / file.name)
        artefacts: dict[Path, Artefact] = {}
        for tile in group:
            model = tiles[tile].model({file.name: file}).SerializeToString()
            path = directory / f"{hashlib.sha256(model).hexdigest()[:16]}.onnx"
            if path not in artefacts:
                path.write_bytes(model)
                artefacts[path] = artefact(path, directory.parent)
            graphs[tile] = artefacts[path].path
        functions.append(Function(artefact(directory / file.name, directory.parent), tuple(artefacts.values())))
        files.append(file)
    return StageFiles(tuple(functions), tuple(files), tuple(graphs))


def half_weights(tiles: Sequence[TileGraph]) -> frozenset[str]:
    return frozenset().union(*(tile.half for tile in tiles))


def artefact(path: Path, root: Path) -> Artefact:
    return Artefact(path.relative_to(root).as_posix(), path.stat().st_size, file_sha256(path))
