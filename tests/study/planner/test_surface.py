"""`serfer study planner surface`: every way meets the objective that it is shown for, on a small network."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.batching import Profile
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError, UsageError
from serfer.core.plan import PackageLimit
from serfer_bench.study.planner.planner import Network
from serfer_bench.study.planner.surface import Cell, details, read_gpus, varied, winners
from serfer_bench.study.planner.surface_picture import won
from serfer_bench.study.planner.ways_to_answer import (
    GPU,
    INSTANCE,
    ONE_FUNCTION,
    SNAPSTART,
    SPLIT,
    Answer,
    Contest,
    Question,
    ServerlessGpu,
    burst_ms,
    fleet,
)
from tests.bench.running import rows
from tests.e2e.small import SIZE, small_onnx
from tests.splitter.models import BUDGET
from tests.study.planner.test_studies import convolutions

GPUS = (ServerlessGpu("a GPU", 0.001, start_s=5.0, idle_s=60.0, vcpus=100.0),)
SECOND, SLOW = 1.0, 20.0


@pytest.fixture(scope="module")
def contest():
    """A network of which a zip holds each half: one function fetches its weights, for seconds, and so do snapshots."""
    slow = {"fetch_latency": 5.0, "image_rate": 2e4, "snapshot_rate": 2e4}
    facts = replace(shipped_aws(), functions=replace(shipped_aws().functions, **slow))
    budget = replace(BUDGET, facts=facts, limit=PackageLimit(470_000, 400_000), store="valkey", gang_width=2)
    return Contest(Network("small", 12, convolutions(), budget), GPUS)


def asked(burst=1, cold_share=0.0, slo_s=SECOND, per_hour=1000.0):
    return Question(burst, cold_share, slo_s, per_hour)


def test_a_split_is_the_only_way_by_functions_where_only_it_starts_in_time(contest):
    warm, cold = (contest.answers(asked(cold_share=share)) for share in (0.0, 0.02))
    assert warm[ONE_FUNCTION].usd < warm[SPLIT].usd
    assert warm[ONE_FUNCTION].cold_s > SECOND
    assert not {ONE_FUNCTION, SNAPSTART} & cold.keys()
    assert cold[SPLIT].cold_s <= SECOND
    assert cold[INSTANCE].usd == warm[INSTANCE].usd
    assert {ONE_FUNCTION, SNAPSTART} < contest.answers(asked(cold_share=0.02, slo_s=SLOW)).keys()


def test_every_answer_meets_the_objective_and_a_looser_one_never_costs_more(contest):
    for share in (0.0, 0.02):
        found = [contest.answers(asked(10, share, slo_s)) for slo_s in (0.05, 0.2, SECOND, SLOW)]
        for slo_s, answers in zip((0.05, 0.2, SECOND, SLOW), found, strict=True):
            assert all(one.warm_s <= slo_s and (not share or one.cold_s <= slo_s) for one in answers.values())
        for tighter, looser in pairwise(found):
            assert all(looser[way].usd <= one.usd * (1 + 1e-9) for way, one in tighter.items())


def test_a_burst_that_an_account_has_no_environments_for_is_no_functions_way(contest):
    assert ONE_FUNCTION in contest.answers(asked(1000))
    assert SPLIT not in contest.answers(asked(1000))  # a driver and two tasks each
    assert not {ONE_FUNCTION, SNAPSTART, SPLIT} & contest.answers(asked(1001)).keys()


def test_a_gpu_that_is_found_warm_has_been_paid_for_until_then_and_a_cold_one_until_it_stops(contest):
    between_s = 3600 * 10 / 1000
    warm, cold = (contest.answers(asked(10, share, SLOW))[GPU] for share in (0.0, 1.0))
    assert warm.usd == pytest.approx(0.001 * between_s / 10)
    seldom = contest.answers(asked(10, 1.0, SLOW, per_hour=10.0))[GPU]
    assert seldom.usd == pytest.approx(0.001 * (5 + 60 + seldom.warm_s) / 10)
    assert cold.usd == pytest.approx(0.001 * (5 + between_s) / 10)
    assert cold.cold_s == cold.warm_s + 5


@given(
    times=st.lists(st.floats(1, 50), min_size=1, max_size=3),
    burst=st.integers(1, 500),
    slo_s=st.floats(0.05, 2),
    per_hour=st.floats(1, 1e5),
)
def test_a_fleet_is_as_small_as_the_burst_and_the_load_allow(times, burst, slo_s, per_hour):
    profile = Profile(tuple((4**size, sum(times[: size + 1])) for size in range(len(times))))
    found = fleet(profile, Question(burst, 0.0, slo_s, per_hour))
    if found is None:
        assert profile.batch_ms(1) > 1000 * slo_s
        return
    count, seconds = found
    most = max(images for images in range(1, burst + 1) if burst_ms(profile, images) <= 1000 * slo_s)
    busy = per_hour / 3600 * burst_ms(profile, most) / 1000 / most
    assert seconds == burst_ms(profile, -(-burst // count)) / 1000
    assert seconds <= slo_s
    assert 0.9 * count >= busy * (1 - 1e-9)
    assert count == 1 or -(-burst // (count - 1)) > most or busy > 0.9 * (count - 1)


def test_winners_are_written_by_burst_and_drawn_from_what_is_written():
    def cell(burst, usd):
        answers = {way: Answer(way, way, 0.1, 0.1, dollars) for way, dollars in usd.items()}
        return Cell("net", 224, asked(burst), answers)

    cells = [cell(1, {SPLIT: 2.0, INSTANCE: 3.0}), cell(10, {SPLIT: 2.0, INSTANCE: 2.5}), cell(100, {}), cell(1000, {})]
    other = [cell(1, {SPLIT: 2.0, INSTANCE: 1.0}), *cells[1:]]
    assert winners(cells).body == [("net", "224", "1,000", "split to 10, then none")]
    shown = [
        (cell.size, cell.question.burst, cell.question.slo_s, cell.winner)
        for cell in won([winners(cells), details(cells), varied(cells, [other], [("package_rate", 0.5)])])
    ]
    assert shown == [(cell.size, cell.question.burst, cell.question.slo_s, cell.winner) for cell in cells]
    assert varied(cells, [other], [("package_rate", 0.5)]).body == [
        ("as they are", "0", "0", "2", "0", "0", "0", "2", "2"),
        ("package_rate x 0.5", "0", "0", "1", "0", "1", "0", "2", "1"),
    ]
    assert cells[0].instances_win_from == 1500
    assert cells[2].instances_win_from is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[gpu]]", "name"),
        ("[[gpu]]\nname = 'a'\nusd_per_second = 0\nstart_s = 5\nidle_s = 5\nvcpus = 1", "usd_per_second"),
        ("gpu = [", "is not TOML"),
    ],
)
def test_a_file_of_gpus_with_a_fault_is_refused_by_its_name(tmp_path, text, fault):
    (tmp_path / "gpus.toml").write_text(text)
    with pytest.raises(InputError, match=rf"gpus\.toml.*{fault}"):
        read_gpus(tmp_path / "gpus.toml")


def test_the_command_answers_for_a_network_of_ones_own_and_draws_who_wins(tmp_path):
    (tmp_path / "net.onnx").write_bytes(small_onnx().SerializeToString())
    options = ["--model", str(tmp_path / "net.onnx"), "--size", str(SIZE), "--burst", "1", "--burst", "50"]
    options += ["--cold-share", "0.1", "--slo-ms", "900", "--per-hour", "500"]
    lines = rows("study", "planner", "surface", *options, "--picture", tmp_path / "who.png", "--vary", "init")
    assert [(line["burst"], line["winner"]) for line in lines] == [(1, ONE_FUNCTION), (50, ONE_FUNCTION)]
    assert {ONE_FUNCTION, SNAPSTART, INSTANCE} <= lines[0]["ways"].keys()
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="--vary speed: Lambda has no such constant"):
        rows("study", "planner", "surface", "--vary", "speed")
    with pytest.raises(UsageError, match="should end in"):
        rows("study", "planner", "surface", "--picture", tmp_path / "a.txt")
