import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import PlanError
from serfer.core.geometry import Rect, Span
from serfer.core.inline_outputs import inline_stages
from serfer.core.plan import (
    CACHE,
    IMAGE,
    INLINE,
    OBJECTS,
    Artefact,
    Cell,
    Gang,
    Input,
    ModelChange,
    Operator,
    Padding,
    Piece,
    Range,
    Shape,
    dump_plan,
    parse_plan,
    sealed,
)
from serfer.core.plan.gang_times import compute_limit_s, function_timeout_s, patience_s
from serfer.core.plan.layout import ORIGINAL, is_part
from serfer.plan_directory import COLD_DIRECTORY, check_artefacts, file_sha256, load_cold_plan, load_plan
from serfer.wiring.options import TASK_TIMEOUT_S
from tests.core.plans import FILES, read_back, small_plan, write_plan

PLAN = small_plan()
VALUE = json.loads(dump_plan(PLAN))


@pytest.fixture
def directory(tmp_path):
    return write_plan(tmp_path)


def leaves(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path
    else:
        for key, item in items:
            yield from leaves(item, (*path, key))


def altered(path):
    copy = json.loads(json.dumps(VALUE))
    place = copy
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    if isinstance(old, bool):
        place[path[-1]] = not old
    elif isinstance(old, str):
        place[path[-1]] = old + " "
    else:
        place[path[-1]] = (old or 0) + 1
    return copy


@pytest.mark.parametrize("path", list(leaves(VALUE)), ids=lambda path: ".".join(map(str, path)))
def test_an_edit_of_any_value_is_refused_and_of_the_layout_alone_is_none(path):
    with pytest.raises(PlanError):
        parse_plan(json.dumps(altered(path)))
    assert parse_plan(json.dumps(VALUE, sort_keys=True, indent=7)) == parse_plan(dump_plan(PLAN))
    assert sealed(PLAN) == PLAN


def test_function_names_contain_the_digest_and_are_valid_in_lambda():
    names = [replace(PLAN, model="x/y:" * 40).function(stage, number) for stage in (0, 15) for number in (0, 63)]
    assert all(PLAN.digest[:12] in name for name in names)
    assert all(len(name) <= 64 and name.replace("-", "").isalnum() for name in names)
    assert len(set(names)) == 4


def with_weights_in(plan, *places):
    stages = [replace(stage, weights_in=place) for stage, place in zip(plan.stages, places, strict=True)]
    return sealed(replace(plan, stages=tuple(stages)))


def test_fetched_weights_are_not_in_the_package():
    for places in (("fetched", "image"), ("image", "image"), ("zip", "fetched")):
        plan = with_weights_in(PLAN, *places)
        assert read_back(plan) == plan
        assert plan.digest != PLAN.digest
    assert plan.fetched(0, 0) == []
    assert [file.path for file in plan.packaged(0, 0)] == ["stage-0/weights-0.bin", "stage-0/a.onnx"]
    assert [file.path for file in plan.fetched(1, 0)] == ["stage-1/weights-0.bin"]
    assert [file.path for file in plan.packaged(1, 0)] == ["stage-1/b.onnx"]
    assert plan.function_bytes(1, 0) == plan.stages[1].functions[0].graphs[0].bytes


FORMATS = [0, 1, 10, 12, 11.0, "11", None, True, "x", 2.5, [1] * 100]


@pytest.mark.parametrize(
    "text",
    [
        *["", "{", "[]", "{}", "3", '"x"', "null", "NaN", "[" * 100_000, '{"format": ' + "9" * 5000 + "}"],
        *['{"format": NaN}', *(json.dumps({**VALUE, "format": number}) for number in FORMATS)],
    ],
)
def test_text_of_no_plan_or_of_another_format_is_refused(text):
    with pytest.raises(PlanError, match=r"plan\.json"):
        parse_plan(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_json_value_in_place_of_the_stages_is_refused(value):
    with pytest.raises(PlanError):
        parse_plan(json.dumps({**VALUE, "stages": value}))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (Path.rmdir, "not a plan directory"),
        (lambda folder: [folder.rmdir(), folder.write_text("x")], "not a plan directory"),
        (lambda _: None, r"has no plan\.json"),
        (lambda folder: (folder / "plan.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
        (lambda folder: (folder / "plan.json").mkdir(), "not a regular file"),
        (lambda folder: (folder / "plan.json").symlink_to("/dev/zero"), "not a regular file"),
        (lambda folder: (folder / "plan.json").symlink_to("/dev/null"), "not a regular file"),
    ],
)
@pytest.mark.parametrize("cold", [False, True])
def test_directory_without_a_readable_plan_is_refused(tmp_path, make, complaint, cold):
    folder = tmp_path / COLD_DIRECTORY
    folder.mkdir()
    make(folder)
    if cold and not folder.exists():
        assert load_cold_plan(tmp_path, PLAN) is None
        return
    with pytest.raises(PlanError, match=complaint):
        load_cold_plan(tmp_path, PLAN) if cold else load_plan(folder)


@pytest.mark.parametrize("path", ["lambdas/__pycache__/bootstrap.pyc", "stage-1/weights-0.bin", "stage-0/../x"])
def test_a_stage_packages_only_weights_and_graphs(path):
    first = PLAN.stages[0]
    (function,), artefact = first.functions, Artefact(path, 1, "0" * 64)
    for stage in (
        replace(first, functions=(replace(function, weights=artefact),)),
        replace(first, functions=(replace(function, graphs=(*function.graphs, artefact)),)),
        replace(first, functions=(function, replace(function, weights=artefact))),
        replace(first, tiles=tuple(replace(tile, graph=path) for tile in first.tiles)),
    ):
        with pytest.raises(PlanError, match="are not of stage 0"):
            parse_plan(dump_plan(sealed(replace(PLAN, stages=(stage, PLAN.stages[1])))))


@pytest.mark.hostile
def test_a_huge_plan_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "plan.json").open("wb") as file:
        os.truncate(file.fileno(), 65 * 1024 * 1024)
    with pytest.raises(PlanError, match="larger than"):
        load_plan(tmp_path)


def test_a_written_plan_directory_is_read_back(directory):
    plan = load_plan(directory)
    assert plan == PLAN
    (directory / "link").symlink_to(directory)
    for place in (directory, directory / "link"):
        check_artefacts(plan, place)
    (directory / "large").write_bytes(bytes(3_000_000))
    before = file_sha256(directory / "large")
    (directory / "large").write_bytes(bytes(2_999_999) + b"\1")
    assert before != file_sha256(directory / "large")


def flip(file):
    value = file.read_bytes()
    file.write_bytes(value[:-1] + bytes([value[-1] ^ 1]))


def link(target):
    def change(path):
        path.rename(path.parent / "elsewhere")
        path.symlink_to(path.parent / target)

    return change


@pytest.mark.parametrize(
    ("path", "change", "complaint"),
    [
        *((path, Path.unlink, "is missing") for path in FILES),
        *((path, flip, "was altered") for path, value in FILES.items() if value),
        ("stage-1/weights-0.bin", lambda file: file.write_bytes(b"x"), "was altered"),
        *(
            (path, link(target), "lies behind a link")
            for path in ("unsplit.onnx", "stage-1/b.onnx", "stage-1")
            for target in ("elsewhere", "/dev/null", "nowhere")
        ),
        ("unsplit.onnx", lambda file: [file.unlink(), file.symlink_to(file.name)], "lies behind a link"),
    ],
)
def test_artefact_missing_altered_or_linked_is_named(directory, path, change, complaint):
    change(directory / path)
    with pytest.raises(PlanError, match=f"{path}.*{complaint}"):
        check_artefacts(PLAN, directory)


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "stage-0/../../secret"])
def test_a_plan_never_reads_outside_its_directory(directory, path):
    (directory.parent / "secret").write_text("x")
    plan = sealed(replace(PLAN, unsplit=Artefact(path, 1, file_sha256(directory.parent / "secret"))))
    with pytest.raises(PlanError, match="another name"):
        check_artefacts(plan, directory)


