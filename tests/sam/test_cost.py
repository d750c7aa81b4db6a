import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.control.bill_lines import all_busy
from serfer.core.costs import cost_model
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cost_model import invoke_seconds, plan_load, price_plan
from serfer.core.errors import InputError, UsageError
from serfer.core.geometry import Grid
from serfer.core.plan import Gang, sealed
from serfer.drivers.stepfunctions.asl import compile_plan, local_functions
from serfer.sam.cost.bill import bill, deployed, price_build
from serfer.sam.cost.marginal import Deployed, query_usage, transitions
from serfer.sam.options import Pings
from serfer.sam.template.template import make_template
from tests.core.plans import small_plan
from tests.sam.builds import build, options
from tests.sam.offered import placed

FACTS = shipped_aws()
GANG = replace(small_plan(), gangs=(Gang(0, 2, 30.0, 1e-6),))


def deployed_with(**choices):
    chosen = options(**choices)
    template = make_template(chosen, [small_plan()])
    return deployed(small_plan(), chosen, FACTS, template), template


def lines(cold=0.0, **choices):
    return {line.item: line for line in query_usage(deployed_with(**choices)[0], cold).lines}


def test_query_pays_each_of_its_parts():
    usage = query_usage(deployed_with()[0])
    items = {line.item: line for line in usage.lines}
    assert items["API"].usd == 3.5e-6
    assert items["workers' invocations"].quantity == 3
    assert items["logs taken in"].quantity == 4 * FACTS.services.log_bytes
    assert usage.usd == pytest.approx(sum(line.usd for line in usage.lines))
    assert "store: writes" in items
    assert "through endpoints" not in items
    driver = items["driver's compute"]
    assert driver.quantity == pytest.approx(1769 / 1024 * (usage.seconds + FACTS.services.driver_seconds))
    assert driver.usd == pytest.approx(driver.quantity * FACTS.functions.price_gb_second, rel=0.02)
    arm, usual = (lines(architecture=name)["workers' compute"].usd for name in ("arm64", "x86_64"))
    assert arm == pytest.approx(0.8 * usual, rel=1e-4)


def test_query_pays_its_fleet_and_store():
    items = lines(drivers="fleet", store="valkey")
    assert {"balancer's capacity", "web ACL", "through endpoints"} <= set(items)
    assert not {"API", "driver's compute"} & set(items)
    items = lines(store="s3express")
    written, read = items["store: bytes written"], items["store: bytes read"]
    assert written.usd == pytest.approx(written.quantity * 0.0032e-9)
    assert read.usd == pytest.approx(read.quantity * 0.0006e-9)


def test_a_public_cache_is_priced_as_one_in_a_network_and_says_so():
    public, private = (query_usage(deployed_with(store=store)[0]) for store in ("valkey-public", "valkey"))
    assert [line for line in private.lines if line.item != "through endpoints"] == [*public.lines]
    assumed = [bill(*deployed_with(store=store)).assumed for store in ("valkey-public", "valkey")]
    assert [any("public endpoint" in note for note in notes) for notes in assumed] == [True, False]


def test_query_pays_its_engine():
    push, poll = lines(), lines(engine="poll")
    assert poll["store: writes"].quantity >= push["store: writes"].quantity + 3
    assert poll["store: reads and looks"].quantity > push["store: reads and looks"].quantity + 6
    assert query_usage(deployed_with(engine="poll")[0]).seconds > query_usage(deployed_with()[0]).seconds
    standard, express = lines(engine="stepfunctions"), lines(engine="stepfunctions-express")
    assert standard["transitions"].usd == pytest.approx(6 * 0.025e-3)  # the tiles, a Map of two, a task, cleaning up
    assert standard["workers' invocations"].quantity == 4
    assert express["executions"].usd == 1e-6
    assert express["executions' time"].quantity >= 64 / 1024 * 0.1
    assert "transitions" not in express


def test_transitions_are_those_that_the_machine_itself_has():
    plan = small_plan()
    first, last = plan.stages
    many = replace(first, tiles=first.tiles * 50, grid=Grid(10, 10))
    plan = replace(plan, stages=(many, last))
    machine = compile_plan(plan, local_functions(plan), express=False)
    [groups, one] = machine["States"]["tiles"]["Result"].values()
    assert (len(groups), sum(map(len, groups)), one) == (3, 100, None)
    assert transitions(plan) == 1 + (1 + 3 + 100) + 1 + 1  # three groups of at most forty


def test_cold_queries_cost_more_and_snapshots_their_restores():
    warm, cold = query_usage(deployed_with()[0]), query_usage(deployed_with()[0], 1.0)
    assert cold.usd > 2 * warm.usd
    assert cold.seconds > warm.seconds + FACTS.functions.init
    assert "SnapStart restores" not in lines(cold=0.0, snapstart=True)
    assert lines(cold=1.0, snapstart=True)["SnapStart restores"].usd > 0


