"""What split says of a plan in four lines: what was chosen, how fast, how much, and what to type next."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.cli.shared.plan_summary import chosen_line, figures_line, idle_line, in_cache, next_line, others_line
from serfer.cli.shared.service_options import ask_line, served_models
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.pricing import Circumstances, price
from serfer.core.plan import AS_IS, PARTLY_TIMED, Alternative, Operator, sealed
from serfer.plan_directory import load_plan, write_plan
from serfer.sam.cost.fixed import fixed_costs
from serfer.sam.template.template import make_template
from tests.core.plans import small_plan
from tests.e2e.small import SIZE
from tests.sam import builds
from tests.test_recorded_plans import PLANS

SPLIT = "2x1 at 1769 MB, then 1 at 1769 MB"
WHOLE = "one function of 1769 MB"
LARGE = "one function of 10240 MB"


def other(stages, ms, usd, *, fits=True, chosen=False, tasks=1):
    return Alternative(stages, tasks, ms, usd, fits=fits, chosen=chosen)


def mine(plan, ms=80.0, usd=4e-6):
    return other(SPLIT if plan.tasks > 1 else WHOLE, ms, usd, chosen=True, tasks=plan.tasks)


def whole_plan():
    plan = small_plan()
    return replace(plan, stages=plan.stages[1:])


def shown(plan, *others, given=()):
    return others_line(replace(plan, alternatives=(mine(plan), *others)), given)


def test_a_whole_network_names_its_one_function():
    stage = replace(whole_plan().stages[0], memory_mb=2816)
    plan = replace(whole_plan(), stages=(stage,))
    assert chosen_line(plan) == "small net is kept whole: one function of 2,816 MB"
    fetched = replace(plan, stages=(replace(stage, weights_in="fetched"),))
    assert chosen_line(fetched).endswith("one function of 2,816 MB, which fetches its weights")


def test_a_split_network_says_how_many_invocations_a_query_pays_for():
    """A gang's members are invoked once, however many stages it has: tasks are more."""
    plan = small_plan()
    one = replace(plan.alternatives[0], stages="a gang of 9 stages on 2x1 at 1769 MB", tasks=2)
    line = chosen_line(replace(plan, alternatives=(one,)))
    assert line == "small net is split into a gang of 9 stages on 2x1 at 1769 MB: 2 invocations a query"
    told = CliRunner().invoke(app, ["explain", str(PLANS / "gang")]).stdout
    assert "5 tasks a query in 3 stages, by 2 invocations\n" in told
    long = replace(one, stages=", then ".join(["2x2 at 1769 MB"] * 12), tasks=40)
    assert (
        chosen_line(replace(plan, alternatives=(long,))) == "small net is split into 2 stages: 40 invocations a query"
    )


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], "splitting would be slower; --grids 2x2 forces it"),
        ([other(SPLIT, 90.0, 9e-6, tasks=3)], "splitting would be slower; --grids 2x2 forces it"),
        ([other(LARGE, 79.9, 9e-6)], "splitting would be slower; --grids 2x2 forces it"),
        ([other(LARGE, 20.0, 9e-6)], "splitting would be slower than one function of 10240 MB: 20 ms, $9.00 a million"),
        ([other(LARGE, 20.0, 9e-6, fits=False)], "splitting would be slower; --grids 2x2 forces it"),
        ([other(SPLIT, 40.0, 9e-6, tasks=3)], f"faster, but dearer: {SPLIT}: 40 ms, $9.00 a million (--objective lat"),
        ([other(SPLIT, 40.0, 1e-6, tasks=3)], f"faster and cheaper: {SPLIT}: 40 ms, $1.00 a million (--objective lat"),
    ],
)
def test_a_whole_network_is_compared_with_the_fastest_plan(others, words):
    assert shown(whole_plan(), *others).startswith(words)


def test_what_was_given_is_named_in_place_of_a_comparison_that_was_not_made():
    assert shown(whole_plan(), given=["--grids"]) == "--grids ruled other plans out"
    assert shown(whole_plan(), given=["--whole"]) == ""


def test_a_network_that_cannot_be_split_is_not_said_to_be_slower_in_parts():
    plan = whole_plan()
    stage = replace(plan.stages[0], operators=(Operator("all", AS_IS, 1),))
    for given in ([], ["--grids"]):
        line = shown(replace(plan, stages=(stage,)), given=given)
        assert line == "it cannot be split: its operators run as given, in one task"


@pytest.mark.parametrize(
    ("others", "given", "words"),
    [
        ([other(WHOLE, 160.0, 2e-6)], [], f"unsplit, {WHOLE}: 160 ms, $2.00 a million"),
        (
            [other(WHOLE, 20.0, 1e-6)],
            ["--grids", "--stages"],
            f"faster and cheaper without --grids and --stages: {WHOLE}",
        ),
        ([other(WHOLE, 20.0, 1e-6, fits=False)], [], "one function does not hold the network"),
        ([], [], ""),
    ],
)
def test_a_split_network_is_compared_with_one_function(others, given, words):
    line = shown(small_plan(), *others, given=given)
    assert line.startswith(words)
    assert bool(line) == bool(words)


