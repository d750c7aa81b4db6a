"""A plan in a few lines: what was chosen, how fast it is, what it costs, and what was left."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from serfer.cli.shared.display import counted, plain
from serfer.cli.shared.terminal import complain, out
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import HOURS_A_MONTH
from serfer.core.costs.pricing import Circumstances, Prices, price
from serfer.core.plan import AS_IS, Alternative, Plan
from serfer.core.units import MS_PER_S
from serfer.plan_directory import load_plan
from serfer.settings import load_settings

_MILLION = 1_000_000
_WHOLE_MS = 10  # from here on, fractions of a millisecond say nothing
_ENDPOINT_ZONES = 2  # of a deployment's VPC, in which drivers reach Lambda by an endpoint
_SHOWN = 5  # labels
_MOST_TEXT = 90  # characters of grids and memory sizes


def print_summary(
    plan: Plan, directory: Path, facts: AwsFacts, per_month: Sequence[int] = (), given: Sequence[str] = ()
) -> None:
    prices = price(plan, facts, Circumstances())
    idle = idle_line(prices) if prices.stored else ""
    lines = chosen_line(plan), figures_line(prices, per_month), idle, others_line(plan, given)
    for line in filter(None, lines):
        out.print(plain(line))
    out.print(plain(next_line(directory)), soft_wrap=True)


class Steps:
    """Shows the steps in which a plan is made, and knows whether there were any: a plan that is there has none."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.made = False
        self._progress = progress

    def __call__(self, text: str) -> None:
        self.made = True
        self._progress(text)


def in_cache(find: Callable[[Steps], Path], progress: Callable[[str], None], *, again: bool = False) -> Path:
    """Return the plan directory in the cache that `find` returns; say what was chosen if it is made now, or `again`."""
    steps = Steps(progress)
    directory = find(steps)
    if steps.made or again:
        plan = load_plan(directory)
        complain(chosen_line(plan))
        complain(figures_line(price(plan, load_settings().facts(), Circumstances())))
    return directory


def chosen_line(plan: Plan) -> str:
    name, first = plan.model, plan.stages[0]
    if plan.windows:
        kinds = counted(len(first.tiles), "kind")
        size = f"{plan.input.height:,} x {plan.input.width:,} pixels"
        return f"{name}: windows of at most {size}, of {kinds}, in one function of {first.memory_mb:,} MB"
    if plan.tasks == 1:
        weights = {"fetched": ", which fetches its weights", "image": " in a container image"}.get(first.weights_in, "")
        many = f", for images of {plan.sizes.input}" if plan.sizes else ""
        return f"{name} is kept whole: one function of {first.memory_mb:,} MB{weights}{many}"
    mine = _chosen(plan)
    what, invocations = mine.stages if mine else "", mine.tasks if mine else plan.tasks
    if not what or len(what) > _MOST_TEXT:
        what = counted(len(plan.stages), "stage")
    return f"{name} is split into {what}: {counted(invocations, 'invocation')} a query"


def figures_line(prices: Prices, per_month: Sequence[int] = ()) -> str:
    """Return what a plan takes and costs: every command that names its price says this."""
    months = "".join(f", ${prices.month_usd(queries):,.2f} a month of {queries:,}" for queries in per_month)
    if per_month and prices.standing_usd:
        months += f", ${prices.standing_usd:,.2f} of it for an idle {prices.store}"
    return (
        f"{_ms(MS_PER_S * prices.warm.seconds)} ms warm, {_ms(MS_PER_S * prices.cold.seconds)} ms cold, "
        f"${prices.warm.usd * _MILLION:,.2f} a million queries, ${prices.query.usd * _MILLION:,.2f} with "
        f"{100 * prices.cold_share:.3g}% cold{months} ({prices.plan.times})"
    )


