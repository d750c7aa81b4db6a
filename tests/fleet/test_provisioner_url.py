"""What `--instances` takes, and the pool of addresses."""

import asyncio

import pytest

from serfer.control.scenario import Market, parse_scenario
from serfer.core.errors import UsageError
from serfer.fleet.provisioner_url import admits, check_instances, open_provisioner, specs_by_purchase
from serfer.fleet.provisioners.auto_scaling import AutoScalingProvisioner
from serfer.fleet.provisioners.local import LocalProvisioner
from serfer.fleet.provisioners.provisioner import StaticProvisioner
from serfer.fleet.purchase import Purchase
from tests.fleet.fakes import GPU, TWO_TYPES
from tests.fleet.provisioner_contract import ProvisionerContract

URLS = ["http://10.0.0.1:8000", "https://triton.example.org", "http://[::1]:9000/kserve"]


class TestStatic(ProvisionerContract):
    def opened(self):
        return StaticProvisioner(["http://a:1", "http://b:2", "http://c:3"])


def test_each_spec_opens_its_kind(tmp_path):
    assert isinstance(open_provisioner("ec2:shop-gpu"), AutoScalingProvisioner)
    assert isinstance(open_provisioner("local", command=["/bin/true"], registry=tmp_path), LocalProvisioner)
    pool = open_provisioner(f"static:{URLS[0]}/, {URLS[1]},{URLS[2]}")
    assert isinstance(pool, StaticProvisioner)
    assert [one.url for one in asyncio.run(pool.members())] == URLS


@pytest.mark.parametrize(
    "spec",
    [
        *("", "nothing", "local", "local:", "local:x", "ec2", "ec2:", "ec2: x", "ec2:" + "x" * 300, "ec2:a\nb"),
        *("static", "static:", "static:a:8000", "static:ftp://a", "static:http://a,,", "static:http://a,http://a/"),
        *(f"static:http://{host}" for host in ("a:99999", "me:secret@a", ":secret@a", "a?x=1", "[::1")),
        "static:" + ",".join(f"http://a:{port}" for port in range(1, 300)),
    ],
)
def test_an_invalid_url_is_refused_in_one_line_with_the_option(spec):
    with pytest.raises(UsageError, match="--instances") as caught:
        open_provisioner(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "url", "right"),
    [
        ("local", "http://127.0.0.1:4321", True),
        ("local", "http://10.0.0.7:4321", False),
        ("ec2:shop", "http://10.0.0.7:8000", True),
        ("ec2:shop", "http://100.64.0.7:8000", True),  # a network's own addresses may be of any range
        ("ec2:shop", "http://10.0.0.7:80", False),
        ("ec2:shop", "https://10.0.0.7:8000", False),
        ("ec2:shop", "http://10.0.0.7:8000/x", False),
        ("ec2:shop", "http://169.254.169.254:8000", False),
        ("ec2:shop", "http://127.0.0.1:8000", False),
        ("ec2:shop", "http://evil.example:8000", False),
        ("ec2:shop", "http://[::1", False),
        ("static:http://a:1/,http://b", "http://a:1", True),
        ("static:http://a:1/,http://b", "http://c", False),
    ],
)
def test_only_addresses_that_a_url_allows_are_instances(spec, url, right):
    assert admits({GPU: spec}, GPU, url) is right
    assert not admits({GPU: spec}, Purchase("cpu"), url)


def _many(host):
    return "|".join(f"http://{host}:{port}" for port in range(1, 200))


SCENARIO = parse_scenario(TWO_TYPES)
CPU, SPOT = Purchase("cpu"), Purchase("gpu", Market.SPOT)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("local", {GPU: "local", SPOT: "local", CPU: "local"}),  # cpu has no spot price
        ("ec2:shop", {GPU: "ec2:shop"}),
        ("static:http://a:1,http://b:2", {GPU: "static:http://a:1,http://b:2"}),
        ("cpu=local", {CPU: "local"}),
        (
            "gpu=ec2:shop=gpu, gpu/spot=ec2:shop-spot,cpu=static:http://a:1|http://b:2/x=y",
            {GPU: "ec2:shop=gpu", SPOT: "ec2:shop-spot", CPU: "static:http://a:1,http://b:2/x=y"},
        ),
        ("gpu/on-demand=ec2:a", {GPU: "ec2:a"}),
    ],
)
def test_each_type_and_market_has_a_provisioner_of_its_own(text, specs):
    assert specs_by_purchase(text, SCENARIO) == specs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tpu=ec2:a", "'tpu': the scenario has no instance type of that name: it has gpu, cpu"),
        ("gpu/reserved=ec2:a", "'gpu/reserved': the scenario has no instance type"),
        ("cpu/spot=local", "'cpu/spot': the scenario has no spot price for it"),
        ("gpu=ec2:a,gpu=ec2:b", "'gpu' is given twice"),
        ("gpu=ec2:a,gpu/on-demand=ec2:b", "'gpu' is given twice"),
        ("gpu=ec2:a,cpu=ec2:a", "'ec2:a' is given for two types"),
        ("gpu=static:http://a,cpu=static:http://b|http://a/", "'http://a' is given for two types"),
        ("gpu=static:http://a,http://b", "'http://b': .* divided by |"),
        ("gpu=", "'': it is local"),
        ("=local", "'=local'"),
        ("gpu=local,", "''"),
        ("gpu=near", "'near'"),
        ("gpu=local:x", "'local:x'"),
        ("gpu=static:http://me:secret@a", "'http://a' is not an address"),
        ("gpu=ec2:" + "x" * 300, "Auto Scaling group's name"),
        (f"gpu=static:{_many('a')},cpu=static:{_many('b')}", "398 addresses"),
        ("gpu=local," * 10_000, "at most 65,536"),
    ],
)  # fmt: skip
def test_instances_that_name_no_type_or_one_twice_are_refused(text, words):
    with pytest.raises(UsageError, match=f"--instances.*{words}") as caught:
        specs_by_purchase(text, SCENARIO)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_no_scenario_could_make_right_is_refused_without_one():
    check_instances("tpu=ec2:a")
    with pytest.raises(UsageError, match="two types"):
        check_instances("tpu=ec2:a,gpu=ec2:a")


@pytest.mark.parametrize("name", ["local", "static", "ec2", "a/spot", "a:b"])
def test_a_type_may_have_the_name_of_a_provisioner(name):
    named = {**TWO_TYPES, "instance": [{**TWO_TYPES["instance"][0], "name": name}]}
    assert specs_by_purchase(f"{name}=ec2:g", parse_scenario(named)) == {Purchase(name): "ec2:g"}
