import json
import math
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.operator_costs import Kind, Work, dump_profiles, parse_profiles, shipped_profiles
from serfer.core.costs.sessions import run_within
from serfer.core.errors import InputError
from tests.core.loops import SIZE, loop

PROFILES = shipped_profiles()
TEXT = dump_profiles(PROFILES)
channels = st.sampled_from((1, 3, 16, 24, 64, 100, 256))
sides = st.integers(1, 60)


@st.composite
def works(draw):
    kind, inputs, outputs = draw(st.sampled_from(list(Kind))), draw(channels), draw(channels)
    rows, cols, taps = draw(sides), draw(sides), draw(st.sampled_from((1, 9, 25)))
    return Work(
        kind,
        macs=rows * cols * inputs * outputs * taps,
        read=inputs * rows * cols,
        written=outputs * rows * cols,
        weights=inputs * outputs * taps,
        channels_in=inputs,
        channels_out=outputs,
        rows=rows,
        cols=cols,
        taps=taps,
        stride=draw(st.sampled_from((1, 2))),
        reordered=draw(st.sampled_from((0, rows * cols))),
    )


def larger(work):
    area = (work.rows + 1) * work.cols
    return replace(
        work,
        rows=work.rows + 1,
        read=work.channels_in * area,
        written=work.channels_out * area,
        macs=work.channels_in * work.channels_out * area * work.taps,
    )


@given(works())
def test_every_operator_takes_time_that_grows_with_its_region(work):
    assert 0 < PROFILES.seconds(work) < 60
    assert PROFILES.seconds(larger(work)) >= PROFILES.seconds(work)


@given(works(), st.integers(1, 64))
def test_a_batch_costs_more_than_one_image_and_less_than_as_many_runs(work, batch):
    one, many = PROFILES.seconds(work), PROFILES.seconds(work, batch=batch)
    assert one * (1 - 1e-9) <= many <= batch * one * (1 + 1e-9)
    layer = Work(Kind.FULLY_CONNECTED, 4096 * 4096, 4096, 4096, 4096 * 4096, 4096, 4096)
    assert PROFILES.seconds(layer, batch=8) < 8 * PROFILES.seconds(layer) * 0.7, "it shares its weights"


@given(works())
def test_more_vcpus_never_cost_time_and_a_fraction_slows_all_work(work):
    times = [PROFILES.seconds(work, vcpus) for vcpus in (0.25, 0.5, 1, 2, 5.8)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(4 * times[2])


def test_profiles_survive_json_and_name_their_machine():
    assert parse_profiles(TEXT) == PROFILES
    assert "vCPU" in PROFILES.machine
    assert "onnxruntime" in PROFILES.runtime
    assert len(TEXT) < 20_000
    work, safe = Work(Kind.REORDER_OUTPUT, read=1000, written=1000), shipped_profiles(safety=0.1)
    assert (safe.seconds(work), safe.run_s) == pytest.approx((1.1 * PROFILES.seconds(work), 1.1 * PROFILES.run_s))


def changed(path, value):
    document = json.loads(TEXT)
    *way, last = path
    place = document
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "should be an object"),
        (" " * 2**21, "characters"),
        (changed(["format"], 2), "format 2"),
        (changed(["machine"], None), "machine"),
        (changed(["machine"], ""), "machine"),
        (changed(["run_ns"], -1), "run_ns"),
        (changed(["run_ns"], math.inf), "run_ns"),
        (changed(["run_ns"], value=True), "run_ns"),
        (changed(["kinds", "pool"], None), "pool"),
        (changed(["kinds", "swimming"], {}), "swimming"),
        (changed(["kinds", "pool", "parallel"], 1.5), "kinds.pool.parallel"),
        (changed(["kinds", "pool", "prices_ns", "taps"], "dear"), "kinds.pool.prices_ns.taps"),
        (changed(["kinds", "pool", "prices_ns", "taps"], None), "taps"),
        (changed(["kinds", "pool", "prices_ns"], []), "kinds.pool.prices_ns"),
    ],
)
def test_bad_profiles_are_refused_by_name(text, named):
    with pytest.raises(InputError, match=named.replace(".", r"\.")):
        parse_profiles(text)
    with pytest.raises(InputError, match="safety"):
        parse_profiles(TEXT, safety=-0.1)


IMAGE = np.ones((1, *SIZE), np.float32)


def test_a_loop_without_end_is_ended_and_the_session_computes_again():
    session = ort.InferenceSession(loop(2**62))
    for _ in range(2):
        with pytest.raises(TimeoutError, match="one run takes more than"):
            run_within(ort, session, {"x": IMAGE}, 0.05)


def test_a_run_in_time_is_what_it_is_without_a_bound():
    session = ort.InferenceSession(loop(3))
    [bounded], [free] = run_within(ort, session, {"x": IMAGE}), session.run(None, {"x": IMAGE})
    assert np.array_equal(bounded, free)
