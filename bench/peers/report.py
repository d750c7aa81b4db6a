"""Rounds of all systems as tables: each beside bare uvicorn, and the client's own limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from serfer_bench.core.quantiles import percentiles, quantile_interval
from serfer_bench.core.tables import Results, Table
from serfer_bench.peers.peers import BARE, NULL, Peer
from serfer_bench.peers.rounds import Round

_MB: Final = 1e6
HEAD: Final = (
    *("system", "p50 ms at 1", "x bare p50", "a second", "x bare rate", "p99 ms", "95%"),
    *("MB", "start s", "processor ms a query", "first process", "queries"),
)
RUN_HEAD: Final = ("system", "what it is", "how it is run", "% of the client's limit", "client's % of a processor")


def results(peers: Sequence[Peer], rounds: Sequence[Round], left_out: Mapping[str, str], notes: list[str]) -> Results:
    by_name = {
        name: [measured for measured in rounds if measured.system == name]
        for name in (*(peer.name for peer in peers), NULL)
    }
    bare = by_name.get(BARE, [])
    body = [
        _row(by_name[peer.name], bare) if by_name[peer.name] else (peer.name, "left out", *[""] * (len(HEAD) - 2))
        for peer in peers
    ]
    limit = median(measured.rate for measured in by_name[NULL]) if by_name[NULL] else 0.0
    run = [_run_row(peer, by_name[peer.name], limit, left_out.get(peer.name, "")) for peer in peers]
    said = (
        f"The client alone, against an application that computes nothing: {limit:,.0f} queries a second."
        if limit
        else f"The client's own limit is not known: {left_out.get(NULL, 'it was not measured')}"
    )
    return Results(_records(rounds, left_out), [Table(HEAD, body), Table(RUN_HEAD, run)], [said, *notes])


def _row(own: Sequence[Round], bare: Sequence[Round]) -> tuple[str, ...]:
    together = [ms for measured in own for ms in measured.together_ms]
    low, high = quantile_interval(together, 0.99)
    starts = [measured.start_s for measured in own]
    return (
        own[0].system,
        f"{median(map(_p50, own)):.2f}",
        _beside([_p50(measured) for measured in own], [_p50(measured) for measured in bare]),
        f"{median(measured.rate for measured in own):,.0f}",
        _beside([measured.rate for measured in own], [measured.rate for measured in bare]),
        f"{percentiles(together, 99)[0]:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{max(measured.bytes for measured in own) / _MB:,.0f}",
        f"{median(starts):.1f} ({min(starts):.1f} to {max(starts):.1f})",
        f"{median(measured.processor_ms for measured in own):.2f}",
        f"{median(measured.first_ms for measured in own):.2f}",
        f"{len(together):,}",
    )


def _p50(measured: Round) -> float:
    return median(measured.alone_ms)


def _beside(own: Sequence[float], bare: Sequence[float]) -> str:
    ratios = sorted(mine / theirs for mine, theirs in zip(own, bare, strict=False))
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "-"


def _run_row(peer: Peer, own: Sequence[Round], limit: float, reason: str) -> tuple[str, ...]:
    if not own:
        return peer.name, peer.version, f"left out: {' '.join(reason.split())}", "", ""
    share = f"{median(measured.rate for measured in own) / limit:.0%}" if limit else "-"
    return peer.name, peer.version, peer.about, share, f"{median(measured.client_share for measured in own):.0%}"


def _records(rounds: Sequence[Round], left_out: Mapping[str, str]) -> Iterable[Mapping[str, Any]]:
    yield from (asdict(measured) for measured in rounds)
    yield from ({"system": name, "left_out": reason} for name, reason in left_out.items())
