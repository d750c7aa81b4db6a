"""Which inactive variants of functions are worth a warm-up, so that cheaper ones take over from those that are active.

Case I never leaves an active variant that meets the objectives (INFaaS, 4.1), and the paper's case II moves the load to
a cheaper one because instances cost by the hour. Functions cost by the query: one that is idle costs nothing, and a
cheaper one is worth having as soon as the queries of a minute would have saved what its warm-up costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from serfer.control.selection.catalogue import Catalogue
from serfer.control.selection.places import FUNCTIONS, States
from serfer.core.variants import Objectives


def worth_warming(asked: Mapping[Objectives, int], catalogue: Catalogue, states: States) -> list[str]:
    """Return the variants to warm up, for queries by their objectives and how many there lately were.

    A warm-up is taken to cost what a query does, and in proportion for the time that loading takes.
    """
    live, found = catalogue.live(states), []
    for objectives, queries in asked.items():
        if objectives.variant is not None:
            continue
        meeting = np.flatnonzero(catalogue.meeting(objectives))  # in the order of dollars
        active = meeting[live.active[meeting]]
        if not active.size or active[0] == meeting[0]:
            continue
        cheap, used = catalogue.rows[meeting[0]], catalogue.rows[active[0]]
        places = live.places[meeting[0]].inactive
        is_cold = places is not None and FUNCTIONS in places.names
        if is_cold and queries * (used.usd - cheap.usd) > cheap.usd * cheap.loaded_ms / max(cheap.latency_ms, 1.0):
            found.append(cheap.name)
    return list(dict.fromkeys(found))
