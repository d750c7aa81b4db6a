"""What a deployment's routing reckons with: predicted, priced and measured numbers, and none that is assumed."""

import tomllib
from dataclasses import replace

import pytest

from serfer.control.scenario import parse_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError, UsageError
from serfer.sam.cost.marginal import query_usage, serverless_usd
from serfer.sam.cost.scenario import check_pool, make_scenario, read_profile
from serfer.sam.options import GpuPool
from tests.core.plans import small_plan
from tests.sam.builds import options
from tests.sam.test_cost import deployed_with

FACTS = shipped_aws()
POOLED = options(drivers="fleet", gpu=GpuPool("g6.xlarge", 4))
TUNED = """
[[instance]]
name = "g6.xlarge"
# usd_per_hour is not known: give --usd-per-hour, or --name a machine of the price data
spot_usd_per_hour = 0
boot_s = 150
min_billing_s = 60
qps = 123.5
batches = [[1, 5.25], [8, 21]]
"""


@pytest.fixture
def profile(tmp_path):
    def profile(text=TUNED, slo_ms=200.0, chosen=POOLED, facts=FACTS):
        file = tmp_path / "profile.toml"
        file.write_text(text)
        return read_profile(file, slo_ms, chosen, facts)

    return profile


def made(profile, plan=None, chosen=POOLED):
    return parse_scenario(tomllib.loads(make_scenario(plan or small_plan(), chosen, FACTS, profile)))


def test_functions_are_as_the_cost_model_predicts_them(profile):
    scenario, usage = made(profile()), query_usage(deployed_with(drivers="fleet")[0])
    functions = scenario.serverless
    assert functions.latency_ms == pytest.approx(1000 * usage.seconds)
    assert functions.cold_ms > 1000 * FACTS.functions.init
    assert functions.keep_alive_s == FACTS.functions.kept_warm
    assert functions.memory_gb * 1024 == sum(stage.memory_mb * stage.grid.tiles for stage in small_plan().stages)
    assert functions.concurrency == FACTS.functions.concurrency // 2  # two tiles at once
    assert scenario.slo_ms == 200.0


def test_costs_common_to_both_targets_are_not_function_costs(profile):
    deployed = deployed_with(drivers="fleet")[0]
    lines = {line.item: line.usd for line in query_usage(deployed).lines}
    either_way = sum(lines[item] for item in ("balancer's capacity", "web ACL", "logs taken in", "answers out"))
    assert serverless_usd(deployed) == pytest.approx(sum(lines.values()) - either_way)
    assert made(profile()).serverless.usd_per_query == serverless_usd(deployed)


def test_an_instance_has_its_measured_speed_and_listed_price(profile):
    kind = made(profile()).instance
    assert (kind.name, kind.qps, kind.boot_s, kind.batches) == ("g6.xlarge", 123.5, 150.0, ((1, 5.25), (8, 21.0)))
    assert kind.usd_per_hour == FACTS.instances["g6.xlarge"]
    dear = replace(FACTS, instances={"g6.xlarge": 9.0})
    assert profile(TUNED.replace("# usd", "usd_per_hour = 1 # "), facts=dear).instance.usd_per_hour == 9.0


def test_spot_instances_want_the_price_that_the_profile_has(profile):
    spot = replace(POOLED, gpu=GpuPool("g6.xlarge", 4, spot=True))
    with pytest.raises(UsageError, match=r"gpu_spot: gpu_profile=.* has no spot price"):
        profile(chosen=spot)
    priced = TUNED.replace("spot_usd_per_hour = 0", "spot_usd_per_hour = 0.31")
    assert made(profile(priced, chosen=spot), chosen=spot).instance.spot_usd_per_hour == 0.31


def test_reserved_concurrency_bounds_the_functions_queries(profile):
    assert made(profile(), chosen=replace(POOLED, reserved_concurrency=9)).serverless.concurrency == 4
    assert made(profile(), chosen=replace(POOLED, reserved_concurrency=1)).serverless.concurrency == 1


def test_the_same_inputs_give_the_same_text(profile):
    texts = {make_scenario(small_plan(), POOLED, FACTS, profile()) for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slo_ms": None}, "gpu_slo_ms is missing"),
        ({"chosen": options(drivers="fleet")}, "go with --gpu-instance-type"),
        ({"chosen": options(drivers="fleet", gpu=GpuPool("g5.xlarge", 1))}, "is of 'g6.xlarge', not of g5.xlarge"),
        (
            {"chosen": options(drivers="fleet", gpu=GpuPool("g9.huge", 1))},
            "g9.huge has no price among .*SERFER_AWS_FILE",
        ),
    ],
)
def test_choices_that_do_not_go_together_are_refused(profile, change, words):
    with pytest.raises(UsageError, match=words):
        profile(**change)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one .*instance.* table"),
        ("[instance", "is not TOML"),
        (TUNED + TUNED, "one .*instance.* table"),
        (TUNED + "[lambda]\n", "one .*instance.* table"),
        (TUNED.replace("qps = 123.5", ""), "lacks .qps"),
        (TUNED.replace("qps = 123.5", "qps = nan"), "qps should be"),
        (TUNED.replace("[[1, 5.25], [8, 21]]", "[]"), "batches should be"),
        (TUNED + "more = 1\n", "unknown .more"),
        ("instance = [1]", "not a table"),
        ("#" * 70_000, "more than 65,536 bytes"),
    ],
)
def test_an_invalid_profile_is_refused_by_name(profile, text, words):
    with pytest.raises(InputError, match=f"gpu_profile=.*profile.toml: .*{words}") as caught:
        profile(text)
    assert "\n" not in str(caught.value)


def test_an_objective_that_cannot_be_is_refused(profile):
    with pytest.raises(InputError, match="slo_ms"):
        profile(slo_ms=-1.0)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_profile(tmp_path / "none.toml", 200.0, POOLED, FACTS)


def test_a_network_that_a_plan_alters_is_not_served_by_instances(profile):
    plan = replace(small_plan(), original=(small_plan().unsplit,))
    with pytest.raises(UsageError, match="alters its network"):
        check_pool(plan, POOLED, profile())
    check_pool(plan, options(), None)
