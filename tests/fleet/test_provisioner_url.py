"""What `--instances` takes, and the pool of addresses."""

import asyncio

import pytest

from serfer.core.errors import UsageError
from serfer.fleet.provisioner_url import admits, open_provisioner
from serfer.fleet.provisioners.auto_scaling import AutoScalingProvisioner
from serfer.fleet.provisioners.local import LocalProvisioner
from serfer.fleet.provisioners.static import StaticProvisioner
from tests.fleet.provisioner_contract import ProvisionerContract

URLS = ["http://10.0.0.1:8000", "https://triton.example.org", "http://[::1]:9000/kserve"]


class TestStatic(ProvisionerContract):
    def opened(self):
        return StaticProvisioner(["http://a:1", "http://b:2", "http://c:3"])


def test_all_addresses_are_used_at_first_by_the_leader():
    pool = open_provisioner(f"static:{URLS[0]}/, {URLS[1]},{URLS[2]}")
    assert [one.url for one in asyncio.run(pool.members())] == URLS


def test_each_spec_opens_its_kind(tmp_path):
    assert isinstance(open_provisioner("ec2:shop-gpu"), AutoScalingProvisioner)
    assert isinstance(open_provisioner("local", command=["/bin/true"], registry=tmp_path), LocalProvisioner)
    assert isinstance(open_provisioner("static:http://a:8000"), StaticProvisioner)


@pytest.mark.parametrize(
    "spec",
    [
        *("", "nothing", "local", "local:", "local:x", "ec2", "ec2:", "ec2: x", "ec2:" + "x" * 300, "ec2:a\nb"),
        *("static", "static:", "static:a:8000", "static:ftp://a", "static:http://a,,", "static:http://a,http://a/"),
        *(
            "static:http://a:99999",
            "static:http://me:secret@a",
            "static:http://:secret@a",
            "static:http://a?x=1",
            "static:http://[::1",
        ),
        "static:" + ",".join(f"http://a:{port}" for port in range(1, 300)),
    ],
)
def test_an_invalid_url_is_refused_in_one_line_with_the_option(spec):
    with pytest.raises(UsageError, match="--instances") as caught:
        open_provisioner(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


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
    assert admits(spec, url) is right


def test_a_password_in_an_address_is_not_repeated():
    with pytest.raises(UsageError) as caught:
        open_provisioner("static:http://me:secret@a")
    assert "secret" not in str(caught.value)
