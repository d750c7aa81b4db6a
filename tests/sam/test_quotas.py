from dataclasses import replace

import pytest

from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UnavailableError, UsageError
from serfer.core.geometry import Grid
from serfer.core.plan import Gang
from serfer.sam.options import GpuPool, Pings, Serves, check_name
from serfer.sam.quotas import check_deployable, check_template, find_sam, stack_resources
from serfer.sam.template.template import make_template
from tests.core.plans import small_plan
from tests.sam.builds import options
from tests.sam.offered import SERVES

FACTS = shipped_aws()


def with_first(**changes):
    first, last = small_plan().stages
    return replace(small_plan(), stages=(replace(first, **changes), last))


def test_deployable_plans_are_accepted(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    for store in ("s3", "s3express", "valkey"):
        assert check_deployable(small_plan(), options(store=store), FACTS) == []


def gang_plan(tiles):
    first = small_plan().stages[0]
    wide = with_first(tiles=first.tiles * (tiles // 2), grid=Grid(tiles, 1))
    return replace(wide, gangs=(Gang(0, 2, 30.0, 1e-6),))


PLAN = small_plan()
LARGE = replace(PLAN, limit=replace(PLAN.limit, dependencies=FACTS.functions.package_limit))
FLEET = {"drivers": "fleet"}
EXPRESS = {**FLEET, "engine": "stepfunctions-express"}
MANY = with_first(tiles=PLAN.stages[0].tiles * 500, grid=Grid(50, 20))
RESERVED = {"store": "valkey", "reserved_concurrency": 7}


@pytest.mark.parametrize(
    ("plan", "choices", "words"),
    [
        (PLAN, {"region": "us-east-9"}, "--region us-east-9 .*: did you mean us-east-"),
        (PLAN, {"region": "eu-west-3", "store": "s3express"}, "--store s3express: eu-west-3 has no zone"),
        (PLAN, {"store": "s3express", "zone": "use1-az2"}, "zone use1-az2 has no S3 Express: in us-east-1"),
        (PLAN, {"store": "s3express", "zone": "euw1-az1"}, "zone euw1-az1"),
        (PLAN, {"snapstart": True, "region": "ap-east-2"}, "--snapstart: ap-east-2 has none"),
        (PLAN, {"runtime": "python3.11"}, "--runtime is python3.13, python3.12 or python3.14"),
        (with_first(memory_mb=20_000), {}, "stage-0 has 20,000 MB, Lambda allows 128 to 10,240: .*--memory"),
        (with_first(predicted_ms=1e6), {}, "predicted to take 1000 s, a function may take 900 s: .*--stages"),
        (with_first(predicted_ms=3e4), {}, "30 s, a REST API waits 29 s: use --drivers fleet"),
        (with_first(predicted_ms=4e5), EXPRESS, "an Express workflow runs 300 s: use --engine stepfunctions"),
        (MANY, {"engine": "stepfunctions"}, "--engine stepfunctions: the plan has 1001 tasks"),
        (gang_plan(8), RESERVED, "stages 0 to 1 needs 8 environments at once, reserved_concurrency allows 7"),
        (gang_plan(2000), {"store": "valkey"}, "needs 2,000 environments at once, .* 1,000: .*--set gang=never"),
        (LARGE, {}, "stage-0/0 has .* a function may have 262,144,000: .*limit_mb"),
        (PLAN, {"pings": Pings(6)}, "later than environments without work stay, 300 s .* ping every 5 minutes"),
        (PLAN, {"pings": Pings(5, 500)}, "ping_queries=500 takes 1,001 environments at once"),
        (PLAN, {"region": "us-isof-south-1"}, "has no apigateway, which --drivers function needs"),
        (PLAN, {"region": "eu-isoe-west-1", "drivers": "fleet"}, "eu-isoe-west-1 has no wafv2"),
        (PLAN, {"provisioned_concurrency": 301}, "takes 903 environments of all functions .* may set 900 aside"),
        (PLAN, {"provisioned_concurrency": 3, "reserved_concurrency": 5}, "takes 6 environments .* allows 5"),
    ],
)
def test_plans_that_aws_refuses_are_refused_with_the_option(plan, choices, words):
    with pytest.raises(UsageError, match=words):
        check_deployable(plan, options(**choices), FACTS)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"driver_runs": "perhaps"}, "driver_runs is auto, always or never"),
        ({"store": "valkey-public", "drivers": "fleet"}, "--store valkey-public goes with --drivers function"),
        ({"store": "dynamo"}, "--store is s3, s3express, valkey, redis or valkey-public"),
        ({"reserved_concurrency": 0}, "reserved_concurrency is 1 or more"),
        ({"pings": Pings(0)}, "ping_every is 1 minute or more"),
        ({"pings": Pings(5, 0)}, "ping_queries is 1 to 1000"),
        ({"pings": Pings(5), "drivers": "fleet"}, "ping_every goes with --drivers function"),
        ({"provisioned_concurrency": 0}, "provisioned_concurrency is 1 or more"),
        ({"provisioned_concurrency": 1, "snapstart": True}, "does not go with --snapstart"),
        *(({"results_days": days}, f"results_days is 1 to 30, or 0 for none, not {days}") for days in (-1, 0, 31)),
        ({"results_days": 1, "engine": "stepfunctions-express"}, "results_days .*: stepfunctions-express keeps no"),
        ({"applications": Serves("/srv/registry", ("faces",))}, "--registry is s3://"),
        ({"applications": Serves("s3://models/x", ("faces", "faces"))}, "--app names 1 to 20"),
        ({"applications": Serves("s3://models/x", ("a b",))}, "--app 'a b'"),
        ({"applications": SERVES, "engine": "stepfunctions"}, "--engine push or poll"),
        ({"applications": SERVES, "driver_runs": "always"}, "driver_runs=always"),
        ({"gpu": GpuPool("g6.xlarge", 1)}, "--gpu-instance-type goes with --drivers fleet"),
        ({**FLEET, "architecture": "arm64", "gpu": GpuPool("g6.xlarge", 1)}, "goes with --architecture x86_64"),
        ({**FLEET, "gpu": GpuPool("t3.large", 1)}, "--gpu-instance-type is one of EC2's G types"),
        ({**FLEET, "gpu": GpuPool("g6.xlarge", 0)}, "gpu_max is 1 to 100"),
        ({**FLEET, "gpu": GpuPool("g6.xlarge", 101)}, "gpu_max is 1 to 100"),
        ({**FLEET, "gpu": GpuPool("g6.xlarge", 2, 3)}, "gpu_warm_pool is 0 to 2"),
    ],
)
def test_choices_that_cannot_be_are_refused_by_name(choices, words):
    with pytest.raises(UsageError, match=words):
        options(**choices).check()


