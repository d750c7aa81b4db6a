"""What tiles of the last stage write for its owner to keep, in place of an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lambdas.cells import Array, cells_to_bytes
from serfer.core.errors import NotFiniteError, PlanError
from serfer.core.keys import ResultPlace, StoreCounts
from serfer.core.plan import Plan, Tile
from storage.store import Store


def write_result(
    store: Store | None, plan: Plan, place: ResultPlace, number: int, tile: Tile, outputs: Sequence[Array]
) -> StoreCounts:
    """Write the outputs of tile `number` of the last stage to their place; returns the store requests.

    Raises PlanError where there is no store for results, NotFiniteError for NaN and infinity, of which nobody else
    learns before the result is whole.
    """
    if store is None:
        raise PlanError("SERFER_RESULTS is not set here: give workers and drivers the URL of the store of results")
    for tensor, values in zip(plan.output_tensors, outputs, strict=True):
        if not np.isfinite(values).all():
            raise NotFiniteError(
                f"the network's output {tensor.name!r} has values that are NaN or infinite: look at the model, or at "
                "the preprocessing, with this input"
            )
    key = place.key(number)
    value = cells_to_bytes(outputs, tile, key)
    store.put(key, value, place.parts_ttl)
    return StoreCounts(bytes_put=len(value), puts=1)
