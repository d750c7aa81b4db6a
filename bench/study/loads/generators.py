"""Loads made from a seed, by name and parameters: `mmpp:seed=1,hours=24`.

Each draws its rows' counts of queries from a Poisson distribution around a level that changes in its own way, `row_s`
seconds a row; the same text gives the same load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from serfer.core.errors import UsageError
from serfer.cost.loads.trace import MAX_ROWS, Floats, Trace

_S_PER_HOUR, _H_PER_DAY = 3600.0, 24.0
_LARGEST: Final = 1e9
_LARGEST_OF: Final = {"swing": 1.0, "spread": 5.0, "factor": 1000.0, "peak_hour": 24.0, "crowds": 10_000.0}
Parameters = Mapping[str, float]


@dataclass(frozen=True)
class LoadGenerator:
    """A kind of load: what it is, its parameters with what they are by default, and its level at each row.

    `level` takes the parameters, the rows' beginnings in seconds and a source of rng, and returns queries a second.
    `noisy` says whether counts vary around the level.
    """

    about: str
    defaults: Parameters
    level: Callable[[Parameters, Floats, Generator], Floats]
    noisy: bool = True


def _steady(given: Parameters, times: Floats, rng: Generator) -> Floats:
    del rng
    return np.full(times.shape, given["rate"])


def _switching(given: Parameters, times: Floats, rng: Generator) -> Floats:
    """Go to and fro between two levels, each held for exponentially distributed times; begin in the low one."""
    level, now, high = np.full(times.shape, given["low"]), 0.0, False
    end, row_s = float(times[-1]), given["row_s"]
    while now <= end:
        stay = max(row_s, rng.exponential(given["high_s"] if high else given["low_s"]))
        if high:
            begin, until = np.searchsorted(times, (now, now + stay))
            level[begin:until] = given["high"]
        now, high = now + stay, not high
    return level


def _daily(given: Parameters, times: Floats, rng: Generator) -> Floats:
    del rng
    hours = times / _S_PER_HOUR - given["peak_hour"]
    return np.asarray(given["mean"] * (1 + given["swing"] * np.cos(2 * math.pi * hours / _H_PER_DAY)))


def _flash_crowds(given: Parameters, times: Floats, rng: Generator) -> Floats:
    """Rise steeply to `peak` at random times, and fade: linearly over `rise_s`, then exponentially with `fade_s`."""
    level = np.full(times.shape, given["base"])
    for begin in rng.uniform(0.0, float(times[-1]), int(given["crowds"])):
        since = times - begin
        rising = np.clip(since / given["rise_s"], 0.0, 1.0)
        fading = np.exp(-np.maximum(since - given["rise_s"], 0.0) / given["fade_s"])
        level = np.maximum(level, given["base"] + (given["peak"] - given["base"]) * rising * fading)
    return level


def _bursts(given: Parameters, times: Floats, rng: Generator) -> Floats:
    del rng
    row_s = given["row_s"]
    number = np.floor(times / given["every_s"] + 1e-9)
    first = np.concatenate(([True], number[1:] > number[:-1]))
    return np.where(first, given["queries"] / row_s, 0.0)


def _sporadic(given: Parameters, times: Floats, rng: Generator) -> Floats:
    """Have single queries come after gaps with a heavy tail: lognormal, of a median, at least a row."""
    median, row_s = math.log(given["gap_s"]), given["row_s"]
    rates, now = np.zeros(times.shape), 0.0
    while (number := int((now := now + max(rng.lognormal(median, given["spread"]), row_s)) / row_s)) < times.size:
        rates[number] = 1.0 / row_s
    return rates


def _periodic(given: Parameters, times: Floats, rng: Generator) -> Floats:
    """Have queries come every so often, a row at least, with a normally distributed error that does not add up."""
    row_s = given["row_s"]
    beats = np.arange(1, times.size) * max(given["every_s"], row_s)
    beats = beats[beats < times[-1]]
    rows = np.clip((beats + rng.normal(0.0, given["jitter_s"], beats.shape)) / row_s, 0, times.size - 1)
    counts = np.bincount(rows.astype(np.int64), minlength=times.size)
    return np.asarray(counts * given["queries"] / row_s)


def _bursty_days(given: Parameters, times: Floats, rng: Generator) -> Floats:
    """Follow the day's sine, times `factor` in one state and 1 / `factor` in the other, each held as by `mmpp`."""
    factor = max(given["factor"], 1.0)
    state = _switching({**given, "low": 1.0 / factor, "high": factor}, times, rng)
    return _daily(given, times, rng) * state


