import pytest

from serfer.core.errors import InputError
from serfer.core.keys import check_query_id, input_key, output_key

QUERY = "0123456789abcdef" * 2


def test_a_query_id_of_ours_passes():
    assert check_query_id(QUERY) == QUERY


@pytest.mark.parametrize(
    "query", ["", "x" * 32, QUERY[:-1], QUERY + "0", QUERY.upper(), QUERY + "\n", "../" + QUERY[3:]]
)
def test_nothing_else_becomes_part_of_a_key(query):
    with pytest.raises(InputError, match="32 hex digits"):
        check_query_id(query)


def test_every_output_and_input_of_a_query_has_its_own_key():
    keys = {output_key(QUERY, stage, tile) for stage in range(12) for tile in range(12)}
    keys |= {input_key(QUERY, tile) for tile in range(12)}
    assert len(keys) == 12 * 13
    assert all(QUERY in key for key in keys)