def test_originals_and_second_functions_are_among_the_artefacts():
    def originals(*names):
        return sealed(replace(PLAN, original=tuple(Artefact(name, 1, "0" * 64) for name in names)))

    for others in (["original.onnx"], ["original.bin", "original.onnx"], ["a.onnx", "b.bin"]):
        with pytest.raises(PlanError, match="another name"):
            parse_plan(dump_plan(originals(*others)))
    plan = originals(*ORIGINAL)
    assert read_back(plan) == plan
    assert {"original.onnx", "original.bin"} <= {file.path for file in plan.artefacts}
    first = PLAN.stages[0]
    (function,) = first.functions
    second = replace(function, weights=replace(function.weights, path="stage-0/weights-1.bin"))
    tiles = (first.tiles[0], replace(first.tiles[1], function=1))
    plan = sealed(replace(PLAN, **with_stage(0, tiles=tiles, functions=(function, second))))
    assert read_back(plan) == plan
    assert plan.functions == [(0, 0), (0, 1), (1, 0)]
    assert "stage-0/weights-1.bin" in [file.path for file in plan.artefacts]


def with_stage(number, **changes):
    stages = list(PLAN.stages)
    stages[number] = replace(stages[number], **changes)
    return {"stages": tuple(stages)}


def with_tile(number, **changes):
    first, *others = PLAN.stages[number].tiles
    return with_stage(number, tiles=(replace(first, **changes), *others))


