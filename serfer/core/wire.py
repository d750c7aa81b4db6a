"""Messages between driver and worker: a task out, a report back, each msgpack in base64 in a JSON payload.

    {"task": packed}            one task                    -> {"report": packed}
    {"tasks": packed}           several of one stage        -> {"reports": packed}, a report or an error of each
    {"step": {...}}             one task, as plain JSON: a state machine can write it, and its crop lies in the store
    {"clean_up": {...}}         delete a query's keys       -> {}
    {"warm": {...}}             get ready, and stay busy for a while -> {"warm": {...}}

Lambda payloads are JSON, so binary must be text; msgpack keeps it one string. Nothing is decoded before its size and
shape are bounded, and nothing decodes into anything but plain values (no pickle).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from types import NoneType
from typing import Any, NamedTuple

import msgpack

from serfer.core.errors import InputError, PlanError
from serfer.core.keys import ResultPlace, StoreCounts, check_query_id
from serfer.core.plan.preprocess import MAX_CHANNELS, Levels

_MAX_BYTES = 16 * 1024 * 1024
_MAX_REPLIES = 1 << 31
_REQUEST = re.compile(r"[A-Za-z0-9._-]{0,64}")
_LONGEST_HOLD_S = 60.0
MAX_BATCH = 1024
DTYPES = {"uint8": 1, "float32": 4}
Buffer = bytes | memoryview


class Crop(NamedTuple):
    """A first-stage tile's input, contiguous: uint8 as (N, rows, cols, C), float32 as (N, C, rows, cols).

    `data` is None where it is too large for a payload and lies in the store, under the query's input key. Pixels become
    numbers by `levels`, without them as the worker's plan says.
    """

    dtype: str
    data: Buffer | None
    levels: Levels | None = None


class Membership(NamedTuple):
    """A task's part in a gang: it runs its tile of every stage before `stop`, and waits `patience_s` s for a border."""

    stop: int
    patience_s: float


@dataclass(frozen=True)
class Task:
    """One invocation: run tile `tile` of stage `stage` for a query of `batch` images; what it writes lives `ttl` s.

    An `inline` task answers with what it would have put into the store. `parts` are the ranges that the tile reads, in
    the plan's order, each None where it lies in the store; without any, all of them do. The answer of an event is not
    waited for: `reply` is the number of the reply key (serfer/core/keys.py) under which it is put into the store.
    `request` is the id of the request that the query came with, for the worker's log. A member of a `gang` also runs
    the stages after its own; `inline` is then said of the gang's last stage, `parts` of all that it reads of stages
    before the gang. Where there is a `result`, what the plan's last stage computes is written there, and nowhere else.
    Where the plan takes images of many sizes, `size` has the query's rows and columns.
    """

    plan: str
    query: str
    stage: int
    tile: int
    batch: int
    ttl: float
    crop: Crop | None = None
    inline: bool = False
    parts: tuple[Buffer | None, ...] = ()
    reply: int | None = None
    request: str = ""
    gang: Membership | None = None
    result: ResultPlace | None = None
    size: tuple[int, int] | None = None

    @property
    def payload_bytes(self) -> int:
        crop = self.crop.data if self.crop else None
        return sum([len(data) for data in (crop, *self.parts) if data])


@dataclass(frozen=True)
class Report:
    """The report of a task. Times are in milliseconds; `init_ms` is 0 in an environment that was warm.

    `fetch_ms`, a part of `init_ms`, were waited for weights that are fetched; time in which sessions were built while
    others arrived is not a part of it.

    `environment` names the worker; `weight_loads` and `sessions` count, over its life, how often it read its weights
    file and built an inference session. `output` is what an inline task wrote: its tile's cells, float32. Where
    `shared` tasks were one invocation, its times are divided among them by their images, so that sums stay true.

    The invocation of a gang's member reports on each of its stages: on the first, with the reports on the others in
    `later`, in their order. They share the invocation; `wait_ms`, a part of `read_ms`, was spent waiting for borders.
    """

    environment: str
    init_ms: float
    read_ms: float
    compute_ms: float
    write_ms: float
    total_ms: float
    weight_loads: int
    sessions: int
    counts: StoreCounts
    output: Buffer | None = None
    shared: int = 1
    wait_ms: float = 0.0
    later: tuple[Report, ...] = ()
    fetch_ms: float = 0.0

    @property
    def billed_ms(self) -> float:
        """The billed duration: the time of the handler and, where there was one, of the cold start."""
        return self.init_ms + self.total_ms

    @property
    def stages(self) -> tuple[Report, ...]:
        """The reports of an invocation: itself, and those on the later stages of a gang's member."""
        return (self, *self.later)

    @property
    def invocation_ms(self) -> float:
        """The billed duration of the invocation, with that of a member's later stages."""
        return self.init_ms + self.total_ms + sum([report.billed_ms for report in self.later])


