"""Charts of an application's variants: accuracy with its interval against latency, and against dollars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from serfer.core.errors import UsageError
from serfer.core.variants import Application, Variant
from serfer.pictures import check_suffix, draw_charts
from serfer.pictures.charts import Chart, Curve, is_wide

_MILLION: Final = 1e6
_ROOM: Final = 0.1  # of the range of accuracies, below the least and above the largest


def draw_variants(application: Application, out: Path) -> None:
    """Draw the variants whose accuracy is known; the format follows from the suffix of `out`.

    Raises UsageError where there are none.
    """
    check_suffix(out)
    title = f"{application.name}: accuracy of variants"
    stamp = ("lines are 95% intervals; latency is the 95th percentile of a warm query, measured or predicted",)
    draw_charts(title, variant_charts(application), [*_legend(application)], stamp, out)


def variant_charts(application: Application) -> list[Chart]:
    """Return accuracy against latency, and against dollars."""
    variants = [each for one in application.networks for each in one.variants if each.accuracy]
    if not variants:
        raise UsageError(f"application {application.name} has no variant whose accuracy is known: register a network")
    return [
        _chart("accuracy against latency", "ms", variants, lambda each: each.latency_ms.value),
        _chart("accuracy against dollars", "$ a million queries", variants, lambda each: each.usd.value * _MILLION),
    ]


def _chart(title: str, label: str, variants: list[Variant], of: Callable[[Variant], float]) -> Chart:
    ends = [end for each in variants if each.accuracy for end in each.accuracy.interval]
    room = _ROOM * (max(ends) - min(ends))
    curves = tuple(curve for each in variants for curve in _curves(each, of(each)))
    return Chart(
        title,
        label,
        "share of images",
        curves,
        x_log=is_wide(map(of, variants)),
        y_min=max(0.0, min(ends) - room),
        y_max=min(1.0, max(ends) + room),
    )


def _curves(variant: Variant, x: float) -> Iterator[Curve]:
    """Yield the interval as a line, and the share as a point."""
    if variant.accuracy:
        name = f"{variant.network}@{variant.version}"
        low, high = variant.accuracy.interval
        yield Curve(name, ((x, low), (x, high)))
        yield Curve(name, ((x, variant.accuracy.share),))


def _legend(application: Application) -> Iterator[str]:
    live = application.live_release.networks if application.live_release else {}
    canary = application.canary.networks if application.canary else {}
    for each in application.networks:
        if each.variants:
            states = [name for name, of in (("live", live), ("canary", canary)) if of.get(each.network) == each.version]
            yield f"{each.network}@{each.version}: {', '.join([f'{len(each.variants)} variants', *states])}"