MAP, ANSWER = Shape(3, 4, 4, flat=False), Shape.vector(10)
TOP = Rect(Span(0, 2), Span(0, 4))
OUTSIDE = Rect(Span(0, 5), Span(0, 4))
WIDE = Rect(Span(0, 1), Span(0, 11))
NONE = Padding(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"input": Shape(3, 10**6, 10**6, flat=False)}, "more than"),
        ({"input": Shape(3, 0, 4, flat=False)}, "no or too many"),
        ({"output": Shape.vector(11)}, "do not lead"),
        ({"stages": ()}, "do not lead"),
        (with_stage(1, outputs=(ANSWER, ANSWER)), "do not lead"),
        (with_stage(0, outputs=(Shape(3, 10**6, 10**6, flat=False),)), "more than"),
        (with_stage(1, path="cache"), "does not answer"),
        (with_stage(1, path="objects"), "does not answer"),
        (with_stage(0, path="tape"), "unknown path of its output: 'tape'"),
        (with_stage(1, weights_in="tape"), "stage 1 has its weights in an unknown place: 'tape'"),
        (with_tile(1, cells=()), "does not answer"),
        (with_tile(1, cells=(Cell(0, Rect(Span(0, 1), Span(0, 9))),)), "does not answer"),
        (with_stage(0, operators=(Operator("conv", "Conv", -5),)), "stage 0 has impossible figures"),
        (with_tile(1, macs=-5), "stage 1 has impossible figures"),
        (with_stage(0, memory_mb=0), "stage 0 has impossible figures"),
        (with_stage(0, operators=(Operator("conv", "Conv", 10**400),)), "macs is a number that is too large"),
        (with_stage(0, tiles=PLAN.stages[0].tiles[:1]), "lacks .* tiles"),
        (with_stage(0, functions=()), "lacks .* functions"),
        (with_stage(1, inputs=()), "lacks inputs"),
        (with_stage(0, inputs=(Input(0, 0, MAP),)), "stage 0 does not follow"),
        (with_stage(0, inputs=(Input(IMAGE, IMAGE, Shape(3, 4, 5, flat=False)),)), "stage 0 does not follow"),
        (with_stage(1, inputs=(Input(IMAGE, IMAGE, MAP),)), "stage 1 does not follow"),
        (with_stage(1, inputs=(Input(1, 0, ANSWER),)), "stage 1 does not follow"),
        (with_stage(1, inputs=(Input(2, 0, MAP),)), "stage 1 does not follow"),
        (with_stage(1, inputs=(Input(-2, 0, MAP),)), "stage 1 does not follow"),
        (with_stage(1, inputs=(Input(0, 1, MAP),)), "stage 1 does not follow"),
        (with_stage(1, inputs=(Input(0, -1, MAP),)), "stage 1 does not follow"),
        (with_stage(1, inputs=(Input(0, 0, Shape(3, 4, 5, flat=False)),)), "stage 1 does not follow"),
        (with_stage(1, inputs=(Input(0, 0, Shape(3, 4, 4, flat=True)),)), "stage 1 does not follow"),
        (with_tile(0, function=1), "a tile of another stage"),
        (with_tile(0, function=-1), "a tile of another stage"),
        (with_tile(0, inputs=()), "a tile of another stage"),
        (with_tile(0, padding=(NONE, NONE)), "a tile of another stage"),
        (with_tile(1, outputs=(ANSWER.whole, ANSWER.whole)), "a tile of another stage"),
        (with_tile(0, inputs=(OUTSIDE,)), "outside its map"),
        (with_tile(0, outputs=(OUTSIDE,)), "outside its map"),
        (with_tile(0, outputs=(Rect(Span(-1, 2), Span(0, 4)),)), "outside its map"),
        (with_tile(1, outputs=(WIDE,)), "outside its map"),
        (with_tile(0, cells=(Cell(1, MAP.whole),)), "outside its map"),
        (with_tile(0, cells=(Cell(-1, MAP.whole),)), "outside its map"),
        (with_tile(0, cells=(Cell(0, MAP.whole),)), "outside its map"),
        (with_tile(0, cells=(Cell(0, Rect(Span(1, 0), Span(0, 4))),)), "outside its map"),
        *(
            (with_tile(1, pieces=(Piece(0, 0, (Range(*given, (Cell(0, TOP),)),)),)), "piece of no tile")
            for given in ((4, 24, 0), (-4, 24, 0), (0, 20, 0), (0, 28, 0), (0, 24, 1), (0, 24, -1))
        ),
        (with_tile(1, pieces=(Piece(0, 1, (Range(0, 24, 0, (Cell(0, TOP),)),)),)), "piece of no tile"),
        (with_tile(1, pieces=(Piece(0, 0, (Range(0, 0, 0, ()),)),)), "piece of no tile"),
        (with_tile(0, pieces=(Piece(IMAGE, 0, ()),)), "piece of no tile"),
        (with_tile(0, pieces=(Piece(0, 0, ()),)), "piece of no tile"),
        (with_tile(1, pieces=(Piece(0, 7, ()),)), "piece of no tile"),
        (with_tile(1, pieces=(Piece(0, -1, ()),)), "piece of no tile"),
        (with_tile(1, pieces=(Piece(1, 0, ()),)), "piece of no tile"),
        (with_tile(1, pieces=(Piece(0, 0, (Range(0, 24, 0, (Cell(1, MAP.whole),)),)),)), "piece of no tile"),
    ],
)
def test_a_plan_with_a_right_digest_and_impossible_numbers_is_refused(change, complaint):
    with pytest.raises(PlanError, match=complaint):
        parse_plan(dump_plan(sealed(replace(PLAN, **change))))


