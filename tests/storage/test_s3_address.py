import pytest
from botocore.session import Session

from serfer.core.errors import UsageError
from serfer.storage import open_store
from serfer.storage.s3.address import Address, BucketUrl, address, parse_url

EXPRESS = "name--usw2-az1--x-s3"


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


def resolved(url):
    return address(parse_url(url), Session())


def test_url_taken_apart():
    assert parse_url("s3://bucket/a/b/?region=eu-west-1&endpoint=http%3A%2F%2Fhost%3A1") == BucketUrl(
        "bucket", "a/b/", "eu-west-1", "http://host:1"
    )
    assert parse_url("s3://bucket") == parse_url("s3://bucket/") == BucketUrl("bucket", "")


@pytest.mark.hostile
@pytest.mark.who_may
@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://UPPER/p",
        "s3://ab/p",
        "s3://a..b/p",
        "s3://-bucket/p",
        "s3://bucket:80/p",
        "s3://key:hush@bucket/p",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a/./b",
        "s3://bucket/a/..",
        "s3://bucket/a%20b",
        "s3://bucket/a b",
        "s3://bucket/<a>",
        f"s3://bucket/{'k' * 201}",
        "s3://bucket/p#fragment",
        "s3://bucket/p?colour=red",
        "s3://bucket/p?region=a&region=b",
        "s3://bucket/p?region=",
        "s3://bucket/p?region",
        "s3://bucket/p?endpoint=host:1",
        "s3://bucket/p?endpoint=http://me:hush@host",
        "s3://bucket/p?endpoint=ftp://host",
        "s3://[bucket/p",
    ],
)
def test_malformed_urls_are_refused_in_one_line_without_secrets(url):
    with pytest.raises(UsageError, match="--store") as caught:
        open_store(url)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/p?region=us-west-2", "https://bucket.s3.us-west-2.amazonaws.com"),
        ("s3://bu.ck/p?region=us-west-2", "https://s3.us-west-2.amazonaws.com/bu.ck"),
        (f"s3://{EXPRESS}/p?region=us-west-2", f"https://{EXPRESS}.s3express-usw2-az1.us-west-2.amazonaws.com"),
        ("s3://bucket/p?endpoint=http://host:1", "http://host:1/bucket"),
        ("s3://bucket/p?endpoint=https://host/s3/", "https://host/s3/bucket"),
    ],
)
def test_addresses(url, expected):
    region = "us-west-2" if "region" in url else "us-east-1"
    assert resolved(url) == Address(expected, region, sessions=EXPRESS in url)


def test_a_directory_bucket_has_no_other_endpoint():
    with pytest.raises(UsageError, match="no other endpoint"):
        resolved(f"s3://{EXPRESS}/p?endpoint=http://127.0.0.1:1")


def test_environment_is_read_as_every_aws_client_does(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert resolved("s3://bucket/p").url == "https://bucket.s3.eu-central-1.amazonaws.com"
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    assert resolved("s3://bucket/p").url == "https://bucket.s3.dualstack.eu-central-1.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all:1")
    assert resolved("s3://bucket/p").url == "http://all:1/bucket"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:1")
    assert resolved("s3://bucket/p") == Address("http://s3:1/bucket", "eu-central-1", sessions=False)
    assert resolved("s3://bucket/p?endpoint=http://mine:1&region=x").url == "http://mine:1/bucket"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert resolved("s3://bucket/p").url == "https://bucket.s3.dualstack.eu-central-1.amazonaws.com"


def test_configuration_file_is_read_too(settings, monkeypatch):
    settings.write_text("[profile mine]\nregion = sa-east-1\nendpoint_url = http://filed:1\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert resolved("s3://bucket/p") == Address("http://filed:1/bucket", "sa-east-1", sessions=False)


def test_no_region():
    with pytest.raises(UsageError, match=r"region.*--store.*AWS_DEFAULT_REGION"):
        resolved("s3://bucket/p")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AWS_PROFILE", "nobody", "nobody"),
        ("AWS_ENDPOINT_URL_S3", "nonsense", "nonsense"),
        ("AWS_DEFAULT_REGION", "not a region", "region"),
    ],
)
def test_settings_that_lead_nowhere_are_named(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        open_store("s3://bucket/p")
