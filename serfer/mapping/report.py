"""What a map did: while it runs, and at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from serfer.core.plan.image_normalisation import ImageStatistics
from serfer.mapping.estimate import Estimate


@dataclass(frozen=True)
class WindowFailure:
    """A window that failed for good, by its number and the rows and columns that it writes, and its error.

    Of a pass before the map, which is number `in_pass` from 0, they are the pixels of the image that it reads.
    """

    window: int
    rows: tuple[int, int]
    cols: tuple[int, int]
    error: str
    in_pass: int | None = None


@dataclass(frozen=True)
class MapProgress:
    """How far a map is: windows in all, those that were there when it started, those it has done since, and failures.

    `usd` are the dollars spent, `seconds` since it started; `left_s` is None until a window is done. `paused` says why
    no window may start now, empty where some may. `doing` says what is done beside windows: the image is measured,
    or the result is written; it is empty while windows are computed.
    """

    image: str
    windows: int
    resumed: int
    done: int
    failed: int
    usd: float
    seconds: float
    paused: str = ""
    doing: str = ""

    @property
    def rate(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def left_s(self) -> float | None:
        missing = self.windows - self.resumed - self.done - self.failed
        return missing / self.rate if self.rate else None


class MapWatcher:
    """What a caller wants to know while a map runs, here nothing; its methods are called in the caller's own thread."""

    def note(self, text: str) -> None:
        """Take a warning."""

    def start(self, image: str, estimate: Estimate) -> None:
        """Take what an image will take."""

    def progress(self, progress: MapProgress) -> None:
        """Take how far the image is."""


@dataclass(frozen=True)
class MapResult:
    """A file that a map made: its place, the outputs of the network in it, its size in pixels, channels and type.

    Of boxes the size is the image's, there are no channels, the type is "boxes", and `boxes` is how many there are.
    """

    path: str
    outputs: tuple[str, ...]
    height: int
    width: int
    channels: int
    dtype: str
    boxes: int | None = None


@dataclass(frozen=True)
class MapComparison:
    """How far a map is from the network itself, which was run in one piece on `parts` of the image.

    Of `pixels` of the results on these, `error` is the largest difference relative to the range of values, None where
    they are classes; `other_classes` are those of another class, unless its score is as large but for rounding.
    `wrong` says that this is more than rounding, worst in window `worst_window`. Nothing was compared where `skipped`
    says why.
    """

    parts: int = 0
    pixels: int = 0
    error: float | None = None
    other_classes: int = 0
    seconds: float = 0.0
    wrong: bool = False
    worst_window: int | None = None
    skipped: str = ""


@dataclass(frozen=True)
class MapReport:
    """What a map of one image did.

    Of its windows, those of passes before the map among them, `resumed` were there when it started, `computed` are
    queries, `empty` held no data. `results` are its files, none where `failures` or a `stopped` reason left windows
    out: they are computed when it is run again. `result`, which is None then, `height`, `width`, `channels` and `dtype`
    are those of the first file. `window_ms` are percentiles of the queries' latencies, in milliseconds; `notes` say
    what of the image is not kept, or read otherwise than it is stored; `no_data_pixels` of it held no data, as far as
    this run's windows read it. In `paused_s` of its `seconds` no window could start, beside online load. `statistics`
    are the image's, where the plan normalises by them. `usd_ratio` are the dollars of its queries relative to what was
    predicted for them, None where none ran. `compared` says how far
    results are from the network on parts of the image, None where that was not asked for or comes too early.
    """

    image: str
    result: str | None
    height: int
    width: int
    channels: int
    dtype: str
    plan: str
    windows: int
    resumed: int
    computed: int
    empty: int
    failures: tuple[WindowFailure, ...]
    stopped: str
    seconds: float
    cost_usd: float
    window_ms: dict[str, float]
    estimate: Estimate
    notes: tuple[str, ...]
    results: tuple[MapResult, ...] = ()
    no_data_pixels: int = 0
    paused_s: float = 0.0
    statistics: ImageStatistics | None = None
    usd_ratio: float | None = None
    compared: MapComparison | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def percentiles(values: list[float]) -> dict[str, float]:
    ranked = sorted(values)
    if not ranked:
        return {}
    last = len(ranked) - 1
    return {f"p{percent}": round(ranked[round(last * percent / 100)], 3) for percent in (50, 90, 99, 100)}
