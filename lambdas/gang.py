"""A member of a gang: its tile of stage after stage, in one invocation, with borders to and from the other members.

    for each stage:  wait for the borders it reads ─▶ compute ─▶ send the borders that others read ─▶ keep the rest

A border is a message to the reader's inbox (serfer/core/keys.py): stage and tile that wrote it, then its cells as they
would lie in the tile's object, each with its checksum. An empty message means that the gang was aborted. After each
stage a message without cells goes to one more inbox, the gang's board, which the driver reads to see who is behind.

What a member sends depends on nothing but its task, so a member that died is started again and sends the same; a border
that arrives twice counts once. Sums need no rule of their own: the shares of a global pooling are borders too, and
every member adds all of them up in tile order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from serfer.core.checksum import verified
from serfer.core.errors import AlteredPieceError, GangAbortedError, GangStalledError
from serfer.core.geometry import Rect
from serfer.core.keys import StoreCounts, inbox_key, output_key
from serfer.core.plan import Stage, Tile
from serfer.core.plan.borders import BORDER_HEADER, Member, Source, cell_bytes, cell_of, members
from serfer.core.wire import Buffer, Task
from serfer.lambdas.cell_codec import Array, InputCell, cells_to_bytes, fill_inputs, input_numbers, part_of, read_cells
from serfer.lambdas.sessions import SessionCache
from serfer.lambdas.stage_share import StageShare
from serfer.storage.exchange import START, Exchange, Message


class GangRun:
    """One run of a member; `task` says of which query, and `write` puts what a stage computes where that says."""

    def __init__(
        self,
        member: Member,
        task: Task,
        sessions: SessionCache,
        exchange: Exchange,
        write: Callable[..., None],
    ) -> None:
        self._member, self._task = member, task
        self._plan, self._gang = member.plan, member.gang
        self._sessions, self._exchange, self._write = sessions, exchange, write
        self._inbox, self._cursor = self._inbox_of(task.tile), START
        self._own: dict[int, list[Array]] = {}
        self._arrived: dict[Source, dict[int, memoryview]] = {}

    def run(self, first: Sequence[Array], values: Sequence[Buffer], shares: Sequence[StageShare]) -> None:
        """Run all stages and fill in the share of each; the first has been begun by reading.

        `first` are the inputs of the first stage where it reads the image, else `values` are the ranges of all that the
        member reads of stages before the gang, in order.

        Raises:
            GangAbortedError: the driver aborted the gang.
            GangStalledError: a border did not come within the task's patience.
            AlteredPieceError: what was read is not what was written.
        """
        rest, ended = iter(values), 0.0
        for number, share in zip(self._member.stages, shares, strict=True):
            share.started = share.started or ended
            stage = self._plan.stages[number]
            tile = stage.tiles[self._task.tile]
            self._await_borders(number, share)
            inputs = first if number == self._gang.start and first else self._join_inputs(stage, tile, rest)
            share.read = time.perf_counter()
            outputs = self._sessions.run(stage, tile, {f"input{at}": value for at, value in enumerate(inputs)})
            share.computed = time.perf_counter()
            answers = number + 1 == self._gang.stop
            if not answers:
                self._send(number, tile, outputs, share)
            if number in self._member.outside:
                self._write(self._task, number, tile, outputs, share, answers=answers)
            self._keep_activations(number, outputs)
            share.ended = ended = time.perf_counter()

    def _await_borders(self, number: int, share: StageShare) -> None:
        began = time.perf_counter()
        while missing := self._member.awaited[number] - self._arrived.keys():
            patience_s = self._task.gang.patience_s if self._task.gang else 0.0
            left_s = began + patience_s - time.perf_counter()
            received = self._exchange.receive(self._inbox, self._cursor, left_s) if left_s > 0 else []
            if not received:
                stage, tile = min(missing)
                raise GangStalledError(
                    f"member {self._task.tile} waited {patience_s:g} s for the border of tile {tile} of stage {stage}"
                )
            for cursor, value in received:
                self._cursor = cursor
                self._add_cells(value)
            size = sum(len(value) for _, value in received)
            share.counts += StoreCounts(bytes_get=size, gets=len(received))
            share.waited = time.perf_counter() - began

    def _add_cells(self, value: bytes) -> None:
        if not value:
            raise GangAbortedError("the driver aborted the gang")
        if len(value) < BORDER_HEADER.size:
            raise AlteredPieceError(f"a message under {self._inbox!r} has no header")
        source: Source = BORDER_HEADER.unpack_from(value)
        numbers = self._member.received.get(source)
        if numbers is None or source in self._arrived:
            return  # sent again
        view, end, cells = memoryview(value), BORDER_HEADER.size, {}
        for number in numbers:
            start, end = end, end + cell_bytes(self._plan, source, number, self._task.batch)
            cells[number] = view[start:end]
        if end != len(value):
            raise AlteredPieceError(f"a border under {self._inbox!r} has another size than the plan says")
        self._arrived[source] = cells

    def _join_inputs(self, stage: Stage, tile: Tile, rest: Iterator[Buffer]) -> list[Array]:
        before = [piece for piece in tile.pieces if piece.stage < self._gang.start]
        given = [next(rest) for piece in before for _ in piece.ranges]
        cells = [
            *read_cells(given, before, stage, self._task.query, self._task.batch),
            *self._border_cells(stage, tile),
        ]
        return fill_inputs(stage, tile, self._task.batch, cells, self._own_parts(stage, tile))

    def _own_parts(self, stage: Stage, tile: Tile) -> dict[int, tuple[Rect, Array]]:
        parts = {}
        for (source, output), number in input_numbers(stage).items():
            if source not in self._own:
                continue
            have = self._plan.stages[source].tiles[self._task.tile].outputs[output]
            if shared := have.overlap(tile.inputs[number]):
                parts[number] = shared, part_of(self._own[source][output], shared, have)
        return parts

    def _border_cells(self, stage: Stage, tile: Tile) -> Iterator[InputCell]:
        numbers = input_numbers(stage)
        for piece in tile.pieces:
            if piece.stage < self._gang.start or piece.tile == self._task.tile:
                continue
            source = piece.stage, piece.tile
            key = output_key(self._task.query, *source)
            for number in piece.cell_numbers:
                cell = cell_of(self._plan, source, number)
                data = verified(self._arrived[source][number], key, number)
                yield numbers[piece.stage, cell.output], cell.rect, np.frombuffer(data, dtype="<f4")

    def _send(self, number: int, tile: Tile, outputs: Sequence[Array], share: StageShare) -> None:
        key = output_key(self._task.query, number, self._task.tile)
        header = BORDER_HEADER.pack(number, self._task.tile)
        messages = [
            Message(self._inbox_of(border.reader), b"".join((header, cells_to_bytes(outputs, tile, key, border.cells))))
            for border in self._member.sent[number]
        ]
        messages.append(Message(self._inbox_of(members(self._plan, self._gang)), header))
        self._exchange.send(messages, self._task.ttl)
        size = sum(len(message.value) for message in messages)
        share.counts += StoreCounts(bytes_put=size, puts=len(messages))

    def _keep_activations(self, number: int, outputs: list[Array]) -> None:
        self._own[number] = outputs
        last = self._member.last_use
        self._own = {stage: own for stage, own in self._own.items() if last.get(stage, -1) > number}
        self._arrived = {source: cells for source, cells in self._arrived.items() if last[source[0]] > number}

    def _inbox_of(self, member: int) -> str:
        return inbox_key(self._task.query, self._gang.start, member)
