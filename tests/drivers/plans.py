"""Plans of any number of tiles and functions; they compute nothing, and their digest is another plan's."""

from dataclasses import replace

from serfer.core.geometry import Grid
from serfer.core.plan import CACHE, INLINE, Cell, Piece, Range, Shape
from tests.core.plans import small_plan

VALUES = 8  # that a tile of a linked plan writes for one image
READ = (Range(1, 2, 0, ()), Range(5, 1, 0, ()))  # what each of its tiles reads of every tile of the stage before


def wide_plan(tiles, parts=None):
    """Return a plan whose stage k has `tiles[k]` tiles, spread evenly over `parts[k]` functions."""
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


def linked_plan(tiles, inline=()):
    """Return a plan in which each tile reads of every tile of the stage before, and answers where it is `inline`.

    Stages of several tiles have two functions: one for the last tile, one for the rest.
    """
    small, shape = small_plan(), Shape.vector(VALUES)
    stages = []
    for number, count in enumerate(tiles):
        pieces = tuple(Piece(number - 1, source, READ) for source in range(tiles[number - 1] if number else 0))
        model = replace(small.stages[1].tiles[0], outputs=(shape.whole,), cells=(Cell(0, shape.whole),), pieces=pieces)
        stage = replace(
            small.stages[1],
            grid=Grid(1, count),
            outputs=(shape,),
            tiles=tuple(replace(model, function=part_of(tile, count)) for tile in range(count)),
            functions=small.stages[1].functions * (2 if count > 1 else 1),
            path=INLINE if number in {*inline, len(tiles) - 1} else CACHE,
        )
        stages.append(stage)
    return replace(small, stages=tuple(stages))


def part_of(tile, count):
    """Return which function of a linked plan's stage of so many tiles runs a tile."""
    return int(0 < tile == count - 1)