@pytest.mark.parametrize("name", ["Upper", "a" * 31, "1a", "a-", "a--b", ""])
def test_a_name_that_aws_would_refuse_is_refused(name):
    check_name("a1-" + "b" * 27)
    with pytest.raises(UsageError, match="--name"):
        check_name(name)


def test_it_is_noted_how_the_gangs_of_a_plan_will_run():
    [note] = check_deployable(gang_plan(8), options(store="valkey"), FACTS)
    assert "needs 8 environments at once" in note
    for choices in ({"store": "s3"}, {"store": "valkey", "engine": "poll"}):
        [note] = check_deployable(gang_plan(8), options(**choices), FACTS)
        assert "stage by stage" in note


def test_quotas_to_be_raised_are_noted():
    [memory] = check_deployable(with_first(memory_mb=4000), options(), FACTS)
    assert "stage-0 has 4,000 MB, more than a new AWS account of 3,008 MB a function" in memory
    assert "--memory 3008" in memory
    [reserved] = check_deployable(small_plan(), options(reserved_concurrency=500), FACTS)
    assert "1,000 environments for 2 functions, an account may reserve 900" in reserved


def test_a_stack_has_as_many_resources_as_it_may():
    template = make_template(options(), [small_plan()])
    check_template(template, FACTS)
    count = stack_resources(template)
    assert count >= len(template["Resources"]) - 10
    few = replace(FACTS, services=replace(FACTS.services, stack_resources=count - 1))
    with pytest.raises(UsageError, match=rf"{count} resources, {count - 1} are allowed: .*--stages"):
        check_template(template, few)
    short = replace(FACTS, services=replace(FACTS.services, template_limit=100))
    with pytest.raises(UsageError, match="100 are allowed"):
        check_template(template, short)


