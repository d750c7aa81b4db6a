"""Plans of any number of tiles and functions, and a state machine's view of their workers."""

from dataclasses import replace

from serfer.core.geometry import Grid
from tests.core.plans import small_plan


def wide_plan(tiles, parts=None):
    """Return a plan whose stage k has `tiles[k]` tiles, spread evenly over `parts[k]` functions.

    It computes nothing, and its digest is another plan's.
    """
    small = small_plan()
    first, last = small.stages[0], small.stages[1]
    stages = []
    for number, count in enumerate(tiles):
        functions = parts[number] if parts else 1
        grid = Grid(1, count, columns=True) if functions > 1 else Grid(1, count)
        model = last if count == 1 else first
        shares = tuple(replace(model.tiles[0], function=tile * functions // count) for tile in range(count))
        stages.append(replace(model, grid=grid, tiles=shares, functions=model.functions * functions))
    return replace(small, stages=tuple(stages))
