"""Clean-up of a bucket, since S3 has no time to live of a key: a list of old objects, and a lifecycle rule."""

from collections.abc import Iterator
from datetime import datetime
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET

from storage.s3.errors import Answer, no_s3, refusal
from storage.s3.http import NAMESPACE, Request, S3Http, document

_OK = 200
_PAGE = 1000


def listing(prefix: str, more: str) -> Request:
    """Build a ListObjectsV2 of what lies below a prefix, which ends with a slash as directory buckets demand."""
    return Request("GET", query=f"encoding-type=url&list-type=2&{more}&prefix={quote(prefix, safe='')}")


def names(http: S3Http, prefix: str, until: float) -> Iterator[list[str]]:
    """Yield the names of objects below a prefix last changed at `until`, in seconds since the epoch, or before.

    At most a thousand at once, in the order in which S3 lists them: in directory buckets that is any.
    """
    more = f"max-keys={_PAGE}"
    while more:
        answer = http.ask(listing(prefix, more))
        if answer.status != _OK:
            raise refusal(http.address, answer, "to list")
        page = _parsed(http, answer, "ListBucketResult")
        try:
            old = [entry for entry in page.iterfind("{*}Contents") if _changed(entry) <= until]
        except ValueError:
            raise no_s3(http.address, answer) from None
        yield [unquote(entry.findtext("{*}Key", "")) for entry in old]
        following = page.findtext("{*}NextContinuationToken", "")
        more = f"continuation-token={quote(following, safe='')}&max-keys={_PAGE}" if following else ""


def _changed(entry: ET.Element) -> float:
    return datetime.fromisoformat(entry.findtext("{*}LastModified", "")).timestamp()


def ensure_lifecycle(http: S3Http, prefix: str, days: int, *, versions: bool) -> None:
    """Put our rule for a prefix among the bucket's rules, in place of an earlier one of ours.

    `versions`: the bucket may keep what was overwritten or deleted, so the rule removes that too.
    """
    answer, doing = http.ask(Request("GET", query="lifecycle=")), "to change its lifecycle rules"
    if answer.status == _OK:
        rules = _parsed(http, answer, "LifecycleConfiguration")
    elif answer.field("Code") == "NoSuchLifecycleConfiguration":
        rules = ET.Element(f"{{{NAMESPACE}}}LifecycleConfiguration")
    else:
        raise refusal(http.address, answer, doing)
    ours = _rule(prefix, days, versions=versions)
    for rule in rules.findall("{*}Rule"):
        if rule.findtext("{*}ID") == ours.findtext("{*}ID"):
            rules.remove(rule)
    rules.append(ours)
    ET.register_namespace("", NAMESPACE)
    answer = http.ask(document("PUT", "lifecycle=", ET.tostring(rules, encoding="unicode")))
    if answer.status != _OK:
        raise refusal(http.address, answer, doing)


def _rule(prefix: str, days: int, *, versions: bool) -> ET.Element:
    noncurrent = f"<NoncurrentVersionExpiration><NoncurrentDays>{days}</NoncurrentDays></NoncurrentVersionExpiration>"
    return ET.fromstring(  # noqa: S314  it is our own
        f'<Rule xmlns="{NAMESPACE}"><Expiration><Days>{days}</Days></Expiration><ID>serfer {prefix}</ID>'
        f"<Filter><Prefix>{prefix}</Prefix></Filter><Status>Enabled</Status>{noncurrent if versions else ''}"
        f"<AbortIncompleteMultipartUpload><DaysAfterInitiation>{days}</DaysAfterInitiation>"
        "</AbortIncompleteMultipartUpload></Rule>"
    )


def _parsed(http: S3Http, answer: Answer, root: str) -> ET.Element:
    """Parse an answer, which the transport has bounded; expat bounds what entities may make of it."""
    try:
        element = ET.fromstring(answer.body)  # noqa: S314  see above
    except ET.ParseError:
        raise no_s3(http.address, answer) from None
    if element.tag not in {root, f"{{{NAMESPACE}}}{root}"}:
        raise no_s3(http.address, answer)
    return element