CHANGE = ModelChange("fp16 storage", "3 weights", "random inputs", 4, 1e-4, 1.0, None, None)
COLD = with_weights_in(PLAN, "fetched", "fetched")
"""Another plan of the same network."""


def with_cold_plan(directory, plan=COLD):
    (directory / COLD_DIRECTORY).mkdir()
    return write_plan(directory / COLD_DIRECTORY, plan)


class TestColdPlan:
    def test_it_is_read_beside_the_plan(self, directory):
        assert load_cold_plan(directory, PLAN) is None
        with_cold_plan(directory)
        assert load_plan(directory) == PLAN
        assert load_cold_plan(directory, PLAN) == COLD
        assert load_plan(directory / COLD_DIRECTORY) == COLD
        measured = [sealed(replace(COLD, changes=(replace(CHANGE, error=error),))) for error in (1e-4, 2e-4)]
        write_plan(directory / COLD_DIRECTORY, measured[1])
        plan = sealed(replace(PLAN, changes=measured[0].changes))
        assert load_cold_plan(directory, plan) == measured[1], "how a change was measured makes no difference"

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"model": "other"}, "the model"),
            ({"weights": "random"}, "the origin of the weights"),
            ({"labels": ()}, "the labels"),
            ({"activation": "none"}, "the activation"),
            ({"preprocess": None}, "the preprocessing"),
            ({"preprocess": replace(PLAN.preprocess, scale=0.5)}, "the preprocessing"),
            ({"stages": (PLAN.stages[0], replace(PLAN.stages[1], operators=()))}, "the operators"),
            ({"changes": (CHANGE,)}, "the changes to the model"),
        ],
    )
    def test_a_plan_of_another_network_is_refused_with_both_digests(self, directory, change, named):
        other = sealed(replace(COLD, **change))
        with_cold_plan(directory, other)
        with pytest.raises(PlanError, match=f"{other.digest[:12]}.*{PLAN.digest[:12]}.*differ in {named}"):
            load_cold_plan(directory, PLAN)

    def test_the_plan_itself_and_a_cold_plan_in_a_cold_plan_are_refused(self, directory):
        with_cold_plan(directory, PLAN)
        with pytest.raises(PlanError, match="not another plan"):
            load_cold_plan(directory, PLAN)
        write_plan(directory / COLD_DIRECTORY, COLD)
        with_cold_plan(directory / COLD_DIRECTORY)
        with pytest.raises(PlanError, match="a cold plan of its own"):
            load_cold_plan(directory, PLAN)

    @pytest.mark.parametrize("target", ["elsewhere", "missing", "."])
    def test_a_link_is_refused(self, directory, tmp_path_factory, target):
        elsewhere = write_plan(tmp_path_factory.mktemp("elsewhere"), COLD)
        (directory / COLD_DIRECTORY).symlink_to(elsewhere if target == "elsewhere" else target)
        with pytest.raises(PlanError, match="is a link"):
            load_cold_plan(directory, PLAN)


