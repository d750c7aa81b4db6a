import pytest

from serfer.core.errors import InputError
from serfer.core.keys import (
    INPUT_STAGE,
    check_query_id,
    input_key,
    output_key,
    query_id,
    query_keys,
    reply_key,
    stage_of,
)

QUERY = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "query", ["", "x" * 32, QUERY[:-1], QUERY + "0", QUERY.upper(), QUERY + "\n", "../" + QUERY[3:]]
)
def test_other_text_is_refused_as_a_query_id(query):
    with pytest.raises(InputError, match="32 hex digits"):
        check_query_id(query)
    assert check_query_id(QUERY) == QUERY


def test_every_output_and_input_of_a_query_has_its_own_key():
    keys = {output_key(QUERY, stage, tile) for stage in range(12) for tile in range(12)}
    keys |= {input_key(QUERY, tile) for tile in range(12)}
    assert len(keys) == 12 * 13
    assert all(QUERY in key for key in keys)
    keys = query_keys(QUERY, [2, 3], [1], [1])
    assert keys == [input_key(QUERY, 1), *(output_key(QUERY, 1, tile) for tile in range(3))]
    assert query_keys(QUERY, [2, 3], [], []) == []


@pytest.mark.parametrize("one_slot", [False, True])
def test_the_writing_stage_is_read_from_a_key(one_slot):
    query = query_id(QUERY, one_slot=one_slot)
    assert [stage_of(output_key(query, stage, 12)) for stage in (0, 7, 15)] == [0, 7, 15]
    assert stage_of(input_key(query, 3)) == INPUT_STAGE
    assert stage_of(reply_key(query, 2, 0, 1)) is None


@pytest.mark.parametrize(
    "key",
    [
        *("", "other", f"serfer:{QUERY}:2", f"serfer:{QUERY}:2:", f"serfer:{QUERY}:-2:0", f"serfer:{QUERY}:2:0\n"),
        *(f"serfer:{QUERY[1:]}:2:0", f"serfer:{{{QUERY}:2:0", f"x:serfer:{QUERY}:2:0", f"serfer:{QUERY}:\u0662:0"),
    ],
)
def test_keys_not_written_by_a_tile_have_no_stage(key):
    assert stage_of(key) is None
