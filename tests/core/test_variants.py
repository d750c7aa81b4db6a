"""The steps of an application's record: what holds after any sequence of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, UsageError
from serfer.core.variants import (
    CUDA,
    INSTRUCTION_SETS,
    MAX_NETWORKS,
    MAX_RELEASES,
    Accuracy,
    Application,
    Canary,
    caution,
    check_application,
    instruction_sets_in,
)
from tests.registry.records import CREATED, DIGEST, application, network, variant

NETWORKS = ("a", "b", "c")
WHO = {"created": CREATED, "by": "test", "why": "test"}


def canary(networks, share=0.1):
    return Canary(networks, share, CREATED, "test")


class Steps(RuleBasedStateMachine):
    """Random steps; a step that is refused leaves the record as it was."""

    def __init__(self):
        super().__init__()
        self.record = Application("faces", 10, DIGEST)

    def step(self, change):
        before = unstructure(self.record)
        try:
            self.record = change(self.record)
        except UsageError:
            assert unstructure(self.record) == before
            return False
        return True

    def version(self, draw):
        return draw.draw(st.sampled_from([(each.network, each.version) for each in self.record.networks] or [("a", 1)]))

    @rule(name=st.sampled_from(NETWORKS))
    def register(self, name):
        number = 1 + max((each.version for each in self.record.versions(name)), default=0)
        live, tried = self.record.live_release, self.record.canary
        assert self.step(lambda record: record.with_version(network(name, number)))
        joins = {name: 1} if number == 1 else {}
        assert self.record.live_release.networks == {**(live.networks if live else {}), **joins}
        assert (self.record.canary and self.record.canary.networks) == (tried and {**tried.networks, **joins})

    @rule(draw=st.data(), more=st.data())
    def promote(self, draw, more):
        networks = dict([self.version(draw), self.version(more)])
        if self.step(lambda record: record.promoted(networks, **WHO)):
            assert self.record.live_release.networks == networks
            assert self.record.canary is None

    @rule(draw=st.data(), share=st.floats(0.01, 1.0))
    def try_out(self, draw, share):
        live = self.record.live_release
        networks = {**(live.networks if live else {}), **dict([self.version(draw)])}
        self.step(lambda record: record.with_canary(canary(networks, share)))

    @rule()
    def roll_back(self):
        before = self.record
        if not self.step(lambda record: record.rolled_back(**WHO)):
            assert before.canary is None
            return
        if before.canary:
            assert self.record.live == before.live
            return
        assert self.record.live_release.networks != before.live_release.networks
        assert self.record.rolled_back(**WHO).live_release.networks == before.live_release.networks

    @rule(draw=st.data())
    def retire(self, draw):
        name, number = self.version(draw)
        if self.step(lambda record: record.retired(name, number)):
            assert self.record.version(name, number).retired
            assert self.record.version(name, number).variants == ()
            with pytest.raises(UsageError, match="retired"):
                self.record.promoted({name: number}, **WHO)

    @rule(draw=st.data())
    def forget(self, draw):
        name, number = self.version(draw)
        self.step(lambda record: record.forgotten(name, number))

    @invariant()
    def the_record_is_sound(self):
        check_application(self.record)
        for each in (self.record.live_release, self.record.canary):
            if each:
                assert each.networks
                assert all(self.record.variants(each.networks))
                assert not any(self.record.version(*item).retired for item in each.networks.items())

    @invariant()
    def it_comes_back_from_json(self):
        assert structure(Application, unstructure(self.record), "record", error=InputError) == self.record


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def two_releases():
    return application("faces", network("a"), network("a", 2)).promoted({"a": 2}, **WHO)


def test_the_live_release_is_remembered_however_many_follow_and_the_oldest_are_forgotten():
    record = two_releases()
    for number in range(3 * MAX_RELEASES):
        record = record.promoted({"a": 1 + number % 2}, **WHO)
    assert len(record.releases) == MAX_RELEASES
    assert record.live_release is record.releases[-1]


def test_a_rollback_takes_the_canary_back_then_the_release_and_passes_over_retired_versions():
    record = two_releases().with_canary(canary({"a": 1}))
    back = record.rolled_back(**WHO)
    assert (back.canary, back.live) == (None, record.live)
    back = back.rolled_back(**WHO)
    assert (back.live, back.live_release.networks) == (3, {"a": 1})
    record = application("faces", network("a"), network("a", 2), network("a", 3))
    record = record.promoted({"a": 2}, **WHO).promoted({"a": 3}, **WHO).retired("a", 2)
    assert record.rolled_back(**WHO).live_release.networks == {"a": 1}
    with pytest.raises(UsageError, match="no earlier release"):
        record.retired("a", 1).rolled_back(**WHO)


def test_a_retired_version_can_be_forgotten_and_its_number_is_not_given_again():
    record = two_releases()
    with pytest.raises(UsageError, match="not retired"):
        record.forgotten("a", 1)
    left = record.retired("a", 1).forgotten("a", 1)
    assert [each.version for each in left.networks] == [2]
    assert all(release.networks != {"a": 1} for release in left.releases)
    newest = application("faces", network("a"), network("a", 2)).retired("a", 2)
    with pytest.raises(UsageError, match="the newest"):
        newest.forgotten("a", 2)


def test_a_full_record_has_room_again_when_a_retired_version_is_forgotten():
    record = application("faces", network("a"))
    for number in range(2, MAX_NETWORKS + 1):
        record = record.with_version(network("a", number)).retired("a", number)
    with pytest.raises(InputError, match="200 network versions"):
        record.with_version(network("b"))
    assert record.forgotten("a", 2).with_version(network("b")).version("b", 1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda record: record.with_version(network("a", 4)), UsageError, "the next version of a is 3, not 4"),
        (
            lambda record: record.with_version(network("b", variants=[variant("a-v1-fp32", "b")])),
            InputError,
            "two variants of application faces are named 'a-v1-fp32'",
        ),
        (lambda record: record.with_version(network("b", variants=[variant("x")])), InputError, "x is of net@1"),
        (lambda record: record.promoted({}, **WHO), UsageError, "needs a network"),
        (lambda record: record.promoted({"a": 9}, **WHO), UsageError, "has no a@9: it has a@1, a@2"),
        (lambda record: record.with_canary(canary({"a": 2})), UsageError, "what the live release has"),
        (lambda record: record.with_canary(canary({})), UsageError, "needs a network"),
        (lambda record: record.with_canary(canary({"a": 1})).with_canary(canary({"a": 1})), UsageError, "has a canary"),
        (lambda _: Application("new", 10, DIGEST).with_canary(canary({"a": 1})), UsageError, "no live release"),
        (lambda _: Application("new", 10, DIGEST).rolled_back(**WHO), UsageError, "no earlier release"),
        (lambda record: record.release(77), UsageError, "no release 77"),
        (lambda record: record.retired("a", 2), UsageError, "answers queries"),
        (lambda record: record.with_canary(canary({"a": 1})).retired("a", 1), UsageError, "answers queries"),
    ],
)
def test_a_step_that_cannot_be_is_refused(change, error, words):
    with pytest.raises(error, match=words):
        change(two_releases())


@given(images=st.integers(1, 10_000), data=st.data())
def test_the_interval_of_an_accuracy_holds_its_share(images, data):
    accuracy = Accuracy(data.draw(st.integers(0, images)), images)
    low, high = accuracy.interval
    assert 0.0 <= low <= accuracy.share + 1e-12
    assert accuracy.share - 1e-12 <= high <= 1.0
    assert low == accuracy.low
    more = Accuracy(accuracy.correct * 4, images * 4).interval
    assert more[1] - more[0] <= high - low + 1e-12
    assert replace(variant(), accuracy=None).least_accuracy == 0.0


X86 = """processor\t: 0
model name\t: Some Processor @ 2.50GHz
flags\t\t: fpu sse4_1 avx2 avx512f avx512bw avx512_vnni amx_tile
vmx flags\t: vnmi
processor\t: 1
flags\t\t: fpu sse4_1 avx2 amx_int8
"""
ARM = "processor : 0\nFeatures : fp asimd asimddp i8mm\n"
KNOWN = st.sets(st.sampled_from((*INSTRUCTION_SETS, CUDA)), min_size=1).map(sorted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86, ("sse4_1", "avx2", "avx512bw", "avx512_vnni")),
        (ARM, ("asimd", "asimddp", "i8mm")),
        ("processor : 0\n", ()),
        ("", ()),
    ],
)
def test_the_kernels_flags_of_the_first_processor_count(text, expected):
    assert instruction_sets_in(text) == expected


@given(KNOWN, KNOWN)
def test_every_instruction_set_that_one_side_lacks_is_named_and_nothing_where_they_are_the_same(measured_on, here):
    text = caution(measured_on, here)
    assert bool(text) == (measured_on != here)
    lacks, _, adds = text.partition("this processor ")[2].partition("adds ")
    lacked = lacks.removeprefix("lacks ").removesuffix(" and ")
    assert [*filter(None, lacked.split(", "))] == [name for name in measured_on if name not in here]
    assert [*filter(None, adds.split(", "))] == [name for name in here if name not in measured_on]


def test_what_is_not_known_is_said():
    assert caution((), ("avx2",)) == "on which processor its accuracy was measured is not known, this one has avx2"
    assert caution(("avx2",), ()) == "its accuracy was measured with avx2, what this processor has is not known"