class TaskError(NamedTuple):
    """Why a task of a shared invocation has no report where others have: its error's type, and a line for people."""

    error_type: str
    message: str


def encode_task(task: Task) -> bytes:
    """Pack a task into a Lambda payload; base64 needs no escapes in JSON."""
    return b'{"task":"%b"}' % _pack(_task_to_plain(task))


def encode_tasks(tasks: Sequence[Task]) -> bytes:
    return b'{"tasks":"%b"}' % _pack([_task_to_plain(task) for task in tasks])


def _task_to_plain(task: Task) -> tuple[Any, ...]:
    crop = _crop_to_plain(task.crop) if task.crop else None
    place = (task.plan, task.query, task.stage, task.tile, task.batch, float(task.ttl))
    gang = (task.gang.stop, float(task.gang.patience_s)) if task.gang else None
    result = (task.result.owner, task.result.id, float(task.result.ttl)) if task.result else None
    later = (result, task.size) if task.size else (result,) if result else ()
    return (*place, crop, task.inline, task.parts, task.reply, task.request, gang, *later)


def _crop_to_plain(crop: Crop) -> tuple[Any, ...]:
    return (crop.dtype, crop.data, *((astuple(crop.levels),) if crop.levels else ()))


def decode_task(event: Any) -> Task:  # noqa: ANN401 - whatever an invoker sent
    """Unpack a payload; raises InputError for anything that no driver of ours sends."""
    match event:
        case {
            "step": {
                "plan": plan,
                "query": query,
                "stage": stage,
                "tile": tile,
                "batch": batch,
                "ttl": int() | float() as ttl,
                "dtype": dtype,
            }
        }:
            crop = (dtype, None) if stage == 0 else None
            lives = float(ttl) if abs(ttl) <= MAX_TTL else math.inf  # an int may be too large for a float
            return _plain_to_task([plan, query, stage, tile, batch, lives, crop, False, [], None, "", None])
    return _plain_to_task(_unpack(event, "task"))


def is_shared(event: Any) -> bool:  # noqa: ANN401 - whatever an invoker sent
    return isinstance(event, dict) and "tasks" in event


def decode_tasks(event: Any) -> list[Task]:  # noqa: ANN401 - whatever an invoker sent
    """Unpack the payload of a shared invocation; raises InputError for anything that no driver of ours sends."""
    plain = _unpack(event, "tasks")
    if not (isinstance(plain, list) and 1 <= len(plain) <= MAX_BATCH):
        raise InputError("the payload has no tasks, or too many")
    tasks = [_plain_to_task(value) for value in plain]
    if len({(task.plan, task.stage) for task in tasks}) > 1:
        raise InputError("the payload's tasks are not all of one stage")
    if any(task.gang for task in tasks):
        raise InputError("a member of a gang shares no invocation")
    if sum(task.batch for task in tasks) > MAX_BATCH:
        raise InputError(f"the payload's tasks have more than {MAX_BATCH} images")
    return tasks


def requests_in(event: Any) -> list[str]:  # noqa: ANN401 - whatever an invoker sent
    """Return the ids of the requests that a payload's tasks came with; none where it is not a payload of ours."""
    try:
        tasks = decode_tasks(event) if is_shared(event) else [decode_task(event)]
    except InputError:
        return []
    return sorted({task.request for task in tasks if task.request})


def _plain_to_task(value: Any) -> Task:  # noqa: ANN401 - any plain value
    match value:
        case [
            str(plan),
            str(query),
            int(stage),
            int(tile),
            int(batch),
            float(ttl),
            crop,
            bool(inline),
            [*parts],
            reply,
            str(request),
            gang,
            *later,
        ] if len(later) <= 2:  # noqa: PLR2004 - a result, a size
            counted = bool not in map(type, (stage, tile, batch))  # to Python, True is an int
            if not (reply is None or (type(reply) is int and 0 <= reply < _MAX_REPLIES)):
                raise InputError("the task's reply is malformed")
            if not (counted and 1 <= batch <= MAX_BATCH and stage >= 0 and tile >= 0 and 0 < ttl <= MAX_TTL):
                raise InputError("the task is out of bounds")
            if any(type(part) not in (bytes, NoneType) for part in parts):
                raise InputError("the task's parts are malformed")
            if not _REQUEST.fullmatch(request):
                raise InputError("the task's request id is malformed")
            name = check_query_id(query)
            work = _decode_crop(crop), inline, tuple(parts), reply, request, _decode_membership(gang, stage)
            result, size = [*later, None, None][:2]
            return Task(plan, name, stage, tile, batch, ttl, *work, _decode_result(result), _decode_size(size))
    raise InputError("the payload is not a task")


