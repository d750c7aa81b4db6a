"""How exact `serfer study measure-aws` fits tails of invocations and starts, by how many it has: drawn.

Starts and warm invocations are drawn from exponential distributions of known means, and fitted as the kit does it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from serfer.cli.shared.options import JsonOption
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.tables import Column, Measurement, Results, publish, table_of
from serfer_bench.study.aws.probe import Extent
from serfer_bench.study.aws.tails import floor_and_tail, start_tail

_SHARES = (0.01, 0.1, 0.5, 1.0)
_ROUNDS, _SEED, _TENTH = 500, 0, 0.1
_NEW_ACCOUNT = 10
"""Environments of a new account, which starts no larger group."""
_UP_TO = [(Extent.up_to(group), group) for group in (16, 64)]


@dataclass(frozen=True)
class Row(Measurement):
    """Fits of so many starts and `warm` invocations, whose tail tau is `share` of the starts' tail sigma.

    `invoke_error` and `error` are the standard errors of both, `mean` is what is found of sigma on average and `single`
    what the fit of one exponential time finds, as shares of it; `within` is the share of probes that are within 10%.
    """

    share: Annotated[float, Column("tau / sigma", "g")]
    starts: Annotated[int, Column("starts")]
    warm: Annotated[int, Column("warm")]
    invoke_error: Annotated[float, Column("tau: error", ".0%")]
    mean: Annotated[float, Column("sigma: found / true", ".2f")]
    error: Annotated[float, Column("sigma: error", ".0%")]
    within: Annotated[float, Column("within 10%", ".0%")]
    single: Annotated[float, Column("fitted as one", ".2f")]


def fitted(share: float, starts: int, warm: int) -> Row:
    draws = np.random.default_rng(_SEED)
    invokes, found, single = np.empty((3, _ROUNDS))
    for number in range(_ROUNDS):
        cold = (draws.exponential(share, starts) + draws.exponential(1.0, starts)).tolist()
        invokes[number] = floor_and_tail(draws.exponential(share, warm).tolist())[1]
        found[number] = start_tail(cold, invokes[number])
        single[number] = floor_and_tail(cold)[1] - invokes[number]
    within = float(np.mean(np.abs(found - 1) <= _TENTH))
    means = float(found.mean()), float(found.std()), within, float(single.mean())
    return Row(share, starts, warm, float(invokes.std()) / share, *means)


def command(as_markdown: MarkdownOption = False, as_json: JsonOption = False) -> None:
    """Draw starts and invocations, and fit their tails as serfer study measure-aws does, by how many there are."""
    new_account = (Extent(), _NEW_ACCOUNT)
    sizes = [(sum(extent.at_once(most)), extent.small + extent.large) for extent, most in (new_account, *_UP_TO)]
    rows = [fitted(share, *size) for size in sizes for share in _SHARES]
    publish(Results([asdict(row) for row in rows], [table_of(rows)]), as_json=as_json, as_markdown=as_markdown)