def gang_usage(cold=0.0, **choices):
    usage = query_usage(Deployed(GANG, options(**choices), FACTS, 1769), cold)
    return usage, {line.item: line for line in usage.lines}


@pytest.mark.parametrize("cold", [0.0, 1.0])
def test_a_gang_pays_its_members_once_until_the_last_of_them_ends(cold):
    (usage, items), one = gang_usage(cold, store="valkey"), Deployed(GANG, options(store="valkey"), FACTS, 1769)
    price = price_plan(GANG, one.platform(cold), 1769).stages[0]
    assert items["workers' invocations"].quantity == 2
    assert items["workers' compute"].quantity == pytest.approx(1769 / 1024 * price.billed_s)
    assert usage.seconds == pytest.approx(price.seconds)


@pytest.mark.parametrize("plan", [small_plan(), GANG])
def test_crops_that_a_driver_puts_into_a_cache_are_paid_there_and_pass_no_endpoint(monkeypatch, plan):
    """The plan alone has the same price, and the endpoint's bytes are less by the crops, base64."""
    one = Deployed(plan, options(store="valkey"), FACTS, 1769)
    small = {line.item: line.quantity for line in query_usage(one).lines}["through endpoints"]
    monkeypatch.setattr(cost_model, "CROP_BYTES", 1)
    items = {line.item: line for line in query_usage(one).lines}
    parts = sum(line.usd for item, line in items.items() if item.startswith(("workers'", "store:")))
    assert parts == pytest.approx(price_plan(one.plan, one.platform(0.0)).usd, rel=1e-6)
    assert small - items["through endpoints"].quantity == pytest.approx(4 / 3 * plan_load(one.plan, 0).crops.sum())


@pytest.mark.parametrize(("drivers", "called"), [("function", 1), ("fleet", 0)])
def test_what_one_takes_has_all_that_its_driver_is_billed_for(drivers, called):
    one, template = deployed_with(drivers=drivers)
    latencies = {name: query["latency_ms"] for name, query in bill(one, template).as_dict()["query"].items()}
    read, invoked = FACTS.services.driver_seconds, called * invoke_seconds(1, FACTS.functions)
    assert latencies["warm"] == pytest.approx(1e3 * (query_usage(one).seconds + read + invoked))
    cold = query_usage(one, 1.0).seconds + read + invoked + called * FACTS.services.driver_init
    assert latencies["cold"] == pytest.approx(1e3 * cold)


@pytest.mark.parametrize("choices", [{"store": "s3"}, {"store": "valkey", "engine": "poll"}])
def test_gangs_that_run_stage_by_stage_pay_as_stages_do(choices):
    assert gang_usage(**choices)[0] == query_usage(Deployed(small_plan(), options(**choices), FACTS, 1769))


def test_month_adds_up_and_a_fleet_grows_with_it():
    one, template = deployed_with()
    rare, busy = bill(one, template, loads=[100, 10_000_000]).months
    assert rare.cold_share > 0.98
    assert busy.cold_share == pytest.approx(0, abs=1e-6)
    assert busy.usd == pytest.approx(sum(line.usd for line in busy.lines))
    idle = bill(one, template).idle_usd
    assert busy.usd - idle == pytest.approx(10_000_000 * query_usage(one).usd, rel=0.01)
    assert bill(one, template, loads=[100], cold_share=0.0).months[0].usd < rare.usd
    one, template = deployed_with(drivers="fleet", store="s3")
    small, large = bill(one, template, loads=[1000, 10**9]).months
    machines = [next(line for line in month.lines if line.item.startswith("drivers, ")) for month in (small, large)]
    assert machines[0].quantity == 2 * 730
    assert machines[1].quantity > 2 * 730


@pytest.mark.parametrize("given", [{"burst": 0}, {"loads": [0]}, {"loads": [10**13]}])
def test_loads_that_cannot_be_are_refused(given):
    with pytest.raises(UsageError, match="--per-month and --burst"):
        bill(*deployed_with(), **given)


def test_a_users_own_price_counts_and_is_marked():
    own = replace(FACTS, services=replace(FACTS.services, price_api_request=1.0), sources={})
    one, template = deployed_with()
    priced = bill(replace(one, facts=own), template)
    assert priced.warm.usd > 1
    assert bill(one, template).tag(next(line for line in priced.warm.lines if line.item == "API")) == "D"


