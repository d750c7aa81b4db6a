"""The quotas of an AWS account."""

from dataclasses import replace

import pytest

from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.aws import parse_aws, shipped_aws
from serfer.core.errors import UsageError

FACTS = shipped_aws()


@pytest.mark.parametrize(
    ("text", "quotas"),
    [("new", (3008, 10)), ("default", (10240, 1000)), ("5307,250", (5307, 250)), ("128,1", (128, 1))],
)
def test_an_account_is_named_or_has_figures(text, quotas):
    account = AccountQuotas.parse(text, FACTS)
    assert (account.memory_mb, account.concurrency) == quotas
    assert not account.assumed
    within = account.within(FACTS).functions
    assert (within.memory_max, within.concurrency) == quotas


@pytest.mark.parametrize("text", ["", "old", "3008", "3008,0", "127,10", "10241,10", "3008,10,1", "9" * 30, "-1,10"])
def test_what_is_not_an_account_is_told_with_what_is_one(text):
    with pytest.raises(UsageError, match=r"--account is new, default, or the most MB .* such as 3008,10; not"):
        AccountQuotas.parse(text, FACTS)


def test_the_driver_function_takes_one_environment_of_those_at_once():
    assert AccountQuotas.new(FACTS).at_once == 9
    assert AccountQuotas(3008, 1, "x").at_once == 1
    small = replace(FACTS, functions=replace(FACTS.functions, memory_max=2048, concurrency=5))
    assert (AccountQuotas.new(small).memory_mb, AccountQuotas.new(small).concurrency) == (2048, 5)


def test_quotas_in_the_users_aws_file_are_an_account():
    assert AccountQuotas.of_user(FACTS) is None
    assert AccountQuotas.of_user(parse_aws("[lambda]\nprice_request = 1e-7", FACTS)) is None
    account = AccountQuotas.of_user(parse_aws("[lambda]\nconcurrency = 500", FACTS))
    assert (account.memory_mb, account.concurrency, account.known_by) == (10240, 500, "SERFER_AWS_FILE")
