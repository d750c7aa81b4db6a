import json
import os
from dataclasses import replace

import pytest

from serfer.core.errors import InputError
from serfer.sam.deployment import (
    dump_deployment,
    is_replaceable,
    load_deployment,
    load_packaged_plan,
    load_template,
    parse_deployment,
)
from serfer.sam.options import RECORD, TEMPLATE, GpuPool, Pings, is_build
from serfer.sam.template.intrinsics import resources
from tests.core.plans import small_plan
from tests.sam.builds import build, deployment, options

FOUND = deployment(small_plan(), options(store="s3express", snapstart=True))
RECORDED = json.loads(dump_deployment(FOUND))


def recorded(**choices):
    return deployment(small_plan(), options(**choices))


@pytest.mark.parametrize(
    "written",
    [
        FOUND,
        recorded(drivers="fleet", gpu=GpuPool("g6.xlarge", 4, 1)),
        recorded(drivers="fleet", gpu=GpuPool("g6.xlarge", 4, 1, spot=True)),
        recorded(pings=Pings(5, 2), provisioned_concurrency=3),
        replace(FOUND, cold={FOUND.current: "1" * 12}, bytes={"cold-0-0": 2}, images=("1" * 12 + "-0-0",)),
    ],
)
def test_a_record_is_read_as_it_was_written(written):
    text = dump_deployment(written)
    assert parse_deployment(text) == written
    assert dump_deployment(parse_deployment(text)) == text


def test_a_record_says_nothing_of_what_it_has_not_and_earlier_versions_read_it():
    document = json.loads(dump_deployment(FOUND))
    assert "cold" not in document
    assert not {"pings", "provisioned_concurrency"} & document["options"].keys()
    assert (
        "spot"
        not in json.loads(dump_deployment(recorded(drivers="fleet", gpu=GpuPool("g6.xlarge", 4))))["options"]["gpu"]
    )
    del document["options"]["gpu"]
    assert parse_deployment(json.dumps(document)) == FOUND


def test_a_function_of_a_cold_plan_may_be_an_image():
    found = replace(FOUND, cold={FOUND.current: "1" * 12}, images=("1" * 12 + "-0-0",))
    assert [found.is_image(name) for name in ("0-0", "cold-0-0")] == [False, True]


def test_a_build_differs_from_a_plan_directory_and_holds_its_plan(tmp_path):
    place = build(tmp_path / "b")
    assert is_build(place)
    assert not is_build(tmp_path)
    assert load_packaged_plan(place, load_deployment(place).current) == small_plan()
    assert "WorkerRole" in load_template(place)["Resources"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "another format than 1"),
        ({"more": 1}, "unknown 'more'"),
        ({"plans": []}, "plans should be one or two"),
        ({"plans": ["0" * 12] * 3}, "plans should be one or two"),
        ({"plans": ["../../etc/pa"]}, "twelve hexadecimal"),
        ({"digest": "x"}, "64 hexadecimal"),
        ({"bytes": []}, "bytes should be an object"),
        ({"bytes": {"stage-0": -1}}, "negative"),
        ({"bytes": {"stage-0": "1"}}, "bytes.stage-0 should be a whole number"),
        ({"precompiled": 1}, "precompiled should be true or false"),
        ({"options": {}}, "options lacks"),
        ({"options": {**RECORDED["options"], "runtime": "python3.11"}}, r"deployment\.json: --runtime is"),
        ({"cold": []}, "cold should be an object"),
        ({"cold": {FOUND.current: "x"}}, "twelve hexadecimal digits"),
        ({"cold": {"1" * 12: "2" * 12}}, "plans of the deployment"),
        ({"bytes": {"cold-0-0": 1}}, "a cold plan that there is not"),
    ],
)
def test_records_with_invalid_values_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        parse_deployment(json.dumps({**RECORDED, **change}))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "{}"])
def test_an_invalid_record_is_refused(text):
    with pytest.raises(InputError, match="serfer deploy package"):
        parse_deployment(text)


def test_missing_oversized_and_wrong_plan_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"deployment\.json' cannot be read: No such file"):
        load_deployment(tmp_path)
    (tmp_path / RECORD).write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(InputError, match="more than 1,048,576 bytes"):
        load_deployment(tmp_path)
    for text in ("!Ref x", "Resources: []", "a: *b"):
        (tmp_path / TEMPLATE).write_text(text)
        with pytest.raises(InputError, match=r"template\.yaml"):
            load_template(tmp_path)
    place = build(tmp_path / "b")
    deployment = load_deployment(place)
    (place / "driver" / "plans" / deployment.current).rename(place / "driver" / "plans" / ("0" * 12))
    (place / RECORD).write_text((place / RECORD).read_text().replace(deployment.current, "0" * 12))
    with pytest.raises(InputError, match="another plan"):
        load_packaged_plan(place, load_deployment(place).current)


BOMB = "a: &a0 [x, x]\n" + "".join(f"b{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 64))


@pytest.mark.parametrize(
    "text",
    [
        f"Resources: {{}}\n{BOMB}",
        "Resources: &r {F: {Type: T, Properties: *r}}",
        "Resources: {}\na: &a {x: 1}\nb: {<<: *a}",
        "Resources: {2020-01-01: {Type: T}}",
        "Resources: {A: 3}",
        "Resources: {A: {}}",
        "Resources: {A: {Type: 3}}",
        "Resources: {A: {Type: T, Properties: [1]}}",
        "Resources: {}\nParameters: {A: 3}",
        "Resources: {}\nConditions: [1]",
        "Resources: {}\nMappings: 4",
    ],
)
def test_a_template_that_no_package_would_write_is_refused_at_once(tmp_path, text):
    (tmp_path / TEMPLATE).write_text(text)
    with pytest.raises(InputError, match=r"template\.yaml"):
        load_template(tmp_path)


@pytest.mark.parametrize(("name", "load"), [(RECORD, load_deployment), (TEMPLATE, load_template)])
def test_a_pipe_is_not_waited_for(tmp_path, name, load):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is not a file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "ours"),
    [('{"kind": "Deployment"}', False), ("{", False), ('{"format": 0, "serfer": "", "plans": 1}', True)],
)
def test_a_record_of_another_tool_gives_nothing_away(tmp_path, text, ours):
    (tmp_path / RECORD).write_text(text)
    assert is_replaceable(tmp_path) is ours


def test_intrinsic_functions_that_no_package_would_write_stand_for_nothing():
    every = {
        "Conditions": {
            "Itself": {"Fn::Not": [{"Condition": "Itself"}]},
            "Short": {"Fn::Equals": [1]},
            "C0": {"Fn::Equals": ["a", "a"]},
            **{f"C{i}": {"Fn::And": [{"Condition": f"C{i - 1}"}] * 9} for i in range(1, 64)},
        },
        "Resources": {
            "A": {"Type": "T", "Condition": "Itself"},
            "B": {"Type": "T", "Condition": "Short"},
            "C": {"Type": "T", "Condition": "C63"},
            "D": {"Type": "T", "Properties": {"a": {"Fn::If": ["x"]}, "b": {"Fn::FindInMap": 3}, "c": {"Ref": ["a"]}}},
        },
    }
    made = resources(every)
    assert "C" in made
    assert made["D"][1] == every["Resources"]["D"]["Properties"]
    assert "B" not in made