_COMMON: Final = {"hours": 24.0, "row_s": 1.0, "seed": 0.0}
_TWO_WEEKS: Final = {"hours": 336.0, "row_s": 60.0}
GENERATORS: Final[Mapping[str, LoadGenerator]] = {
    "poisson": LoadGenerator("independent queries at one rate", {"rate": 50.0, **_COMMON}, _steady),
    "mmpp": LoadGenerator(
        "two rates, each held for exponentially distributed times: low_s, high_s on average, a row at least",
        {"low": 10.0, "high": 100.0, "low_s": 1800.0, "high_s": 600.0, **_COMMON},
        _switching,
    ),
    "diurnal": LoadGenerator(
        "a sine over the day",
        {"mean": 50.0, "swing": 0.8, "peak_hour": 14.0, **_COMMON, "hours": 168.0, "row_s": 60.0},
        _daily,
    ),
    "flash": LoadGenerator(
        "a steady load with crowds that come suddenly and fade",
        {"base": 10.0, "peak": 200.0, "crowds": 8.0, "rise_s": 60.0, "fade_s": 600.0, **_COMMON},
        _flash_crowds,
    ),
    "bursts": LoadGenerator(
        "the SerFer paper's: so many queries at once, every so often",
        {"queries": 1000.0, "every_s": 150.0, **_COMMON},
        _bursts,
        noisy=False,
    ),
    "sporadic": LoadGenerator(
        "single queries after lognormal gaps with the median gap_s",
        {"gap_s": 1200.0, "spread": 1.0, **_COMMON, **_TWO_WEEKS},
        _sporadic,
        noisy=False,
    ),
    "periodic": LoadGenerator(
        "so many queries at once every so often, give or take jitter_s (a standard deviation)",
        {"queries": 1.0, "every_s": 1800.0, "jitter_s": 60.0, **_COMMON, **_TWO_WEEKS},
        _periodic,
        noisy=False,
    ),
    "bursty-days": LoadGenerator(
        "a sine over the day that jumps up and down by a factor, for low_s and high_s on average",
        {
            "mean": 20.0,
            "swing": 0.8,
            "peak_hour": 14.0,
            "factor": 2.0,
            "low_s": 1800.0,
            "high_s": 900.0,
            **_COMMON,
            **_TWO_WEEKS,
        },
        _bursty_days,
    ),
}
OF_ONE_FUNCTION: Final = frozenset({"sporadic", "periodic", "bursty-days"})
"""The loads that are about keeping a function warm, not about instances that pay."""


def is_generator(text: str) -> bool:
    return text.partition(":")[0] in GENERATORS


def describe_generators() -> str:
    lines = []
    for name, one in GENERATORS.items():
        given = ",".join(f"{key}={value:g}" for key, value in one.defaults.items())
        lines.append(f"{name}:{given}  {one.about}")
    return "\n".join(lines)


def parameters_of(text: str) -> dict[str, float]:
    name, _, rest = text.partition(":")
    if name not in GENERATORS:
        raise UsageError(f"there is no generator {name[:40]!r}: there are {', '.join(GENERATORS)}")
    kind = GENERATORS[name]
    return {**kind.defaults, **_parameters(name, kind, rest)}


def generate(text: str) -> Trace:
    given = parameters_of(text)
    kind = GENERATORS[text.partition(":")[0]]
    rows = math.ceil(given["hours"] * _S_PER_HOUR / given["row_s"])
    if not 1 <= rows <= MAX_ROWS:
        raise UsageError(f"{text}: that makes {rows:,} rows, not 1 to {MAX_ROWS:,}: change hours or row_s")
    rng = np.random.default_rng(int(given["seed"]))
    times = np.arange(rows, dtype=np.float64) * given["row_s"]
    level = kind.level(given, times, rng)
    rates = rng.poisson(level * given["row_s"]) / given["row_s"] if kind.noisy else level
    return Trace(text, np.full(rows, given["row_s"]), np.asarray(rates, dtype=np.float64))


def _parameters(name: str, kind: LoadGenerator, text: str) -> dict[str, float]:
    given: dict[str, float] = {}
    for part in text.split(",") if text else ():
        key, _, value = part.partition("=")
        if key not in kind.defaults:
            raise UsageError(f"{name} has no parameter {key[:40]!r}: it has {', '.join(kind.defaults)}")
        try:
            given[key] = float(value)
        except ValueError as error:
            raise UsageError(f"{name}: {key} is a number, not {value[:40]!r}") from error
        least, most = _bounds(key)
        if not least <= given[key] <= most:
            raise UsageError(f"{name}: {key} is {least:g} to {most:g}, not {value[:40]!r}")
    return given


def _bounds(key: str) -> tuple[float, float]:
    if key in _LARGEST_OF:
        return 0.0, _LARGEST_OF[key]
    return (1e-3 if key.endswith("_s") or key == "hours" else 0.0), _LARGEST