MAX_TTL = 24 * 3600.0


def _decode_crop(value: Any) -> Crop | None:  # noqa: ANN401 - any plain value
    match value:
        case None:
            return None
        case [str(dtype), (bytes() | None) as data, *levels] if dtype in DTYPES and len(levels) <= 1:
            return Crop(dtype, data, _decode_levels(levels[0]) if levels else None)
    raise InputError("the task's crop is malformed")


def _decode_levels(value: Any) -> Levels:  # noqa: ANN401 - any plain value
    match value:
        case [float(scale), [*mean], [*std]] if len(mean) == len(std) <= MAX_CHANNELS:
            if all(type(number) is float for number in (*mean, *std)):
                try:
                    return Levels(scale, tuple(mean), tuple(std))
                except PlanError as error:
                    raise InputError(f"the task's crop is malformed: {error}") from error
    raise InputError("the task's crop is malformed")


def _decode_membership(value: Any, stage: int) -> Membership | None:  # noqa: ANN401 - any plain value
    match value:
        case None:
            return None
        case [int(stop), float(patience_s)] if stop > stage and 0 < patience_s <= MAX_TTL:
            return Membership(stop, patience_s)
    raise InputError("the task's gang is malformed")


def _decode_result(value: Any) -> ResultPlace | None:  # noqa: ANN401 - any plain value
    match value:
        case None:
            return None
        case [str(owner), str(name), float(ttl)]:
            return ResultPlace(owner, name, ttl)
    raise InputError("the task's result is malformed")


def _decode_size(value: Any) -> tuple[int, int] | None:  # noqa: ANN401 - any plain value
    match value:
        case None:
            return None
        case [int(rows), int(columns)] if bool not in map(type, value) and min(rows, columns) > 0:
            return rows, columns
    raise InputError("the task's size is malformed")


class CleanUp(NamedTuple):
    """A request to delete what a query of a plan left in the store; its answer too, unless `keep_answer`."""

    plan: str
    query: str
    keep_answer: bool


class WarmUp(NamedTuple):
    """A request to get ready for tasks of a stage's function `part`, and to stay busy for `hold_s` seconds.

    Requests that are held at the same time find environments of their own, so as many as are sent become warm. They get
    ready for one `tile`, or for all of the function's.
    """

    plan: str
    stage: int
    part: int
    hold_s: float
    tile: int | None = None


class WarmUpAnswer(NamedTuple):
    """The answer to a warm-up request: the environment's name, the ms of its start if it was new, and its sessions.

    `fetch_ms`, a part of `init_ms`, were waited for weights that are fetched.
    """

    environment: str
    init_ms: float
    sessions: int
    fetch_ms: float = 0.0


def decode_clean_up(event: Any) -> CleanUp | None:  # noqa: ANN401 - whatever an invoker sent
    """Return the request to clean up that a payload is, if it is one; raises InputError for a malformed one."""
    match event:
        case {"clean_up": {"plan": str(plan), "query": str(query), "keep_answer": bool(keep)}}:
            return CleanUp(plan, check_query_id(query), keep)
        case {"clean_up": _}:
            raise InputError("the request to clean up is malformed")
    return None


def encode_warm_up(request: WarmUp) -> bytes:
    return json.dumps({"warm": request._asdict()}).encode()


def decode_warm_up(event: Any) -> WarmUp | None:  # noqa: ANN401 - whatever an invoker sent
    """Return the warm-up request that a payload is, if it is one; raises InputError for a malformed one."""
    match event:
        case {"warm": {"plan": str(plan), "stage": int(stage), "part": int(part), "hold_s": int() | float() as hold}}:
            tile = event["warm"].get("tile")
            if min(stage, part) >= 0 and (tile is None or type(tile) is int) and 0 <= hold <= _LONGEST_HOLD_S:
                return WarmUp(plan, stage, part, float(hold), tile)
            raise InputError("the warm-up request is out of bounds")
        case {"warm": _}:
            raise InputError("the warm-up request is malformed")
    return None


def encode_warmed(answer: WarmUpAnswer) -> dict[str, Any]:
    return {"warm": answer._asdict()}


