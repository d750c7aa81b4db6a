"""The address of an S3 store: its URL taken apart, and the address that botocore's own rules give its bucket."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from botocore.configprovider import ConfiguredEndpointProvider
from botocore.endpoint_provider import EndpointProvider
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from serfer.core.errors import UsageError
from serfer.s3 import is_bucket

_PREFIX = re.compile(r"(?!.*//)(?!(.*/)?\.{1,2}(/|$))[A-Za-z0-9!_.*/-]{0,200}")
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")
_OPTIONS = ("endpoint", "region")
_FORM = "write s3://BUCKET/PREFIX[?region=REGION][&endpoint=URL]"


@dataclass(frozen=True)
class BucketUrl:
    """The parts of a store's URL; `prefix` is empty or ends with a slash."""

    bucket: str
    prefix: str
    region: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True)
class Address:
    """A bucket's URL, without a slash at its end, and what its requests are signed for.

    A directory bucket (S3 Express) wants them signed with the credentials of a session: `sessions`.
    """

    url: str
    region: str
    sessions: bool


def parse_url(url: str) -> BucketUrl:
    """Take `s3://bucket/prefix?region=..&endpoint=..` apart; raises UsageError where it is malformed."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise UsageError(f"the S3 URL of --store is malformed: {_FORM}") from None
    if "@" in parts.netloc:
        raise UsageError("an S3 URL in --store holds no credentials: set AWS_ACCESS_KEY_ID or AWS_PROFILE instead")
    if not is_bucket(parts.netloc):
        raise UsageError(f"{parts.netloc[:80]!r} in --store is not a name of an S3 bucket: {_FORM}")
    prefix = parts.path.strip("/")
    if parts.fragment or not _PREFIX.fullmatch(prefix):
        raise UsageError(f"a prefix in --store has at most 200 characters of A-Z a-z 0-9 ! _ . * - /: {_FORM}")
    given = dict(options)
    if len(given) < len(options) or not set(given) <= set(_OPTIONS):
        raise UsageError(f"an S3 URL in --store takes the options {' and '.join(_OPTIONS)}, each once: {_FORM}")
    if not _ENDPOINT.fullmatch(given.get("endpoint", "http://host")) or not given.get("region", "region"):
        raise UsageError("the endpoint in --store must be like http://HOST:PORT, and region a region's name")
    return BucketUrl(parts.netloc, f"{prefix}/" if prefix else "", given.get("region"), given.get("endpoint"))


def address(store: BucketUrl, session: Session, option: str = "--store") -> Address:
    """Resolve a bucket's address; region and endpoint come from the URL, else from botocore's own settings.

    Raises UsageError where there is no region, or the settings contradict each other.
    """
    try:
        endpoint = store.endpoint or _configured_endpoint(session)
        region = store.region or session.get_config_variable("region") or ("us-east-1" if endpoint else None)
        if region is None:
            raise UsageError("no AWS region is known: add ?region=REGION to --store, or set AWS_DEFAULT_REGION")
        parameters: dict[str, Any] = {"Bucket": store.bucket, "Region": region}
        if endpoint:
            parameters |= {"Endpoint": endpoint, "ForcePathStyle": True}
        else:
            parameters["UseFIPS"] = bool(session.get_config_variable("use_fips_endpoint"))
            parameters["UseDualStack"] = bool(session.get_config_variable("use_dualstack_endpoint"))
        loader: Any = session.get_component("data_loader")  # a client itself would slow a cold start
        rules = loader.load_service_model("s3", "endpoint-rule-set-1")
        resolved: Any = EndpointProvider(rules, loader.load_data("partitions")).resolve_endpoint(**parameters)
    except BotoCoreError as error:
        raise UsageError(f"{option} leads to no S3 address (region, endpoint, AWS_PROFILE): {error}") from error
    scheme = resolved.properties["authSchemes"][0]
    express = scheme["name"] == "sigv4-s3express"
    if express and endpoint:
        raise UsageError(
            f"{store.bucket} in {option} is a directory bucket, which has no other endpoint than AWS's: unset "
            "AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, and leave endpoint= out"
        )
    return Address(resolved.url.rstrip("/"), scheme["signingRegion"], express)


def _configured_endpoint(session: Session) -> str | None:
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    provider: Any = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3")
    url: str | None = provider.provide()
    return url
