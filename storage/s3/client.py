"""The objects of one bucket, by obstore: it signs, opens the sessions of directory buckets and uploads in parts.

botocore finds the address and the credentials. obstore says in text what a server answered: `_response_of` reads it.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import urlsplit

import obstore
import obstore.store
from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.session import Session
from obstore.exceptions import BaseError, PreconditionError

from serfer.core.errors import StoreUnavailableError
from serfer.core.retry import Backoff, RetryPolicy, retry
from serfer.storage.s3.address import Address
from serfer.storage.s3.errors import CONNECT_S, READ_S, Answer, no_s3, unreachable
from serfer.storage.store import Bytes

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, UpdateVersion
    from obstore.store import S3Credential

_EXPIRES = "serfer-expires"
_PARTS_AT_ONCE = 8
_SMALL, _LARGE_S = 256 << 10, 60.0  # bytes of a body that is sent within READ_S; how long a larger one may take
_KEYS_S = 600.0  # obstore asks for credentials again five minutes before; botocore renews its own ten before their end
_LONGEST = timedelta(hours=1)
_TRANSIENT = frozenset({429, 500, 502, 503, 504})
_STATUS = re.compile(r"status code: (\d{3})[^:]*: ?(.*?)(?:\n\nDebug source|\Z)", re.DOTALL)
_UNDELETED = re.compile(r"DeleteObjects request failed for key .*?: (.*) \(code: (\w+)\)")
_REDIRECTED = "redirect without LOCATION"
_T = TypeVar("_T")


@dataclass(frozen=True)
class S3Object:
    """An object, or a range of one: its bytes, the whole object's size, its entity tag, and when it expires.

    `expires` is in seconds since the epoch, None for an object that is not a value of ours.
    """

    body: bytes
    size: int
    tag: str
    expires: float | None


class RefusedError(Exception):
    """S3 refused a request."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, answer.field("Code"))
        self.answer = answer


class _TransientError(Exception):
    """What another attempt may not meet; `args` has the error of the last."""


class _StalledError(BaseError):
    """A server answered, and the body of its response stalled or was cut."""


_REQUESTS = RetryPolicy("s3", _TransientError, Backoff(base=0.075, longest=0.3, factor=4.0), attempts=3)
_FIRST_READS_S = (0.5, 0.5, 1.0, 1.0, 2.0)  # longer and longer: the server may be slow; the last attempt has READ_S
_BODIES = RetryPolicy("s3", _StalledError, Backoff(base=0.0, longest=0.0), attempts=8)


class _Keys:
    def __init__(self, session: Session) -> None:
        self.problem: StoreUnavailableError | None = None
        self._session = session
        self._lock = Lock()

    def __call__(self) -> "S3Credential":
        try:
            with self._lock:  # botocore's search is not meant for several threads
                credentials = self._session.get_credentials()
            if credentials is None:
                self.problem = StoreUnavailableError(
                    "no AWS credentials for --store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
                    "or give this machine a role"
                )
                raise self.problem
            keys = credentials.get_frozen_credentials()
        except BotoCoreError as error:
            self.problem = StoreUnavailableError(f"the AWS credentials for --store cannot be had: {error}")
            raise self.problem from error
        self.problem = None
        until = datetime.now(UTC) + timedelta(seconds=_KEYS_S)
        return {
            "access_key_id": keys.access_key or "",
            "secret_access_key": keys.secret_key or "",
            "token": keys.token,
            "expires_at": until,
        }


