"""The map of a lazy array, whose windows dask computes when it computes their parts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from serfer.core.errors import UsageError
from serfer.core.plan.answers import as_answer
from serfer.mapping.windows import MapWindow, combine, windows


def map_array(array: Any, plan: Any, **given: Any) -> Any:  # noqa: ANN401 - dask's array, and what `windows` takes
    """Return the map of a dask array (bands, rows, cols) as another one, (channels, rows, cols), a chunk a window.

    Of a network with several outputs they are by the outputs' names; computed together, each window is computed once.
    The array's chunks may have any shape. Raises UsageError for what is no such array, and for boxes.
    """
    lazy = type(array).__module__.startswith("dask.array")
    if not lazy or array.ndim != 3 or not all(isinstance(side, int) for side in array.shape):  # noqa: PLR2004
        raise UsageError(
            f"a map is of a file, s3://BUCKET/KEY or a dask array (bands, rows, cols), not of {type(array).__name__}"
        )
    dask, arrays = import_module("dask"), import_module("dask.array")  # which the caller has
    cut = windows(array.shape[1:], plan, **given)
    if not cut.results:
        raise UsageError("the map of an array is an array: boxes are what serfer.windows(..., boxes=True) computes")
    compute, add = dask.delayed(MapWindow.compute, pure=True), dask.delayed(combine, pure=True)
    statistics = None

    def part(window: MapWindow) -> Any:  # noqa: ANN401 - dask's
        return compute(window, array[:, *window.reads.slices], statistics)

    for step in cut.passes:
        statistics = add([part(window) for window in step], statistics)
    rows: dict[str, dict[int, list[Any]]] = {form.outputs[0]: {} for form in cut.results}
    for window in cut:
        computed = part(window)
        for (name, found), form, rect in zip(rows.items(), cut.results, window.writes, strict=True):
            own, shape = computed[name] if len(rows) > 1 else computed, (form.channels, rect.rows.size, rect.cols.size)
            found.setdefault(rect.rows.start, []).append(arrays.from_delayed(own, shape, form.dtype))
    return as_answer({name: arrays.block([*found.values()]) for name, found in rows.items()})