def test_the_command_prices_a_build(tmp_path):
    place = build(tmp_path / "b", drivers="fleet", store="valkey")
    result = CliRunner().invoke(app, ["cost", str(place), "--per-month", "5000"])
    assert result.exit_code == 0, result.output
    for words in ("drivers fleet, store valkey", "an idle month: $2", "a million queries, cold", "5,000", "K common"):
        assert words in result.output
    document = json.loads(CliRunner().invoke(app, ["cost", str(place), "--json"]).output)
    assert [month["queries"] for month in document["months"]] == [1000, 100_000, 10_000_000]
    idle = document["idle_month"]
    assert {line["tag"] for line in idle["lines"]} <= set("DBMSK")
    assert idle["cost_usd"] == pytest.approx(sum(line["cost_usd"] for line in idle["lines"]))
    assert price_build(place, FACTS, burst=7).as_dict()["burst"]["queries"] == 7


def test_account_and_limits_are_those_that_the_deployment_has(tmp_path, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path / "cache"))
    place = build(tmp_path / "b")
    plan = place / "driver" / "plans" / small_plan().digest[:12]

    def priced(*words):
        done = CliRunner().invoke(app, ["cost", *map(str, words), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert [priced(each)["burst"]["concurrency"] for each in (place, plan)] == [10, 10]
    text = " ".join(CliRunner().invoke(app, ["cost", str(place)]).output.split())
    assert "10 environments at once (assumed" in text
    assert "333 at once, 100 a second, 100,000 a month a key" in text
    assert "10,000,000 (100 keys)" in text
    own = priced(place, "--parameter", "MonthlyQuota=3000000", "--set", "account=3008,50")
    assert [month["keys"] for month in own["months"]] == [1, 1, 4]
    assert (own["burst"]["concurrency"], own["limits"]["a_month"]) == (50, 3_000_000)
    monkeypatch.setenv("SERFER_ACCOUNT", "default")
    assert [priced(each)["burst"]["concurrency"] for each in (place, plan)] == [1000, 1000]
    assert price_build(build(tmp_path / "f", drivers="fleet"), FACTS, burst=1).limits is None


def test_options_of_the_other_kind_of_directory_are_refused(tmp_path):
    place = build(tmp_path / "b")
    assert CliRunner().invoke(app, ["cost", str(place), "--store", "s3"]).exception.exit_code == 2
    plan = place / "driver" / "plans" / small_plan().digest[:12]
    assert CliRunner().invoke(app, ["cost", str(plan), "--parameter", "MinDrivers=2"]).exception.exit_code == 2
    assert CliRunner().invoke(app, ["cost", str(plan)]).exit_code == 0


def test_alarms_are_priced_where_an_address_is_given(tmp_path):
    place = build(tmp_path / "b")
    quiet = price_build(place, FACTS, burst=1)
    with_alarms = price_build(place, FACTS, burst=1, parameters={"AlarmEmail": "a@example.org"})
    assert [any(line.item == "alarms" for line in priced.idle) for priced in (quiet, with_alarms)] == [False, True]
    assert with_alarms.idle_usd > quiet.idle_usd
    with pytest.raises(UsageError, match="--parameter Email: the template has AlarmEmail"):
        price_build(place, FACTS, burst=1, parameters={"Email": "x"})
    result = CliRunner().invoke(app, ["cost", str(place), "--parameter", "AlarmEmail"])
    assert str(result.exception) == "--parameter is NAME=VALUE, not 'AlarmEmail'"


@pytest.mark.parametrize(
    ("drivers", "before", "after"),
    [("function", "MemorySize: 1769", "MemorySize: x"), ("fleet", "MinSize:", "MinSize: x #")],
)
def test_an_altered_template_is_named(tmp_path, drivers, before, after):
    place = build(tmp_path / "build", drivers=drivers)
    text = (place / "template.yaml").read_text()
    assert before in text
    (place / "template.yaml").write_text(re.sub(f"{before}(\\n +Ref: .*)?", after, text))
    with pytest.raises(InputError, match="has something altered"):
        price_build(place, FACTS, burst=1)


def test_a_query_that_finds_nothing_warm_pays_the_cold_plan_and_the_environments_of_the_other():
    """By hand: every line of the cold plan's query, and for each task of the other a request and a cold start."""
    one, _ = deployed_with()
    cold = sealed(replace(small_plan(), model="small net", weights="none", labels=tuple(map(str, range(10)))))
    both = replace(one, cold=cold)
    assert query_usage(both) == query_usage(one)
    usage, alone = query_usage(both, 1.0), query_usage(replace(one, plan=cold), 1.0)
    items = {line.item: line for line in usage.lines}
    functions = FACTS.functions
    seconds = [functions.init + plan_load(small_plan(), stage).weight_bytes / functions.load_rate for stage in (0, 1)]
    gigabytes = [stage.memory_mb / 1024 for stage in small_plan().stages]
    by_hand = 2 * gigabytes[0] * seconds[0] + gigabytes[1] * seconds[1]
    assert items["warm-up requests"].quantity == 3
    assert items["warm-ups' compute"].quantity == pytest.approx(by_hand)
    assert items["warm-ups' compute"].usd == pytest.approx(by_hand * functions.price_gb_second, rel=0.01)
    warmed = items["warm-up requests"].usd + items["warm-ups' compute"].usd
    assert usage.usd == pytest.approx(alone.usd + warmed)
    assert usage.seconds == alone.seconds
    fetched = query_usage(replace(both, plan=placed(small_plan(), "fetched")), 1.0)
    assert "weights: reads by warm-ups" in {line.item for line in fetched.lines}


def test_a_share_of_queries_on_the_cold_plan_is_that_share_of_its_costs():
    both = replace(deployed_with()[0], cold=small_plan())
    warm, half, cold = (query_usage(both, share) for share in (0.0, 0.5, 1.0))
    assert half.usd == pytest.approx((warm.usd + cold.usd) / 2)
    assert half.seconds == pytest.approx((warm.seconds + cold.seconds) / 2)
    assert len({line.item for line in half.lines}) == len(half.lines)


def test_pings_are_priced_by_the_environments_that_they_hold():
    """By hand: 8,760 pings of 730 hours, each of three environments for half a second, and the driver that waits."""
    one, template = deployed_with(pings=Pings(5, 1))
    items = {line.item: line for line in bill(one, template).idle}
    functions = FACTS.functions
    first, last = (stage.memory_mb / 1024 for stage in small_plan().stages)
    assert items["pings"].quantity == 8760 * 4
    assert items["pings"].usd == pytest.approx(8760 * 4 * 0.2e-6)
    held = 8760 * 0.5 * (2 * first + last)
    assert items["pings: workers' compute"].quantity == pytest.approx(held)
    assert items["pings: workers' compute"].usd == pytest.approx(held * 16.6667e-6, rel=1e-4)
    waited = 8760 * 2 * (0.5 + functions.invoke_floor) * 1769 / 1024
    assert items["pings: driver's compute"].quantity == pytest.approx(waited)
    assert items["pings: driver's compute"].usd == pytest.approx(waited * 16.6667e-6, rel=0.01)
    plain, other = deployed_with()
    assert not [line for line in bill(plain, other).idle if line.item.startswith("pings")]


def test_pings_are_priced_and_what_they_keep_is_noted():
    (pinged, template), (plain, other) = deployed_with(pings=Pings(5, 1)), deployed_with()
    kept, left = bill(pinged, template, loads=[100]), bill(plain, other, loads=[100])
    assert left.months[0].cold_share > 0.98
    assert kept.months[0].cold_share < 0.001
    saved = f"one takes {kept.seconds(kept.warm):.2f} s, not {kept.seconds(kept.cold, 1.0):.2f} s"
    assert any(saved in note for note in kept.assumed)
    assert not any("pings" in note for note in left.assumed)
    one, template = deployed_with(pings=Pings(5, 1))
    own = [line for line in bill(replace(one, driver_runs=True), template).idle if line.item.startswith("pings")]
    assert [(line.item, line.quantity) for line in own] == [("pings", 8760)]


def test_provisioned_workers_run_at_a_price_of_their_own():
    warm, plain = lines(provisioned_concurrency=1), lines()
    assert warm["workers' compute"].quantity == plain["workers' compute"].quantity
    assert warm["workers' compute"].usd == pytest.approx(plain["workers' compute"].usd * 9.7222 / 16.6667, rel=1e-3)
    assert warm["workers' compute"].source == "lambda.price_provisioned_second"
    assert warm["driver's compute"] == plain["driver's compute"]
    assert lines(cold=1.0, provisioned_concurrency=1) == lines(cold=1.0)  # which finds none of them free
    arm = lines(provisioned_concurrency=1, architecture="arm64")["workers' compute"]
    assert arm.usd == pytest.approx(plain["workers' compute"].usd * 7.7778 / 16.6667, rel=1e-3)


def test_queries_beyond_what_is_kept_are_erlangs():
    """By hand: one of two busy half the time each; published values of Erlang B for 5 and 10 lines."""
    assert all_busy(0, 1.0) == 1
    assert all_busy(1, 1.0) == pytest.approx(1 / 2)
    assert all_busy(2, 1.0) == pytest.approx(1 / 5)
    assert all_busy(5, 1.36) == pytest.approx(0.01, rel=0.01)
    assert all_busy(10, 4.46) == pytest.approx(0.01, rel=0.01)
    one, template = deployed_with(provisioned_concurrency=1)
    [month] = bill(one, template, loads=[10**9]).months
    compute = {line.source: line.quantity for line in month.lines if line.item == "workers' compute"}
    assert compute["lambda.price_gb_second"] > compute["lambda.price_provisioned_second"] > 0
    assert month.cold_share == pytest.approx(0, abs=1e-6)
