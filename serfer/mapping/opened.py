"""The plans, with their sessions, and the images that a process has open for windows: the latest few of each.

One that is still in use stays open. A forked process opens its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Annotated

from serfer.core.costs.sessions import function_session_bytes
from serfer.core.dataclass_codec import Bounds
from serfer.core.errors import InputError, PlanError
from serfer.core.frame_decoder import FrameDecoder
from serfer.core.options import with_values
from serfer.core.plan import parse_plan
from serfer.core.plan.image_normalisation import ImageStatistics
from serfer.core.plan.layout import PLAN_FILE
from serfer.core.units import MIB
from serfer.mapping.boxes import decoder_of
from serfer.mapping.options import WindowOptions
from serfer.mapping.steps import windows_of
from serfer.pipeline.blocking import Pipeline
from serfer.plan_directory import load_plan
from serfer.raster import RasterSource, open_raster
from serfer.raster.objects import Bucket
from serfer.raster.place import parse_place
from serfer.settings import Settings, load_settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer.wiring.plan_cache import cached_plan

_MOST_PLAN_BYTES, _MOST_TEXT = 64 * MIB, 4096
Count = Annotated[int, Bounds(0)]
_THREADS = "OMP_NUM_THREADS"  # by which Dask, Ray and Slurm's scripts say how many threads a process may compute on
_OPENING = defaultdict[int, Lock](Lock)  # by process: a forked one has no lock that another thread held


@dataclass(frozen=True, slots=True)
class MapSpec:
    """What all windows of a map have in common: where plan and image are, and what tells them from others.

    `version` is SerFer's, `digest` the plan's, `identity` the image's; an array of `size`, whose pixels come with its
    windows, has no `image`. With `boxes` the results are a detector's boxes. `options` are JSON, `normalisation` what
    was measured of the whole image, if it is needed.
    """

    version: str
    plan: str
    digest: str
    size: tuple[Count, Count]
    options: str
    image: str = ""
    identity: str = ""
    boxes: bool = False
    normalisation: ImageStatistics | None = None

    def __post_init__(self) -> None:
        texts = self.version, self.plan, self.digest, self.image, self.identity
        if any(len(text) > _MOST_TEXT or min(text, default=" ") < " " for text in texts):
            raise InputError(f"places of a window have no control characters, and at most {_MOST_TEXT:,} others")
        _ = self.window_options  # what it is not is refused before plan or image are opened

    @property
    def window_options(self) -> WindowOptions:
        try:
            return with_values(WindowOptions, None, {**json.loads(self.options)})
        except (TypeError, ValueError, RecursionError):
            raise InputError("the options of a window are an object in JSON: make the windows again") from None


class OpenPlan:
    """A map plan whose windows this process computes, in threads of its own."""

    def __init__(self, place: str, digest: str | None = None) -> None:
        self._settings, self._opening, self._pipeline = load_settings(), Lock(), list[Pipeline]()
        self._directory = _local_directory(place, self._settings)
        self.plan = load_plan(self._directory, f"{place}/{PLAN_FILE}")
        self.known = windows_of(self.plan)
        if digest is not None and self.plan.digest != digest:
            raise PlanError(
                f"{place} is another plan, {self.plan.digest[:12]}, than that of the window, {digest[:12]}: make the "
                "windows again"
            )

    @cached_property
    def decoder(self) -> FrameDecoder:
        return decoder_of(self.plan, self._directory)

    def pipeline(self) -> Pipeline:
        with self._opening:
            if not self._pipeline:
                self._pipeline.append(pipeline := self._open())
                _close_after(self, pipeline)
        return self._pipeline[0]

    def _open(self) -> Pipeline:
        settings, given = self._settings, os.environ.get(_THREADS, "")
        threads = settings.session_threads or (int(given) if given.isdecimal() and int(given) else None)
        room = settings.sessions_mb or -(-int(function_session_bytes(self.plan, 0)) // MIB)
        settings = settings.model_copy(update={"session_threads": threads, "sessions_mb": room})
        return open_pipeline(
            self._directory, store="memory://", workers="inprocess", hedge=False, share=False, settings=settings
        )


class OpenImage:
    """The image of a map's windows."""

    def __init__(self, place: str, identity: str | None = None) -> None:
        self.source = open_raster(place)
        _close_after(self, self.source)
        self.identity = hashlib.sha256(json.dumps(self.source.identity, sort_keys=True).encode()).hexdigest()
        if identity is not None and self.identity != identity:
            raise InputError(f"{place} was changed since its windows were made: make them again")


def _close_after(user: OpenPlan | OpenImage, opened: Pipeline | RasterSource) -> None:
    """Close what is open when its user is collected; not at the end of a process, and not in a forked one."""
    process = os.getpid()
    weakref.finalize(user, lambda: opened.close() if process == os.getpid() else None).atexit = False


_plans = lru_cache(2)(lambda _process, place, digest: OpenPlan(place, digest))
_images = lru_cache(8)(lambda _process, place, identity: OpenImage(place, identity))


def open_plan(place: str, digest: str) -> OpenPlan:
    with _OPENING[process := os.getpid()]:
        return _plans(process, place, digest)


def open_image(place: str, identity: str) -> OpenImage:
    with _OPENING[process := os.getpid()]:
        return _images(process, place, identity)


def _local_directory(place: str, settings: Settings) -> Path:
    where = parse_place(place)
    if isinstance(where, Path):
        return where
    bucket = Bucket(where)  # one client, which takes a while to make, for all files

    def fetch(name: str, most: int) -> bytes:
        bucket.place = replace(where, key=f"{where.key.rstrip('/')}/{name}")
        return bucket.first_bytes(most)

    text = fetch(PLAN_FILE, _MOST_PLAN_BYTES).decode(errors="replace")
    plan = parse_plan(text, f"{where}/{PLAN_FILE}")

    def make(directory: Path) -> None:
        (directory / PLAN_FILE).write_text(text, encoding="utf-8")
        for artefact in plan.artefacts:
            (path := directory / artefact.path).parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(fetch(artefact.path, artefact.bytes))

    return cached_plan(settings.cache_dir, f"s3-{plan.digest[:32]}", make)
