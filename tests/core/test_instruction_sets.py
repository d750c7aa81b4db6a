"""Which instruction sets 8-bit answers depend on, and what is said where an accuracy was measured with others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.variants import CUDA, INSTRUCTION_SETS, caution, instruction_sets_in

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
