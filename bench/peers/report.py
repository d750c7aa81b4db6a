"""Rounds of all systems as tables: each beside bare uvicorn, and the client's own limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from serfer.cli.shared.tables import Results, Table
from serfer_bench.core.quantiles import percentiles, quantile_interval
from serfer_bench.peers.peers import BARE, NULL, Peer
from serfer_bench.peers.rounds import Round

_MB: Final = 1e6
HEAD: Final = (
    *("system", "p50 ms at 1", "x bare p50", "a second", "x bare rate", "p99 ms", "95%"),
    *("MB", "start s", "processor ms a query", "first process", "queries"),
)
RUN_HEAD: Final = ("system", "what it is", "how it is run", "% of the client's limit", "client's % of a processor")


def results(peers: Sequence[Peer], rounds: Sequence[Round], left_out: Mapping[str, str], notes: list[str]) -> Results:
    """Return systems in order; those that were left out with the reason."""
    by_name = {name: [one for one in rounds if one.system == name] for name in (*(peer.name for peer in peers), NULL)}
    bare = by_name.get(BARE, [])
    body = [
        _row(by_name[peer.name], bare) if by_name[peer.name] else (peer.name, "left out", *[""] * (len(HEAD) - 2))
        for peer in peers
    ]
    limit = median(one.rate for one in by_name[NULL]) if by_name[NULL] else 0.0
    run = [_run_row(peer, by_name[peer.name], limit, left_out.get(peer.name, "")) for peer in peers]
    said = (
        f"The client alone, against an application that computes nothing: {limit:,.0f} queries a second."
        if limit
        else f"The client's own limit is not known: {left_out.get(NULL, 'it was not measured')}"
    )
    return Results(_records(rounds, left_out), [Table(HEAD, body), Table(RUN_HEAD, run)], [said, *notes])


def _row(own: Sequence[Round], bare: Sequence[Round]) -> tuple[str, ...]:
    together = [ms for one in own for ms in one.together_ms]
    low, high = quantile_interval(together, 0.99)
    starts = [one.start_s for one in own]
    return (
        own[0].system,
        f"{median(map(_p50, own)):.2f}",
        _beside([_p50(one) for one in own], [_p50(one) for one in bare]),
        f"{median(one.rate for one in own):,.0f}",
        _beside([one.rate for one in own], [one.rate for one in bare]),
        f"{percentiles(together, 99)[0]:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{max(one.bytes for one in own) / _MB:,.0f}",
        f"{median(starts):.1f} ({min(starts):.1f} to {max(starts):.1f})",
        f"{median(one.processor_ms for one in own):.2f}",
        f"{median(one.first_ms for one in own):.2f}",
        f"{len(together):,}",
    )


def _p50(one: Round) -> float:
    return median(one.alone_ms)


def _beside(own: Sequence[float], bare: Sequence[float]) -> str:
    """Return the median ratio of rounds to bare uvicorn's, and the extremes."""
    ratios = sorted(one / other for one, other in zip(own, bare, strict=False))
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "-"


def _run_row(peer: Peer, own: Sequence[Round], limit: float, reason: str) -> tuple[str, ...]:
    if not own:
        return peer.name, peer.version, f"left out: {' '.join(reason.split())}", "", ""
    share = f"{median(one.rate for one in own) / limit:.0%}" if limit else "-"
    return peer.name, peer.version, peer.about, share, f"{median(o.client_share for o in own):.0%}"


def _records(rounds: Sequence[Round], left_out: Mapping[str, str]) -> Iterable[Mapping[str, Any]]:
    yield from (asdict(one) for one in rounds)
    yield from ({"system": name, "left_out": reason} for name, reason in left_out.items())