def test_figures_are_those_of_the_plan_and_of_the_months_that_were_asked_about():
    plan = small_plan()
    prices = price(plan, shipped_aws(), Circumstances())
    warm = price(plan, shipped_aws(), Circumstances(cold_share=0.0)).query
    line = figures_line(prices)
    dollars = rf"\${1e6 * warm.usd:.2f} a million queries, \${1e6 * prices.query.usd:.2f} with 2% cold"
    assert re.fullmatch(rf"{1e3 * warm.seconds:.0f} ms warm, [\d,]+ ms cold, {dollars} \(predicted\)", line)
    timed = price(replace(plan, times=PARTLY_TIMED), shipped_aws(), Circumstances())
    assert figures_line(timed).endswith("in part timed here)")
    line = figures_line(prices, [1000, 2_000_000])
    months = re.findall(r"\$([\d.]+) a month of ([\d,]+\d)", line)
    assert [queries for _, queries in months] == ["1,000", "2,000,000"]
    assert f", ${prices.standing_usd:.2f} of it for an idle redis (predicted)" in line
    for usd, queries in zip((float(usd) for usd, _ in months), (1000, 2_000_000), strict=True):
        assert usd == pytest.approx(prices.standing_usd + queries * prices.query.usd, abs=0.01)


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_a_plan_over_a_cache_names_what_stands_idle_where_it_is_deployed(store):
    plan, facts = replace(small_plan(), store=store), shipped_aws()
    line = idle_line(price(plan, facts, Circumstances()))
    template = make_template(builds.options(store=store), [plan])
    stands = sum(line.usd for line in fixed_costs(template, facts))
    assert f" for {store}" in line
    assert f"in a VPC, ${stands:,.2f} with its endpoint" in line


def test_the_next_command_can_be_copied(tmp_path):
    place = f"'{tmp_path}/my plan'"
    assert next_line(tmp_path / "my plan").startswith(f"next: serfer serve --plan {place} ")


def test_a_plan_is_summed_up_when_it_is_made_and_not_when_it_is_found(tmp_path, capsys):
    write_plan(sealed(small_plan()), tmp_path)

    def make(step):
        step("splitting")
        return tmp_path

    steps = []
    assert in_cache(make, steps.append) == tmp_path
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("serfer: small net is split into ")
    assert re.match(r"serfer: [\d.]+ ms warm, ", second)
    assert steps == ["splitting"]
    assert in_cache(lambda _step: tmp_path, steps.append) == tmp_path
    assert capsys.readouterr().err == ""


def split(*arguments):
    result = CliRunner().invoke(app, ["split", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_a_service_names_its_price_and_a_request_that_it_answers_every_time(file, tmp_path, capsys):
    for _ in range(2):
        (plan,) = served_models((), (), [str(file)]).values()
        assert " ms warm, " in capsys.readouterr().err
    assert re.search("/v1/predict'.* # .*network's numbers: --output softmax$", ask_line("http://x", [plan]))
    write_plan(sealed(replace(load_plan(plan), activation="softmax")), tmp_path)
    assert re.search("-H 'X-API-Key: .*/v1/classify'", ask_line("http://x", [tmp_path], keyed=True))


def test_split_prints_four_lines_and_explain_the_rest(file, tmp_path):
    made = split(file, "--out", tmp_path / "plan", "--name", "digits")
    first, second, third, last = made.stdout.splitlines()
    assert first == "digits is kept whole: one function of 1,769 MB"
    assert second.endswith("with 2% cold (predicted)")
    assert third.startswith("splitting would be slower")
    assert last == next_line(tmp_path / "plan")
    assert load_plan(tmp_path / "plan").model == "digits"
    tiles = split(file, "--out", tmp_path / "tiles", "--grids", "2x2", "--per-month", "5000")
    first, second, idle, third, _ = tiles.stdout.splitlines()
    for command in ("explain", "cost"):
        assert idle in CliRunner().invoke(app, [command, str(tmp_path / "tiles")]).output
    assert re.fullmatch(r"small is split into .* on 2x2 at 1769 MB, simulated: 4 invocations a query", first)
    assert "a month of 5,000" in second
    assert third.startswith("faster and cheaper without --grids: one function of 1769 MB")
    assert "1 task a query in 1 stage\n" in CliRunner().invoke(app, ["explain", str(tmp_path / "plan")]).output


def test_what_nothing_says_of_images_is_assumed_as_serve_assumes_it(file, tmp_path):
    """And the plan is that of a --preprocess with the same, of which nothing is said."""
    stretched = tmp_path / "stretched.toml"
    stretched.write_text("crop = 'none'")
    for options in ([], ["--whole"]):
        made = split(file, "--out", tmp_path / "plan", *options)
        assert made.stderr == (
            f"serfer: assumed: images of small are stretched to {SIZE} x {SIZE} pixels, RGB, their values times 1/255; "
            "preprocess=FILE.toml says what is right (docs/how-to/preprocess.md)\n"
        )
        given = split(file, "--out", tmp_path / "given", "--preprocess", stretched, *options)
        assert f"{SIZE} x {SIZE} pixels" in given.stderr
        assert "assumed" not in given.stderr
        assert load_plan(tmp_path / "plan").preprocess == load_plan(tmp_path / "given").preprocess
        assert load_plan(tmp_path / "plan").digest == load_plan(tmp_path / "given").digest


def test_json_has_the_plan_and_the_months(file, tmp_path):
    made = json.loads(split(file, "--out", tmp_path / "plan", "--whole", "--json", "--per-month", "1000").stdout)
    [month] = made.pop("months")
    assert (month["queries"], made["model"]) == (1000, "small")
    for command in ("explain", "cost"):
        told = CliRunner().invoke(app, [command, str(tmp_path / "plan"), "--json", "--per-month", "1000"])
        found = json.loads(told.stdout)
        assert found.pop("months") == [month]
        assert command == "cost" or found == made
    text = CliRunner().invoke(app, ["explain", str(tmp_path / "plan"), "--per-month", "1000"]).stdout
    assert f"a month of 1,000 queries: ${month['cost_usd']:,.2f}" in text
