"""What tiles of the last stage write for its owner to keep, in place of an answer: a chunk of each output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serfer.core.errors import NotFiniteError, PlanError
from serfer.core.keys import ResultPlace, StoreCounts
from serfer.core.plan import Plan, Tile
from serfer.core.plan.answers import answer_arrays
from serfer.core.zarr import encode_chunk
from serfer.lambdas.cell_codec import Array
from serfer.storage.store import Store


def write_result(
    store: Store | None, plan: Plan, place: ResultPlace, tile: Tile, outputs: Sequence[Array]
) -> StoreCounts:
    """Write the outputs of a tile of the last stage to their place; returns the store requests.

    Raises PlanError where there is no store for results, NotFiniteError for NaN and infinity, of which nobody else
    learns before the result is whole.
    """
    if store is None:
        raise PlanError("SERFER_RESULTS is not set here: give workers and drivers the URL of the store of results")
    arrays = answer_arrays(plan, len(outputs[0]))
    for array, values in zip(arrays, outputs, strict=True):
        if not np.isfinite(values).all():
            raise NotFiniteError(
                f"the network's output {array.name!r} has values that are NaN or infinite: look at the model, or at "
                "the preprocessing, with this input"
            )
    counts = StoreCounts()
    for number, (array, values, rect) in enumerate(zip(arrays, outputs, tile.outputs, strict=True)):
        path = next(chunk.path for chunk in array.chunks if chunk.rect == rect)
        store.put(place.key(f"{number}/{path}"), encode_chunk(array, values), place.chunks_ttl)
        counts += StoreCounts(bytes_put=array.chunk_bytes, puts=1)
    return counts