def idle_line(prices: Prices) -> str:
    """Return what stands idle: the store that a plan is priced over, and the one that serfer deploy package deploys."""
    store, facts = prices.store.partition("+")[0], load_settings().facts()
    if not prices.stored:
        return "no stage hands anything on through a store, so that serfer deploy package deploys s3, $0.00 idle"
    is_redis, is_cache = store == "redis", store in ("redis", "valkey")
    idle = f"an idle month ({HOURS_A_MONTH} h): ${prices.standing_usd:,.2f} for {prices.store}"
    if not is_cache:
        return f"{idle}; serfer deploy package deploys {store}"
    hours = (facts.redis_serverless if is_redis else facts.valkey).price_hour
    usd = HOURS_A_MONTH * (hours + _ENDPOINT_ZONES * facts.services.price_endpoint_hour)
    return (
        f"{idle}{', a node of your own' if is_redis else ''}; serfer deploy package deploys {store} as ElastiCache "
        f"Serverless in a VPC, ${usd:,.2f} with its endpoint, and says what a million queries cost there (serfer cost "
        "BUILD)"
    )


def others_line(plan: Plan, given: Sequence[str] = ()) -> str:
    mine = _chosen(plan)
    if mine is None or "--whole" in given:
        return ""
    if plan.tasks > 1:
        return _against_whole(mine, [other for other in plan.alternatives if other.tasks == 1], given)
    if plan.stages[0].operators[0].kind == AS_IS:
        return "it cannot be split: its operators run as given, in one task"
    if given:
        return f"{' and '.join(given)} ruled other plans out"
    return _against_split(mine, [other for other in plan.alternatives if other.fits])


def described(plan: Plan) -> list[str]:
    """Return a line on a plan's images, and one on its labels, with the command that gives what is missing."""
    if plan.preprocess and plan.windows:
        images = f"an image's pixels become {plan.preprocess.pixels_in_words}"
    elif plan.preprocess:
        size = plan.input.height, plan.input.width
        images = f"an image is {plan.preprocess.in_words(size, plan.sizes.input if plan.sizes else None)}"
    else:
        images = (
            "the plan takes arrays only (serfer run): serfer describe DIR --preprocess FILE says how an image becomes "
            "its input (docs/how-to/preprocess.md)"
        )
    lines = [images]
    names = plain(", ".join(plan.labels[:_SHOWN]))
    if plan.labels:
        lines.append(f"{len(plan.labels):,} labels: {names}{', ...' if len(plan.labels) > _SHOWN else ''}")
    elif plan.classifies:
        lines.append("no labels: classes are numbers; serfer describe DIR --labels FILE names them")
    return lines


def next_line(directory: Path) -> str:
    place = shlex.quote(str(directory))
    return f"next: serfer serve --plan {place} (all figures: serfer explain {place})"


def _against_split(mine: Alternative, fitting: Sequence[Alternative]) -> str:
    fastest = min([mine, *fitting], key=_warm_ms)
    if _ms(_warm_ms(fastest)) == _ms(_warm_ms(mine)):
        return "splitting would be slower; --grids 2x2 forces it"
    if fastest.tasks == 1:
        return f"splitting would be slower than {_priced(fastest)} (--objective latency)"
    kind = "faster, but dearer" if fastest.usd > mine.usd else "faster and cheaper"
    return f"{kind}: {_priced(fastest)} (--objective latency)"


def _against_whole(mine: Alternative, whole: Sequence[Alternative], given: Sequence[str]) -> str:
    if not whole:
        return ""
    fitting = [other for other in whole if other.fits]
    if not fitting:
        return "one function does not hold the network"
    best = min(fitting, key=lambda other: other.ms * other.usd)
    if best.ms < mine.ms and best.usd < mine.usd:
        without = f" without {' and '.join(given)}" if given else ""
        return f"faster and cheaper{without}: {_priced(best)}"
    return f"unsplit, {_priced(best)}"


def _chosen(plan: Plan) -> Alternative | None:
    return next((other for other in plan.alternatives if other.chosen), None)


def _warm_ms(other: Alternative) -> float:
    return other.ms if other.warm_ms is None else other.warm_ms


def _priced(other: Alternative) -> str:
    usd = other.usd if other.warm_usd is None else other.warm_usd
    return f"{other.stages}: {_ms(_warm_ms(other))} ms, ${usd * _MILLION:,.2f} a million"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE_MS else f"{value:.2g}"