def test_a_cold_plan_is_part_of_a_plan_directory():
    assert all(map(is_part, ("cold", "cold/plan.json", "cold/stage-0/weights-0.bin")))
    assert not any(map(is_part, ("cold/cold", "cold/cold/plan.json", "cold/notes.txt", "colder")))


@pytest.mark.parametrize("predicted_ms", [0.0, 20.0, 300.0, 2_000.0, 5_000.0, 60_000.0])
def test_a_function_outlives_the_patience_of_its_members(predicted_ms):
    gang = Gang(0, 2, compute_s=compute_limit_s(predicted_ms))
    plan = replace(small_plan(), gangs=(gang,))
    assert patience_s(gang) >= 10 + min(predicted_ms, 7_500) * 4 / 1000
    assert patience_s(gang) + 5 <= function_timeout_s(plan, 0, TASK_TIMEOUT_S) <= TASK_TIMEOUT_S
    assert function_timeout_s(plan, 1, TASK_TIMEOUT_S) == function_timeout_s(plan, 0, TASK_TIMEOUT_S)


def test_a_gang_that_is_predicted_to_be_fast_is_stopped_early():
    plan = replace(small_plan(), gangs=(Gang(0, 2, compute_s=compute_limit_s(50.0)),))
    assert function_timeout_s(plan, 0, TASK_TIMEOUT_S) == 17
    assert function_timeout_s(small_plan(), 0, TASK_TIMEOUT_S) == TASK_TIMEOUT_S


def vectors(lengths, reads, inline):
    """Return a plan of one tile a stage; stage k writes `lengths[k]` values and reads all of stages `reads[k]`."""
    first, template = small_plan().stages
    stages = []
    for number, (length, sources) in enumerate(zip(lengths, reads, strict=True)):
        rects = [Rect(Span(0, 1), Span(0, lengths[source])) for source in sources]
        pieces = tuple(
            Piece(source, 0, (Range(0, lengths[source], 0, (Cell(0, rect),)),))
            for source, rect in zip(sources, rects, strict=True)
        )
        base = template if number else first
        whole = Shape.vector(length).whole
        tile = replace(base.tiles[0], outputs=(whole,), cells=(Cell(0, whole),), pieces=pieces)
        stages.append(
            replace(base, outputs=(Shape.vector(length),), tiles=(tile,), path=INLINE if inline[number] else CACHE)
        )
    return replace(small_plan(), stages=tuple(stages))


THREE = [10, 20, 5], [[], [0], [0, 1]]
TWO = [20, 5], [[], [0]]


@pytest.mark.parametrize(
    ("lengths", "reads", "inline", "batch", "limit", "expected"),
    [
        (*THREE, [True, False, True], 1, 10**6, (True, False, True)),  # the plan's, where everything fits
        (*TWO, [True, True], 1, 84, (True, True)),
        (*TWO, [True, True], 1, 83, (False, True)),
        *((*TWO, [True, True], batch, 80 * 50 + 4, (batch <= 50, True)) for batch in (1, 50, 51)),
        (*THREE, [True, True, True], 1, 4 * 30 + 8, (True, True, True)),  # what a task reads is carried together
        (*THREE, [True, True, True], 1, 4 * 30 + 7, (True, False, True)),
        (*THREE, [False, True, True], 1, 4 * 20 + 4, (False, True, True)),  # what the store has takes no payload
        ([1, 5], [[], [0]], [True, True], 1, 23, (True, False)),
    ],
)
def test_stages_are_inline_within_the_limit_of_payloads(lengths, reads, inline, batch, limit, expected):
    assert inline_stages(vectors(lengths, reads, inline), batch, limit) == expected


def test_many_small_answers_may_exceed_their_readers_payload():
    plan = small_plan()
    assert inline_stages(plan, 1, 10**6) == (False, True)
    first, last = plan.stages
    plan = replace(plan, stages=(replace(first, path=INLINE), last))
    assert inline_stages(plan, 1, 4 * 48 + 8) == (True, True)
    assert inline_stages(plan, 1, 4 * 48 + 7) == (False, True)


def test_object_store_tensors_are_never_inline():
    plan = vectors([10, 20, 5], [[], [0], [0, 1]], [True, True, True])
    apart = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], path=OBJECTS), plan.stages[2]))
    assert inline_stages(apart, 1, 4 * 10 + 4) == (True, False, True)
