"""A plan drawn with characters, for a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from serfer.core.plan import Plan
from serfer.pictures.anatomy import (
    Tensor,
    count_bytes,
    handed_on,
    pixel_bytes,
    plural,
    stage_lines,
    stage_title,
    tensors,
)

WIDTH = 100
_INNER = 66
_MOST_LANES = 8


def text_picture(plan: Plan) -> str:
    """Draw a plan's stages as boxes, and the tensors between them as lines: those that skip a stage on its left."""
    lanes = _lanes(tensors(plan))
    margin = _Margin(lanes, max(lanes.values(), default=-1) + 1, [])
    indent = " " * (2 * margin.width + 2)
    pixels = f"{count_bytes(pixel_bytes(plan))} of pixels"
    lines = [f"{indent}image {plan.input}, sent with the calls: {pixels}", f"{indent}│"]
    for number in range(len(plan.stages)):
        lines += [margin.beside() + line for line in _box(plan, number)]
        lines += _handed_on(plan, number, margin)
    return "\n".join(line.rstrip()[:WIDTH] for line in lines)


def _lanes(passing: list[Tensor]) -> dict[Tensor, int]:
    """Give every tensor that skips a stage a lane of its own as long as it is needed."""
    lanes: dict[Tensor, int] = {}
    for tensor in passing:
        last = max(tensor.readers, default=tensor.stage)
        if last > tensor.stage + 1:
            taken = {lane for other, lane in lanes.items() if max(other.readers) > tensor.stage}
            lanes[tensor] = min(set(range(len(passing) + 1)) - taken)
    return {tensor: min(lane, _MOST_LANES - 1) for tensor, lane in lanes.items()}


@dataclass(frozen=True, slots=True)
class _Margin:
    """The margin on the left of the boxes: `width` lanes, in which the tensors of `passing` go by."""

    lanes: dict[Tensor, int]
    width: int
    passing: list[Tensor]

    def beside(self) -> str:
        used = {self.lanes[tensor] for tensor in self.passing}
        return "".join("│ " if lane in used else "  " for lane in range(self.width))

    def turn(self, tensor: Tensor, corner: str) -> str:
        lane, beside = self.lanes[tensor], self.beside()
        crossed = beside[2 * lane + 1 :].replace("│", "┼").replace(" ", "─")
        return f"{beside[: 2 * lane]}{corner}{crossed}──┤"

    def starts(self, tensor: Tensor) -> str:
        line = self.turn(tensor, "╭")
        self.passing.append(tensor)
        return line

    def ends(self, tensor: Tensor) -> str:
        self.passing.remove(tensor)
        return self.turn(tensor, "╰")


def _box(plan: Plan, number: int) -> list[str]:
    grid = _grid(number, plan)
    rows = [stage_title(plan, number), *stage_lines(plan, number)]
    body = [f"│ {text[: _INNER - 8]:<{_INNER - 8}} {mark:>6} │" for text, mark in zip(rows, grid, strict=True)]
    return [f"┌─┴{'─' * (_INNER - 1)}┐", *body, f"└─┬{'─' * (_INNER - 1)}┘"]


def _grid(number: int, plan: Plan) -> list[str]:
    grid = plan.stages[number].grid
    if grid.tiles == 1:
        return ["┌────┐", "│    │", "└────┘"]
    if grid.columns:
        return ["┌┬┬┬┬┐", "││││││", "└┴┴┴┴┘"]
    across = grid.cols > 1
    row = "─┼─" if across else "───"
    middle = f"├{row[0]}{row[1]}──┤" if grid.rows > 1 else ("│ │  │" if across else "│    │")
    return [f"┌─{'┬' if across else '─'}──┐", middle, f"└─{'┴' if across else '─'}──┘"]


def _handed_on(plan: Plan, number: int, margin: _Margin) -> list[str]:
    if number == len(plan.stages) - 1:
        return [f"{margin.beside()}  │", f"{margin.beside()}  {plan.output} values, {plan.activation}"]
    following = plan.stages[number + 1]
    lines = []
    for tensor in (tensor for tensor in tensors(plan) if tensor.stage == number):
        text = f"{tensor.shape}, {count_bytes(tensor.bytes)}, to stage {' and '.join(map(str, tensor.readers))}"
        skips = tensor in margin.lanes
        lines.append(f"{margin.starts(tensor) if skips else f'{margin.beside()}  │'} {text}")
    arrived = [tensor for tensor in margin.passing if max(tensor.readers) == number + 1]
    arrived.sort(key=lambda tensor: -margin.lanes[tensor])
    lines += [f"{margin.ends(tensor)} {tensor.shape} from stage {tensor.stage} joins" for tensor in arrived]
    return [*lines, f"{margin.beside()}  │ {handed_on(plan, number + 1)} by {plural(following.grid.tiles, 'task')}"]