def decode_warmed(payload: Any) -> WarmUpAnswer:  # noqa: ANN401 - whatever a function answered
    """Read the answer to a warm-up request; raises InputError for anything that no worker of ours answers."""
    match payload:
        case {"warm": {"environment": str(name), "init_ms": int() | float() as init_ms, "sessions": int(sessions)}}:
            fetch_ms = payload["warm"].get("fetch_ms", 0.0)
            if isinstance(fetch_ms, int | float):
                return WarmUpAnswer(name, float(init_ms), sessions, float(fetch_ms))
    raise InputError("the function's answer says nothing of a warm-up; is it a function of this plan?")


def pack_result(result: Report | TaskError) -> bytes:
    """Pack the outcome of an event's task, for its reply key."""
    return bytes(msgpack.packb(_result_to_plain(result)))


def unpack_result(data: Buffer) -> Report | TaskError:
    """Unpack what a reply key holds; raises InputError for anything that no worker of ours puts there."""
    if len(data) > _MAX_BYTES:
        raise InputError("the reply is too large")
    try:
        return _plain_to_result(msgpack.unpackb(data))
    except (ValueError, msgpack.UnpackException) as error:
        raise InputError("the reply cannot be decoded") from error


def encode_report(report: Report) -> dict[str, str]:
    return {"report": _pack(_report_to_plain(report)).decode("ascii")}


def encode_reports(results: Sequence[Report | TaskError]) -> dict[str, str]:
    """Pack the outcomes of a shared invocation's tasks, in their order, into a Lambda response."""
    return {"reports": _pack([_result_to_plain(result) for result in results]).decode("ascii")}


def _result_to_plain(result: Report | TaskError) -> Any:  # noqa: ANN401 - any plain value
    return (result.error_type, result.message) if isinstance(result, TaskError) else _report_to_plain(result)


def _report_to_plain(report: Report) -> dict[str, Any]:
    later = [_report_to_plain(later_report) for later_report in report.later]
    return {**vars(report), "counts": vars(report.counts), "later": later}


def decode_report(payload: Any) -> Report:  # noqa: ANN401 - whatever a function answered
    """Unpack a response; raises InputError for anything that no worker of ours answers."""
    return _plain_to_report(_unpack(payload, "report"))


def decode_reports(payload: Any, count: int) -> list[Report | TaskError]:  # noqa: ANN401 - whatever a function answered
    """Unpack the response to a shared invocation of `count` tasks; raises InputError as decode_report does."""
    plain = _unpack(payload, "reports")
    if not (isinstance(plain, list) and len(plain) == count):
        raise InputError(f"the function's answer is not a list of {count} reports; is it a function of this plan?")
    return [_plain_to_result(value) for value in plain]


def _plain_to_result(value: Any) -> Report | TaskError:  # noqa: ANN401 - any plain value
    match value:
        case [str(error_type), str(message)]:
            return TaskError(error_type, message)
    return _plain_to_report(value)


def _plain_to_report(plain: Any, *, nested: bool = False) -> Report:  # noqa: ANN401 - any plain value
    try:
        later = () if nested else tuple(_plain_to_report(entry, nested=True) for entry in plain["later"])
        report = Report(**{**plain, "counts": StoreCounts(**plain["counts"]), "later": later})
    except (TypeError, KeyError) as error:
        raise InputError("the function's answer is not a report; is it a function of this plan?") from error
    if not _is_sound(report):
        raise InputError("the function's report is out of bounds; is it a function of this plan?")
    return report


def _is_sound(report: Report) -> bool:
    parts = (report.init_ms, report.read_ms, report.compute_ms, report.write_ms)
    times = (*parts, report.total_ms, report.wait_ms, report.fetch_ms)
    numbers = (report.weight_loads, report.sessions, *vars(report.counts).values())
    return (
        type(report.environment) is str
        and {*map(type, times)} <= {int, float}
        and {*map(type, numbers)} == {int}
        and all(map(math.isfinite, times))
        and min(*times, *numbers) >= 0
        and (report.output is None or type(report.output) is bytes)
        and type(report.shared) is int
        and 1 <= report.shared <= MAX_BATCH
    )


def _pack(value: Any) -> bytes:  # noqa: ANN401 - any plain value
    return base64.b64encode(msgpack.packb(value))


def _unpack(payload: Any, field: str) -> Any:  # noqa: ANN401 - any plain value
    text = payload.get(field) if isinstance(payload, dict) else None
    if not isinstance(text, str) or len(text) > _MAX_BYTES:
        raise InputError(f"the payload carries no {field}")
    try:
        return msgpack.unpackb(binascii.a2b_base64(text))
    except (ValueError, msgpack.UnpackException, binascii.Error) as error:
        raise InputError(f"the payload's {field} cannot be decoded") from error
