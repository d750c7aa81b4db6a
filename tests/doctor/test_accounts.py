"""What the doctor has found of accounts, for plans to come."""

import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from serfer.core.costs.account import AccountQuotas
from serfer.core.errors import UsageError
from serfer.doctor.accounts import FILE, quotas_for, remember
from serfer.settings import Settings


@pytest.fixture(autouse=True)
def no_region(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.fixture
def settings(tmp_path):
    return Settings(cache_dir=tmp_path / "cache")


def figures(quotas):
    return quotas.memory_mb, quotas.concurrency, quotas.assumed


def test_a_new_account_is_assumed_until_the_doctor_has_looked(settings):
    assert figures(quotas_for(settings, None)) == (3008, 10, True)
    remember(settings.cache_dir, "eu-west-1", "123456789012", AccountQuotas(10240, 1000, "x"), "2026-11-26")
    assert figures(quotas_for(settings, None)) == (3008, 10, True)
    remember(settings.cache_dir, "us-east-1", "1", AccountQuotas(3008, 10, "x"), "2026-11-26")
    for account, concurrency in (("2", 20), ("1", 30)):  # of several, the last one that was looked at counts
        remember(settings.cache_dir, "us-east-1", account, AccountQuotas(3008, concurrency, "x"), "2026-11-26")
    assert quotas_for(settings, None).concurrency == 30
    found = quotas_for(settings, None, "eu-west-1")
    assert figures(found) == (10240, 1000, False)
    assert "123456789012 in eu-west-1, found by serfer doctor --aws on 2026-11-26" in str(found)


def test_the_region_is_that_of_boto3_and_a_wrong_profile_is_no_obstacle(settings, monkeypatch):
    remember(settings.cache_dir, "eu-west-1", "123456789012", AccountQuotas(3008, 400, "x"), "2026-11-26")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert quotas_for(settings, None).concurrency == 400
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert quotas_for(settings, None).assumed


def test_an_option_counts_before_the_aws_file_and_that_before_the_doctor(settings, tmp_path):
    remember(settings.cache_dir, "us-east-1", "1", AccountQuotas(10240, 1000, "x"), "2026-11-26")
    (tmp_path / "aws.toml").write_text("[lambda]\nconcurrency = 77\n")
    own = settings.model_copy(update={"aws_file": tmp_path / "aws.toml"})
    assert quotas_for(own, None).concurrency == 77
    assert quotas_for(own, "3008,5").concurrency == 5
    with pytest.raises(UsageError, match="account"):
        quotas_for(own, "old")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"us-east-1": []}', '{"us-east-1": {"1": 5}}', '{"us-east-1": {"1": {"concurrency": "x"}}}'],
)
def test_a_file_that_was_altered_says_nothing(settings, text):
    (settings.cache_dir / FILE).write_text(text)
    assert quotas_for(settings, None).assumed
    remember(settings.cache_dir, "us-east-1", "2", AccountQuotas(3008, 20, "x"), "2026-11-26")
    assert quotas_for(settings, None).concurrency == 20


def test_four_at_once_lose_nothing(settings):
    quotas = AccountQuotas(3008, 10, "x")
    spawn = get_context("spawn")  # the tests' own process may be too large to be forked
    with ProcessPoolExecutor(4, spawn) as processes:
        keep = partial(remember, settings.cache_dir, account="1", quotas=quotas, date="2026-11-26")
        list(processes.map(keep, [f"region-{number}" for number in range(24)]))
    assert len(json.loads((settings.cache_dir / FILE).read_text())) == 24