def test_resources_that_sam_adds_are_counted():
    function = {"Type": "AWS::Serverless::Function", "Properties": {}}
    live = {"Type": "AWS::Serverless::Function", "Properties": {"AutoPublishAlias": "live", "Role": "r"}}
    assert stack_resources({"Resources": {"A": function, "B": live}}) == 2 + 3


def test_sam_is_found_in_its_own_environment_first(tmp_path):
    own, other = tmp_path / "venv" / "sam" / "bin" / "sam", tmp_path / "bin" / "sam"
    for program in (own, other):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    path = str(other.parent)
    assert find_sam(tmp_path / "venv", path) == own
    assert find_sam(tmp_path / "none", path) == other
    with pytest.raises(UnavailableError, match=r"not on PATH: .* pipx install aws-sam-cli$"):
        find_sam(tmp_path / "none", str(tmp_path))


def test_a_cold_plan_keeps_the_limits_too_and_is_counted():
    reserved = options(reserved_concurrency=300)
    assert check_deployable(small_plan(), reserved, FACTS) == []
    [note] = check_deployable(small_plan(), reserved, FACTS, small_plan())
    assert "1,200 environments for 4 functions" in note
    [memory] = check_deployable(small_plan(), options(), FACTS, with_first(memory_mb=4000))
    assert "stage-0 has 4,000 MB" in memory
    with pytest.raises(UsageError, match="Lambda allows 128"):
        check_deployable(small_plan(), options(), FACTS, with_first(memory_mb=100_000))


def test_a_cold_plan_that_takes_the_environments_of_the_other_is_refused():
    few = replace(FACTS, functions=replace(FACTS.functions, concurrency=3))
    check_deployable(small_plan(), options(), few)
    with pytest.raises(UsageError, match=r"2 environments while 2 of the other plan start.* --set cold_plan=never"):
        check_deployable(small_plan(), options(), few, small_plan())


@pytest.mark.parametrize(
    "choices",
    [
        {"pings": Pings(5, 499)},
        {"provisioned_concurrency": 300},
        {"provisioned_concurrency": 2, "reserved_concurrency": 4},
    ],
)
def test_environments_that_an_account_has_room_for_may_be_kept(choices):
    check_deployable(small_plan(), options(**choices), FACTS)


def test_gangs_that_run_stage_by_stage_need_no_more_environments_at_once_than_there_are():
    check_deployable(gang_plan(8), options(store="s3", reserved_concurrency=7), FACTS)
    check_deployable(gang_plan(2000), options(store="s3"), FACTS)


def test_what_a_query_needs_is_held_against_the_account():
    wide = gang_plan(16)
    [note, _] = check_deployable(wide, options(store="valkey"), FACTS)
    assert "a query takes 16 environments at once and its driver one more; a new AWS account of 3,008 MB" in note
    assert "--set max_tiles=9 or less" in note
    assert len(check_deployable(gang_plan(10), options(store="valkey", drivers="fleet"), FACTS)) == 1
    ample = AccountQuotas.parse("default", FACTS)
    [gang] = check_deployable(wide, options(store="valkey"), FACTS, None, ample)
    assert "widest gang needs 16" in gang
