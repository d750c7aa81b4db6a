import datetime as dt
import tomllib
from dataclasses import asdict, fields, replace
from importlib.resources import files

import pytest

from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.aws import STORES, LambdaFacts, ServiceFacts, Source, StoreFacts, parse_aws, shipped_aws
from serfer.core.errors import InputError, UsageError

KINDS = ("redis", "s3", "valkey", "s3express", "redis_serverless")
LISTS = ("zones", "regions_without")
TABLE = tomllib.loads(files("serfer.core.costs").joinpath("aws.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (table, field.name)
        for table, kind in {"lambda": LambdaFacts, "services": ServiceFacts, **dict.fromkeys(KINDS, StoreFacts)}.items()
        for field in fields(kind)
    ]
    + [(table, name) for table in ("instances", "zones", "regions_without") for name in TABLE[table]],
)
def test_every_shipped_value_has_its_unit_date_and_source(table, name):
    entry = TABLE[table][name]
    assert entry["value"] or name.startswith("price_")
    assert entry["unit"]
    assert dt.datetime.strptime(entry["date"], "%Y-%m").replace(tzinfo=dt.UTC)
    assert entry["tag"] in set("DBMSK")
    assert set(entry) == {"value", "unit", "date", "tag"}


def test_shipped_facts_equal_the_file():
    values = {table: {name: entry["value"] for name, entry in entries.items()} for table, entries in TABLE.items()}
    lists = {table: {name: tuple(value) for name, value in values.pop(table).items()} for table in LISTS}
    shipped = asdict(shipped_aws())
    assert set(shipped.pop("sources")) == {f"{table}.{name}" for table, entries in TABLE.items() for name in entries}
    assert shipped == {"functions": values.pop("lambda"), **values, **lists}


@pytest.mark.parametrize("text", ["[lambda.bandwidth]\nvalue = 1e6\nunit = 'bytes/s'", "[lambda]\nbandwidth = 1e6"])
def test_file_overrides_its_values_and_keeps_the_rest(text):
    assert parse_aws("", shipped_aws()) == shipped_aws()
    assert parse_aws(text, shipped_aws()) == replace(
        shipped_aws(), functions=replace(shipped_aws().functions, bandwidth=1e6)
    )


def test_two_stores_are_a_cache_and_an_object_store():
    facts = shipped_aws()
    assert facts.stores("valkey") == (facts.valkey, None)
    assert facts.stores("valkey+s3") == (facts.valkey, facts.s3)
    assert facts.stores("redis+s3") == (facts.redis, facts.s3)
    assert {facts.stores(kind)[0] for kind in STORES} == {facts.redis, facts.s3, facts.valkey}
    for kind in ("tape", "", "s3+redis", "redis+", "+s3", "redis+valkey", "redis+s3+s3", "lambda"):
        with pytest.raises(UsageError, match=r"redis, s3, valkey, redis\+s3 and valkey\+s3"):
            facts.stores(kind)
    assert facts.on("x86_64") == facts.functions
    assert facts.on("arm64") == replace(facts.functions, price_gb_second=facts.functions.price_gb_second_arm)


VALUES = ("0", "-1", "'75'", "true", "nan", "inf", "[]", "{}", "{ value = 0 }", "{ unit = 's' }")
UNKNOWN = ("[lambda]\nbandwith = 1", "[lamda]\nbandwidth = 1", "bandwidth = 1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f"[lambda]\nbandwidth = {value}", r"lambda\.bandwidth should be") for value in VALUES),
        *((text, "unknown .*; known are") for text in UNKNOWN),
        *(
            (text, "AWS facts file")
            for text in ("[lambda", "lambda = 3", "x = \x01", "lambda = []", "instances = 3", "zones = []")
        ),
        ('[instances]\n"x9.large" = "dear"', "instances.x9.large should be a number"),
        ("[instances]\nx9 = 1", "not an instance type"),
        ("[zones]\nmars-1 = 'm1'", "zones.mars-1 should be a list"),
        ("[zones]\nmars-1 = [1]", r"zones.mars-1\[0\] should be a text"),
    ],
)
def test_facts_that_are_wrong_are_refused_by_name(text, words):
    with pytest.raises(InputError, match=words):
        parse_aws(text, shipped_aws())
    with pytest.raises(InputError, match=r"lacks .*package_limit"):
        parse_aws("[lambda]\nbandwidth = 1")


def test_a_users_own_value_is_marked_as_such_and_may_have_a_name_of_its_own():
    facts = parse_aws('[instances]\n"x9.large" = 1.5\n[zones.mars-1]\nvalue = ["m1-az1"]', shipped_aws())
    assert facts.instances == {**shipped_aws().instances, "x9.large": 1.5}
    assert facts.zones == {**shipped_aws().zones, "mars-1": ("m1-az1",)}
    facts = parse_aws("[services]\nprice_acl = 7\n[lambda.init]\nvalue = 1\ntag = 'M'\ndate = '2027-01'", shipped_aws())
    assert facts.sources["services.price_acl"] == Source("", "", "U")
    assert facts.sources["lambda.init"] == Source("", "2027-01", "M")
    assert facts.sources["s3.price_put"].tag == "D"


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
    with pytest.raises(UsageError, match=r"account is new, default, or the most MB .* such as 3008,10; not"):
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