class S3Client:
    """Sends requests for one bucket, reads up to six times on transient failures and all else up to three times.

    A server that is silent is asked again for what is read alone. Of a directory bucket, reads have a session of their
    own, as all else has: each time limit is another client of obstore's.

    Methods raise RefusedError for a refusal, StoreUnavailableError where no answer comes, or none of an S3 server.
    """

    def __init__(
        self, bucket: str, address: Address, session: Session, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.address = address
        self._bucket = bucket
        self._session = session
        self._sleep = sleep
        self._keys = _Keys(session)
        self.close()

    def close(self) -> None:
        self._stores: dict[float, obstore.store.S3Store] = {}

    def get(self, name: str, start: int = 0, length: int | None = None) -> S3Object:
        """Read a range of one version of an object; where a body stalls or is cut, the next request continues it."""
        parts: list[bytes] = []
        tag: str | None = None

        def request(store: obstore.store.S3Store) -> S3Object:
            nonlocal tag
            offset = start + sum(map(len, parts))
            options: GetOptions = {"if_match": tag} if parts else {}
            if length is not None:
                options["range"] = (offset, start + length)
            elif offset:
                options["range"] = {"offset": offset}
            try:
                result = obstore.get(store, name, options=options)
            except PreconditionError:
                if not parts:
                    raise
                result = None
            if result is None or (parts and result.meta["e_tag"] != tag):
                parts.clear()  # of a version that was replaced
                return request(store)
            tag = result.meta["e_tag"]
            try:
                parts.extend(result.stream(1))  # what came before an error stays there
            except BaseError as error:
                if not tag:
                    parts.clear()
                raise _StalledError(str(error)) from error
            return _object_of(result, b"".join(parts))

        return self._read(lambda store: self._continue(lambda: request(store), parts))

    def head(self, name: str) -> S3Object:
        return self._read(lambda store: _object_of(obstore.get(store, name, options={"head": True})))

    def put(
        self,
        name: str,
        body: Bytes,
        expires: float,
        mode: "Literal['create', 'overwrite'] | UpdateVersion" = "overwrite",
        part: int | None = None,
    ) -> str:
        put = self._ask(
            lambda store: obstore.put(
                store,
                name,
                body,
                attributes={_EXPIRES: f"{expires:.3f}"},
                mode=mode,
                use_multipart=part is not None,
                chunk_size=part or _SMALL,
                max_concurrency=_PARTS_AT_ONCE,
            ),
            limits=[READ_S if len(body) <= _SMALL else _LARGE_S],
        )
        return put["e_tag"] or ""

    def delete(self, names: Sequence[str]) -> None:
        if names:
            self._ask(lambda store: obstore.delete(store, names))

    def names(self, prefix: str, until: float) -> Iterator[list[str]]:
        """ListObjectsV2: yield the names below a prefix last changed at `until`, in seconds since the epoch, or before.

        A page at a time, in the order in which S3 lists them: in directory buckets that is any, and the list of one
        begins again where a page fails. So attempts count over the whole list, elsewhere from the last new name on.
        """
        last = ""
        seen: set[str] = set()  # in directory buckets, whose lists have no order to go on in
        lists: list[Iterator[Sequence[ObjectMeta]]] = []
        limits: list[float] = []

        def request(store: obstore.store.S3Store) -> "Sequence[ObjectMeta] | None":
            if not lists:
                lists.append(obstore.list(store, prefix.rstrip("/") or None, offset=last or None, chunk_size=1000))
            pages = lists.pop()
            page = next(pages, None)
            lists.append(pages)  # after an error another takes its place
            return page

        while (page := self._read(request, limits)) is not None:
            names = [entry["path"] for entry in page if entry["last_modified"].timestamp() <= until]
            yield [name for name in names if name not in seen]
            if self.address.sessions:
                seen.update(names)
            elif page[-1]["path"] > last:
                last = page[-1]["path"]
                limits.clear()

    def sign(self, name: str, lifetime_s: int) -> str:
        return self._ask(lambda store: obstore.sign(store, "GET", name, timedelta(seconds=lifetime_s)))

    def _read(self, request: Callable[[obstore.store.S3Store], _T], limits: list[float] | None = None) -> _T:
        left = [] if limits is None else limits
        left[:] = left or [*_FIRST_READS_S, READ_S]
        return self._ask(request, replace(_REQUESTS, attempts=len(left)), left)

    def _continue(self, request: Callable[[], _T], parts: Sequence[bytes]) -> _T:
        """Repeat a request whose body is cut; attempts count from the last that brought more parts, for a while."""
        until = time.monotonic() + _LARGE_S
        while True:
            before = sum(map(len, parts))
            try:
                return retry(request, _BODIES, self._sleep)
            except _StalledError:
                if sum(map(len, parts)) <= before or time.monotonic() > until:
                    raise

    def _ask(
        self,
        request: Callable[[obstore.store.S3Store], _T],
        policy: RetryPolicy = _REQUESTS,
        limits: list[float] | None = None,
    ) -> _T:
        """An attempt waits by the first of `limits`, in seconds, which a failure takes away, but for the last."""
        left = limits or [READ_S]

        def attempt() -> _T:
            try:
                return request(self._store(left[0]))
            except (BaseError, FileNotFoundError, ValueError) as error:
                silence_passes = len(left) > 1
                if silence_passes:
                    left.pop(0)
                raise self._explain(error, silence_passes=silence_passes) from error

        try:
            return retry(attempt, policy, self._sleep)
        except _TransientError as last:
            raise last.args[0] from last.__cause__

    def _store(self, read_s: float) -> obstore.store.S3Store:
        return self._stores.get(read_s) or self._stores.setdefault(
            read_s, open_bucket(self.address, self._session, self._bucket, read_s, self._keys)
        )  # threads that come at once use one, and with it one session

    def _explain(self, error: Exception, *, silence_passes: bool) -> Exception:
        text = str(error)
        if self._keys.problem and "credential provider" in text:
            return self._keys.problem
        answer = _response_of(text)
        if answer is not None:
            refused = RefusedError(answer)
            return _TransientError(refused) if answer.status in _TRANSIENT else refused
        if "HTTP error" not in text and "HttpError" not in text:
            return no_s3(self.address, Answer(200, b""))
        failed, passes = unreachable(self.address, text, silence_passes=silence_passes)
        return _TransientError(failed) if passes else failed


def open_bucket(
    where: Address, session: Session, bucket: str, read_s: float, keys: _Keys | None = None, prefix: str | None = None
) -> obstore.store.S3Store:
    """Return obstore's client of a bucket, or a prefix of it; raises StoreUnavailableError where none can be made."""
    authority = str(session.get_config_variable("ca_bundle") or get_cert_path(verify=True))
    try:
        return obstore.store.S3Store(
            bucket,
            prefix=prefix,
            aws_endpoint_url_s3=where.url,
            virtual_hosted_style_request=True,
            region=where.region,
            s3_express=where.sessions,
            unsigned_payload=_is_safe(where.url),
            credential_provider=keys or _Keys(session),
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "read_timeout": timedelta(seconds=read_s),
                "timeout": _LONGEST,
                "user_agent": "serfer",
                "root_certificate": Path(authority).read_bytes(),
            },
            retry_config={"max_retries": 0 if keys else 2},  # S3Client has retries of its own
        )
    except (BaseError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise StoreUnavailableError(
            f"no client can be made for S3 at {where.url}: {reason}; check --store and AWS_CA_BUNDLE"
        ) from error


def _object_of(result: "GetResult", body: bytes = b"") -> S3Object:
    meta = result.meta
    try:
        expires = float(str(result.attributes[_EXPIRES]))
    except (KeyError, ValueError):
        expires = None
    return S3Object(body, meta["size"], meta["e_tag"] or "", expires)


def _response_of(text: str) -> Answer | None:
    if match := _STATUS.search(text):
        return Answer(int(match[1]), match[2].encode())
    if _REDIRECTED in text:
        return Answer(301, b"")
    if "invalid multipart response" in text:  # S3 may say 200 first, and then that it failed
        return Answer(500, b"<Code>InternalError</Code><Message>the upload was not completed</Message>")
    if match := _UNDELETED.search(text):
        return Answer(200, f"<Code>{match[2]}</Code><Message>{match[1]}</Message>".encode())
    return None


def _is_safe(url: str) -> bool:
    """Over TLS, where AWS's clients sign no bodies either, and on this machine: nobody can change a body."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return parts.scheme == "https" or local
