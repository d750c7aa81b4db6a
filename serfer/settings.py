"""The only reader of the environment, workers apart: what an operator sets once, as SERFER_* variables or in a file.

Options of a command win over variables, and these over the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from serfer.build_cache import check_cache
from serfer.core.costs.aws import AwsFacts, parse_aws, shipped_aws
from serfer.core.costs.operator_costs import Profiles, parse_profiles, shipped_profiles
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.keys import MOST_RESULT_TTL_S, RESULT_TTL_S
from serfer.core.options import Options, flag_of, options_of
from serfer.core.plan import ImageLimits
from serfer.core.sigv4 import Access
from serfer.core.wire import MAX_BATCH, MAX_TTL
from serfer.files import read_text, why_unsafe
from serfer.system import processors

_PREFIX = "SERFER_"
_FILE = Path("serfer.toml")  # of the working directory
_FILE_VARIABLE = "SERFER_CONFIG"
_left_out: Final[set[str]] = set()
# Kubernetes sets these in every container next to a service that is called serfer.
_SERVICE_LINK = re.compile(r"SERFER_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)")
_LINKED_PORT = re.compile(r"(tcp|udp|sctp)://.*")
_LISTED = "without it, serfer serve --show-config lists all there are"
TABLES = (
    *("serve", "instance", "classify", "predict", "run", "map-plan", "map", "split", "explain", "verify", "cost"),
    *("app-register", "deploy-package", "deploy-warm", "study-replay"),
)
"""Tables of the file: those of commands, each with the keys that are its options."""
NONE = "none"
"""What `results` and `keys_file` are where there are to be none, whatever a source below says."""
_ALIKE = 0.75  # of two names, from which on one may have been meant by the other
_COLLECTORS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_IPV6 = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*"
_HOST = re.compile(rf"([A-Za-z0-9_][A-Za-z0-9_.-]*|\[{_IPV6}\])(:(?P<port>[0-9]{{1,5}}))?|{_IPV6}")
_MOST_PORT = 65_535
_MOST_BYTES = 4 * 1024 * 1024


def _own_cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "serfer"


class Settings(BaseSettings):
    """Settings with their defaults; every field `x` is set by the variable SERFER_X (docs/reference/settings.md).

    `x` is its key in serfer.toml, unless it is a secret.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_ignore_empty=True, frozen=True)

    cache_dir: Path = Field(default_factory=_own_cache)
    """Where plans and function packages are kept: a directory of its own, by default in `XDG_CACHE_HOME`."""
    aws_file: Path | None = None
    """AWS prices and quotas of your own, in the format of `serfer/core/costs/aws.toml`."""
    account: str | None = Field(default=None, max_length=20)
    """The AWS account that is planned for and priced: `new`, `default` or `MB,ENVIRONMENTS` (`account`)."""
    profiles_file: Path | None = None
    """Operator profiles of your own, from `serfer study profile`; otherwise those shipped."""
    max_image_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """The largest image file that commands and the Python API read."""
    max_image_pixels: int = Field(default=100_000_000, gt=0)
    """The largest image that commands and the Python API decode."""
    registry: str | None = Field(default=None, max_length=1024)
    """The registry of applications: a directory, or `s3://BUCKET/PREFIX` (`--registry`)."""
    results: str | None = None
    """The URL of the store of results: answers that the last stage's tiles write there, for their owner to keep; `none`
    keeps none.
    """
    results_ttl_s: float = Field(default=RESULT_TTL_S, gt=0, le=MOST_RESULT_TTL_S)
    """How long results are kept."""
    state_machine: str = Field(
        default="",
        pattern=r"^$|^arn:[a-z-]+:states:[a-z0-9-]+:[0-9]{12}:stateMachine:[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$",
        max_length=300,
    )
    """The ARN of the plan's state machine, for `--workers aws --set engine=stepfunctions` without `--stack`."""
    function_prefix: str = Field(default="", max_length=40, pattern=r"^[A-Za-z0-9_-]*$")
    """The first part of deployed functions' names: the name of the stack."""
    function_alias: str = Field(default="", max_length=128, pattern=r"^[A-Za-z0-9_-]*$")
    """The alias of deployed functions."""
    host: str = "127.0.0.1"
    """The address that a service listens at; 0.0.0.0 is all there are."""
    port: int = Field(default=8000, ge=0, le=_MOST_PORT)
    """The port of a service; 0 is any free one."""
    drivers: int = Field(default=0, ge=0, le=64)
    """Drivers of `serfer serve` behind a load balancer; 0: its process is the one driver."""
    store: str | None = None
    """The URL of the store; by default the stack's, or that of a new one."""
    object_store: str | None = None
    """That of a second store, for the stages that the plan sends to S3."""
    workers: str | None = None
    """The workers: `local`, `inprocess` or `aws`. By default `inprocess` for plans of one task, `local` for others and
    `serfer map`, `inprocess` for `serfer verify`, `aws` with a stack.
    """
    stack: str | None = None
    """The stack of a deployment, whose functions are invoked."""
    engine: str = "push"
    """The engine: `push`, `poll`, `stepfunctions` or `stepfunctions-express`."""
    log_level: str = "info"
    """The log of a service: `debug`, `info`, `warning` or `error`."""
    log_format: str = "auto"
    """The form of that log: `json`, `text`, or `auto`, text on a terminal."""
    api_max_body_bytes: int = Field(default=20 * 1024 * 1024, gt=0)
    """The largest body of a request."""
    api_max_pixels: int = Field(default=24_000_000, gt=0)
    """The largest image of a request."""
    api_max_request_pixels: int = Field(default=96_000_000, gt=0)
    """The most pixels of all images of a request together."""
    api_decoders: int = Field(default=2, gt=0, le=1000)
    """Images decoded at once, each in a process that takes up to 20 bytes a pixel (in a driver function: one)."""
    api_decode_cpu_s: float = Field(default=10.0, gt=0, le=3600)
    """Processor time that decoding the images of a request may take."""
    api_plain_bytes: int = Field(default=256 * 1024, ge=0, le=256 * 1024)
    """Up to how many bytes of plain JPEG and PNG files of a request the service decodes itself (0: a decoder does)."""
    api_jobs: str = Field(default="", max_length=1024)
    """Where the images of offline jobs lie (`POST /v1/jobs`): `s3://BUCKET/PREFIX`, or a directory. None are taken
    without it; each counts as one request in quotas.
    """
    api_max_images: int = Field(default=16, gt=0, le=MAX_BATCH)
    """The most images of a request."""
    api_max_answer_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """The largest answer of `/v2`: a larger one is kept where results are, else refused before it is computed (in a
    driver function: 4,400,000).
    """
    api_max_result_bytes: int = Field(default=4 * 1024 * 1024 * 1024, gt=0)
    """The largest result that is kept for a client of `/v2`."""
    api_downloads: int = Field(default=16, gt=0, le=10_000)
    """Outputs of results that a driver sends at once, half of them to one client."""
    api_held_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    """What the bodies of all requests in a driver may take together, unpacked and as arrays and pixels included; the
    last eighth is for clients that hold no more than an eighth.
    """
    api_body_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """How long a body may take to arrive."""
    api_header_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """How long headers may take to arrive."""
    api_client_connections: int = Field(default=512, gt=0, le=65_536)
    """Connections that an address, of IPv6 its /64 network, may have to a driver; at most half of the files that it may
    open (`ulimit -n`). Those on which a balancer of FORWARDED_ALLOW_IPS names its clients do not count.
    """
    throttled_attempts: int = Field(default=12, gt=0, le=12)
    """Attempts of a task for which Lambda has no room, before the query ends with 429; a driver function makes 5 at
    most.
    """
    api_in_flight: int = Field(default=16, gt=0, le=10_000)
    """Queries that a driver runs at once (`in_flight`)."""
    api_queue: int = Field(default=128, ge=0, le=10_000)
    """Queries that wait in a driver, for a decoder or their turn (`queue`)."""
    api_deadline_ms: int = Field(default=30_000, gt=0, le=86_340_000)
    """The deadline of a query that names none."""
    api_drain_s: float = Field(default=5.0, ge=0, le=900)
    """How long a driver still takes requests after SIGTERM (`drain_s`); one of several (`--drivers`) has 2 s."""
    api_result_ttl_s: float = Field(default=600.0, gt=0, le=MAX_TTL)
    """How long asynchronous results and answers by idempotency key are kept."""
    keys_file: Path | None = None
    """The file of API keys (`--keys`); `none` asks for none."""
    allow_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts, separated by commas, that requests without API keys may be for, and pages from, at any port, or that of
    NAME:PORT (`allow_host`)."""
    open_registry: bool = False
    """Whether a service without API keys lets anyone change its registry's applications (`open_registry`)."""
    route: str = Field(default="serverless", max_length=300)
    """Where queries run: `serverless`, `auto`, `gpu`, or a policy by name or as `MODULE:Class` (`--route`)."""
    instances: str | None = None
    """The pool of instances: `local`, `static:URL,URL`, `ec2:GROUP`, or one for each type, as
    `TYPE=ec2:GROUP,TYPE/spot=ec2:GROUP,TYPE=static:URL|URL` (`--instances`).
    """
    scenario_file: Path | None = None
    """Prices and speeds of functions and instances (`scenario`)."""
    max_usd_per_hour: float | None = Field(default=None, gt=0)
    """What any hour may cost (`max_usd_per_hour`)."""
    keep_warm: str | None = Field(default=None, max_length=300)
    """The windows by which a driver keeps functions warm: `lsth`, `hybrid`, or seconds (`keep_warm`)."""
    instance_key: SecretStr = SecretStr("")
    """The API key that a pool's instances are asked with."""
    yield_key: SecretStr = SecretStr("")
    """The API key that the services of `--yield-to` are asked with."""
    prewarm: Literal["auto", "never"] = "auto"
    """Whether a driver's first query, and one after a time without any, warms the functions of later stages."""
    weights: str = ""
    """Where workers in process fetch weights that are not in the plan directory, by digest: `s3://BUCKET/PREFIX`."""
    function_memory_mb: int | None = Field(default=None, gt=0)
    """For workers in process of a driver function, which sets it itself: its memory in MB, from which follows how many
    threads they have.
    """
    sessions_mb: int | None = Field(default=None, gt=0)
    """For workers in process: how many MB the ONNX Runtime sessions of a pipeline may take, beyond which those least
    recently used are built again. Half of the memory that is free when it opens if not set; in a driver function what
    its own leaves.
    """
    session_threads: int | None = Field(default=None, gt=0)
    """For workers in process: the threads that compute a pass of the network. If not set, one where its tasks are
    predicted to take less than 20 ms, else all cores, shared among a stage's tiles, which answers one query soonest.
    """
    share_arena: bool | None = None
    """For workers in process: whether sessions work in one arena of ONNX Runtime, which takes the place of one that the
    program registered. If not set, those of commands and functions do.
    """
    cold_plan: Literal["auto", "never"] = "auto"
    """Whether queries that would find a plan's functions cold run on the cold plan of its directory, if it has one."""
    local_concurrency: int = Field(default=16, gt=0)
    """Local invocations at once, shared by all drivers of `serfer serve`; if not set, each of them has one
    for each core, or as many as its models' widest gang has members, or as a query on a cold plan needs.
    """
    local_freeze: bool = False
    """Whether local environments stand still between invocations, and one that starts in place of one that crashed
    starts in its function's own time: as in Lambda, to try what becomes of connections and of slow starts.
    """
    local_url: str = Field(default="", pattern=r"^$|^http://[A-Za-z0-9.:\[\]-]+$")
    """A local Lambda service that is running already, for `--workers local --store URL`."""
    local_access: SecretStr = SecretStr("")
    """Credentials of the local Lambda service, `ACCESS_KEY_ID:SECRET`, the secret of at least 16 characters; random for
    each run if not set.
    """
    local_fetch_rate: float | None = Field(default=None, gt=0)
    """For measurements: bytes a second at which a local environment fetches weights that are not in its package."""
    local_port: int = Field(default=0, ge=0, le=_MOST_PORT)
    """The port of the local Lambda service; 0 is any free one."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there is no such file
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read variables, and what they lack from the file; raises InputError for one that cannot be used."""
        given = init_settings()
        variables = _left(env_settings(), given)
        table = {name: key.value for name, key in _GIVEN.get({}).items() if key.in_file}
        table = _left(table, {**variables, **given})
        in_file = _left(settings_file()[1], {**table, **variables, **given})
        sources = (variables, table, in_file)
        return init_settings, *(InitSettingsSource(settings_cls, source) for source in sources)

    @field_validator("*", mode="before")
    @classmethod
    def _counts(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false for a number, which Python takes for 1 and 0."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:
            raise ValueError("Input should be a number, not true or false")
        return value

    @field_validator("cache_dir", "aws_file", "profiles_file", "keys_file", "scenario_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """Workers have working directories of their own, so a relative path must not reach them."""
        return path and path.expanduser().absolute()

    @field_validator("cache_dir")
    @classmethod
    def _cache(cls, directory: Path) -> Path:
        check_cache(directory, default=directory == _own_cache())
        return directory

    @field_validator("results", "keys_file", mode="before")
    @classmethod
    def _unless_none(cls, value: object) -> object:
        return None if str(value) == NONE else value

    @field_validator("port", mode="before")
    @classmethod
    def _unlinked(cls, port: object) -> object:
        """Take the default for an address, which Kubernetes sets SERFER_PORT to for a service called serfer."""
        return cls.model_fields["port"].default if isinstance(port, str) and _LINKED_PORT.fullmatch(port) else port

    @field_validator("allow_hosts", mode="before")
    @classmethod
    def _hosts(cls, names: object) -> Sequence[str]:
        """Take host names with commas between them; refuse URLs, which would never match."""
        hosts = _split(names)
        for name in hosts:
            if not (found := _HOST.fullmatch(name)):
                raise ValueError(f"{name!r} is not a host name or an IP address: give it without scheme and path")
            if found["port"] and not 0 < int(found["port"]) <= _MOST_PORT:
                raise ValueError(f"{name!r} has a port that there is not: give 1 to {_MOST_PORT}")
        return hosts

    @field_validator("yield_key")
    @classmethod
    def _sendable(cls, key: SecretStr) -> SecretStr:
        if not re.fullmatch(r"[\x21-\x7e]{0,1024}", key.get_secret_value()):
            raise ValueError("an API key is visible ASCII characters, at most 1,024 of them")
        return key

    @field_validator("local_access")
    @classmethod
    def _credentials(cls, access: SecretStr) -> SecretStr:
        if not re.fullmatch(r"|[A-Za-z0-9_]{4,128}:[\x21-\x7e]{16,128}", access.get_secret_value()):
            raise ValueError("give ACCESS_KEY_ID:SECRET, the secret of at least 16 characters")
        return access

    def local_share(self, drivers: int = 1, least: int = 0) -> int:
        """Return how many local invocations each of so many drivers may have in flight.

        That is an equal part of SERFER_LOCAL_CONCURRENCY where it is set, else one for each core: more would take turns
        on the cores, each in an environment with a start and memory of its own. Plans may need more at once, `least`.
        """
        if "local_concurrency" in self.model_fields_set:
            return max(1, self.local_concurrency // drivers)
        return max(processors(), least)

    def signing_access(self) -> Access | None:
        key_id, _, secret = self.local_access.get_secret_value().partition(":")
        return Access(key_id, secret) if key_id else None

    def image_limits(self) -> ImageLimits:
        """Return what an image may be; a service's limits are its settings too, where they are the lower ones."""
        most, pixels = self.max_image_bytes, self.max_image_pixels
        names = (
            "SERFER_MAX_IMAGE_BYTES" if most != self.api_max_body_bytes else "SERFER_API_MAX_BODY_BYTES",
            "SERFER_MAX_IMAGE_PIXELS" if pixels != self.api_max_pixels else "SERFER_API_MAX_PIXELS",
        )
        return ImageLimits(most, pixels, *names)

    def facts(self) -> AwsFacts:
        """Return AWS's prices and quotas, with the user's own where `aws_file` has them."""
        if self.aws_file is None:
            return shipped_aws()
        return parse_aws(_text("SERFER_AWS_FILE", self.aws_file), shipped_aws())

    def profiles(self, path: Path | None = None, safety: float = 0.0) -> Profiles:
        """Return the operator profiles of `path`, or else of `profiles_file`, or else the shipped ones.

        `safety` is a share that is added to every time. Raises InputError that names the file.
        """
        name, chosen = ("--profiles", path) if path else ("SERFER_PROFILES_FILE", self.profiles_file)
        if chosen is None:
            return shipped_profiles(safety)
        text = _text(name, chosen)
        try:
            return parse_profiles(text, safety)
        except InputError as error:
            raise InputError(f"{name}: {chosen}: {error}") from error


class DriverSettings(BaseSettings):
    """What a driver in AWS serves; `serfer serve` has options for it, so these are not among its settings."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, populate_by_name=True)

    plan: str = ""
    """Plan directories with a colon between two, of which plan.json is enough; relative ones lie in LAMBDA_TASK_ROOT,
    or else in the working directory, which is the plan where none is named."""
    store: str | None = None
    """The URL of the store that the stages' functions were deployed with."""
    object_store: str | None = None
    """That of the second one, if there is one."""
    workers: str = "aws"
    """`aws`, or `inprocess`: the driver computes everything itself, in a function with the plan's layers, elsewhere by
    whole directories."""
    driver: str = "push"
    """`push`, `poll`, `stepfunctions` or `stepfunctions-express`."""
    applications: str = ""
    """Applications of the registry at SERFER_REGISTRY that are answered for, with commas between."""
    application_plans: str = ""
    """Plan directories, as in SERFER_PLAN, of the variants whose functions are deployed; others are not selected."""
    lambda_task_root: Path = Field(default=Path(), validation_alias="LAMBDA_TASK_ROOT")
    """Where Lambda unpacks a function; Lambda sets it."""
    lambda_memory_mb: int | None = Field(default=None, gt=0, validation_alias="AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
    """A function's memory; Lambda sets it."""


def _split(names: object) -> Sequence[str]:
    """Return a variable's names, which have commas between them, or a file's list; raises ValueError for neither."""
    hosts = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not isinstance(hosts, list | tuple) or not all(isinstance(name, str) for name in hosts):
        raise ValueError("Input should be a list of names, or one text with commas between them")
    return hosts


def access_setting(access: Access) -> SecretStr:
    """Return credentials as the field `local_access`, and the variable SERFER_LOCAL_ACCESS, have them."""
    return SecretStr(f"{access.key_id}:{access.secret}")


def _text(name: str, path: Path) -> str:
    try:
        return read_text(path, _MOST_BYTES)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def aws_access() -> dict[str, str]:
    """Return the variables that give a process of ours the AWS access of this one, as a function's role would.

    Raises UnavailableError where boto3 would find no credentials.
    """
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - only stores in AWS need botocore
    from botocore.session import Session  # noqa: PLC0415 - same

    session = Session()
    try:
        credentials = session.get_credentials()
        region = session.get_config_variable("region")
    except BotoCoreError as error:
        raise UnavailableError(f"--store: {error}") from error
    if credentials is None:
        raise UnavailableError("--store: no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret")
    frozen = credentials.get_frozen_credentials()
    variables = {
        "AWS_ACCESS_KEY_ID": frozen.access_key,
        "AWS_SECRET_ACCESS_KEY": frozen.secret_key,
        "AWS_SESSION_TOKEN": frozen.token,
        "AWS_DEFAULT_REGION": region,
        **{name: os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE")},
    }
    return {name: value for name, value in variables.items() if value}


def aws_region() -> str | None:
    """Return the region that boto3 would use, or None; raises UnavailableError for an unknown profile."""
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - only deployments need botocore
    from botocore.session import Session  # noqa: PLC0415 - same

    try:
        region: str | None = Session().get_config_variable("region")
    except BotoCoreError as error:
        raise UnavailableError(f"AWS_PROFILE: {str(error).rstrip('.')}: correct it, or unset it") from error
    return region


@dataclass(frozen=True)
class Given:
    """What an option of a command line, such as `--store`, or a key of its table `in_file` says of a setting."""

    option: str
    value: Any
    in_file: bool = False


_GIVEN: ContextVar[Mapping[str, Given]] = ContextVar("given")


@contextmanager
def given_settings(given: Mapping[str, Given]) -> Iterator[None]:
    """Let `load_settings` use the options of the command that runs within."""
    token = _GIVEN.set(given)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def settings_file() -> tuple[Path | None, dict[str, Any]]:
    """Return the file of settings, None where there is none, and what it sets, tables of commands apart.

    That is serfer.toml of the working directory, or what SERFER_CONFIG names. Raises InputError for a file that cannot
    be read, a key that is not a setting, and a secret or a URL with a password, which files get copied with.
    """
    path, values = _file()
    values = {key: value for key, value in values.items() if not (key in TABLES and isinstance(value, dict))}
    for key, value in values.items():
        if key not in Settings.model_fields:
            raise InputError(f"{path}: {key!r:.80} is not a setting: {_meant(key, value)}")
        if is_secret(key):
            raise InputError(f"{path}: {key} is a secret, which belongs in the variable {_PREFIX}{key.upper()} alone")
        _refuse(path, key, value, _PREFIX)
    return path, values


def _file() -> tuple[Path | None, dict[str, Any]]:
    named = os.environ.get(_FILE_VARIABLE)
    path = Path(named) if named else _FILE
    if not named and not path.exists():
        return None, {}
    for place in () if named else (path, Path.cwd()):
        if why := why_unsafe(place):
            named_so = f"give --config {path}, or set {_FILE_VARIABLE}={path}"
            raise InputError(f"{place} {why}: to read {path} all the same, {named_so}")
    try:
        return path, tomllib.loads(
            _text(f"--config or {_FILE_VARIABLE}", path) if named else read_text(path, _MOST_BYTES)
        )
    except (ValueError, RecursionError) as error:  # also of numbers and tables without end
        raise InputError(f"{path}: not TOML: {error}") from error


def _meant(key: str, value: object) -> str:
    known, names, form = [*Settings.model_fields], [key], "{}"
    if isinstance(value, dict):
        known, names, form = [*TABLES], [key, f"{key}-{next(iter(value), '')}"], "[{}]"
    near = next((near for name in names for near in get_close_matches(name, known, n=1, cutoff=_ALIKE)), None)
    return f"did you mean {form.format(near)}?" if near else f"{_LISTED}; a command's keys stand in its table, [serve]"


def _refuse(path: Path | None, key: str, value: object, prefix: str) -> None:
    from serfer.storage import redact  # noqa: PLC0415 - only a file needs it

    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    if any(redact(text) != text for text in texts):
        raise InputError(f"{path}: {key} has a password, which belongs in the variable {prefix}{key.upper()} alone")
    if not os.environ.get(_FILE_VARIABLE) and (why := next(filter(None, map(partial(_runs_code, key), texts)), "")):
        how = f"give it as an option or a variable, or name the file with --config {path}"
        raise InputError(f"{path}: {key} may make code run{why}: {how}")


def _runs_code(key: str, text: str) -> str:
    """Return why a value may run code that is not ours, which an operator names alone; "" where it cannot."""
    if key == "cache_dir":
        return ", since functions are run from it"
    if key in ("route", "keep_warm", "selector"):
        return "" if _is_built_in(key, text) else f", and {text!r:.80} is not a built-in name"
    return f", which {text!r:.80} names" if re.search(r"\.py(:|$)", text) else ""


def _is_built_in(key: str, text: str) -> bool:
    from serfer.control.policies import POLICIES, ROUTES, STUDY  # noqa: PLC0415 - only a file needs it
    from serfer.control.selection import DEFAULT  # noqa: PLC0415 - same
    from serfer.control.windows import WINDOWS, seconds_in  # noqa: PLC0415 - same

    if text in (*ROUTES, *STUDY) if key == "route" else key == "keep_warm" and seconds_in(text) is not None:
        return True  # a setting of one of STUDY may name code in turn
    return text.partition(":")[0] in {"route": POLICIES, "keep_warm": WINDOWS, "selector": (DEFAULT,)}[key]


def leave_out(keys: Iterable[str]) -> None:
    """Read these keys of a command no more: what started this process gives their values on its line."""
    _left_out.update(keys)


def command_keys(kind: type[Options]) -> dict[str, tuple[Any, str, bool]]:
    """Return what variables SERFER_COMMAND_NAME and, below them, a command's table of the file set.

    Each has its origin, and whether that is the file, of which a key is left out whose setting has a variable. Raises
    InputError and UsageError for what is not a key of the command, or has to be on its line.
    """
    path, values = _file()
    table = kind.command.replace(" ", "-")
    in_file = values.get(table, {})
    known = {item.name: option for item, option in options_of(kind)}
    on_line = {item.name for item, _ in options_of(kind) if item.default is MISSING}
    found: dict[str, tuple[Any, str, bool]] = {}
    for key, value in in_file.items() if isinstance(in_file, dict) else ():
        if key in _left_out:
            continue
        if key not in known or key in on_line:
            raise InputError(f"{path}: [{table}] {unknown_key(kind, key)}")
        _refuse(path, key, value, _prefix(table))
        if not ((setting := known[key].setting) and os.environ.get(f"{_PREFIX}{setting.upper()}")):
            found[key] = value, f"{path}: [{table}] {key}", True
    for variable, value in os.environ.items():
        key = variable.removeprefix(_prefix(table)).lower()
        if not value or _table_of(variable) != table or key in _left_out:
            continue
        if key not in known or key in on_line:
            raise UsageError(f"{variable}: {unknown_key(kind, key)}")
        found[key] = value, variable, False
    return found


def _prefix(table: str) -> str:
    return f"{_PREFIX}{table.replace('-', '_').upper()}_"


def _table_of(variable: str) -> str | None:
    """Return the command whose key a variable sets, None for a setting or none of ours."""
    if variable.removeprefix(_PREFIX).lower() in Settings.model_fields:
        return None
    found = [table for table in TABLES if variable.startswith(_prefix(table))]
    return max(found, key=len, default=None)


def unknown_key(kind: type[Options], key: str) -> str:
    """Say that a command has no such key, and which one may have been meant by its name or flag."""
    names = {flag_of(item, about).lstrip("-").replace("-", "_"): item for item, about in options_of(kind)}
    names |= {item.name: item for item, _ in options_of(kind)}
    near = next(iter(get_close_matches(key, names, n=1, cutoff=_ALIKE)), None)
    if near == key and names[key].default is MISSING:
        return f"{key} is given on the command's line alone"
    meant = f"did you mean {names[near].name}?" if near else "its --help lists all there are"
    return f"{key!r:.80} is not a key of the command: {meant}"


def is_secret(name: str) -> bool:
    """Return whether a setting may not be shown, nor stand in a file."""
    return Settings.model_fields[name].annotation is SecretStr


def origins(settings: Settings, given: Mapping[str, Given]) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and origin of every setting; `given` are the options that the settings were loaded with.

    The origin is an option, a variable, the file or "default".
    """
    path, _ = settings_file()
    variables = {name.upper() for name, value in os.environ.items() if value}
    for name in Settings.model_fields:
        variable = f"{_PREFIX}{name.upper()}"
        if name not in settings.model_fields_set:
            yield name, getattr(settings, name), "default"
        elif name in given:
            yield name, getattr(settings, name), given[name].option
        else:
            yield name, getattr(settings, name), variable if variable in variables else str(path)


def load_settings(given: Mapping[str, Given] | None = None) -> Settings:
    """Read the settings: options that were `given`, or the command's, win over variables, and these over the file.

    A stack replaces the workers and stores of what it wins over, and workers that are not in AWS a stack. Raises
    UsageError that names the wrong option or variable, InputError for the file.
    """
    given = _GIVEN.get({}) if given is None else given
    try:
        with given_settings(given):
            return Settings(**{name: option.value for name, option in given.items() if not option.in_file})
    except ValidationError as error:
        path, in_file = settings_file()
        name = str(error.errors()[0]["loc"][0])
        if name in given:
            raise UsageError(f"{given[name].option}: {_reason(error)}") from error
        if name in in_file and not os.environ.get(f"{_PREFIX}{name.upper()}"):
            raise InputError(f"{path}: {name}: {_reason(error)}") from error
        raise UsageError(_first(error)) from error


def _left(values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Who names a stack means its workers and stores, so who names workers that are not in AWS means no stack."""
    replaced: tuple[str, ...] = ()
    if above.get("stack"):
        replaced = ("workers", "store", "object_store")
    elif above.get("workers") not in (None, "aws"):
        replaced = ("stack",)
    return {name: value for name, value in values.items() if name not in replaced}


def unknown_settings() -> str | None:
    """Return a line about SERFER_* variables that set nothing, with the nearest name of each; None where all are known.

    Keys of commands are not looked at: each command refuses those of its own that it does not know. On the command
    line it is an error; in AWS a warning, since a function's environment may be older than its code.
    """
    known = {name.upper() for kind in (Settings, DriverSettings) for name in (*kind.model_fields, "config")}
    ours = (name for name in os.environ if name.upper().startswith(_PREFIX))
    given = sorted(name for name in ours if not _SERVICE_LINK.fullmatch(name) and _table_of(name) is None)
    near = {
        name: get_close_matches(own, known, n=1, cutoff=_ALIKE)
        for name in given
        if (own := name.upper().removeprefix(_PREFIX)) not in known
    }
    if not near:
        return None
    said = [f"{name} (did you mean {_PREFIX}{found[0]}?)" if found else name for name, found in near.items()]
    return f"not a setting: {', '.join(said)}{'' if all(near.values()) else f': {_LISTED}'}"


def tracing_wanted() -> bool:
    """Return whether OpenTelemetry's variables, which its SDK reads, name a collector of traces."""
    return any(os.environ.get(name) for name in _COLLECTORS)


def settings_with(settings: Settings, values: Mapping[str, Any], source: str) -> Settings:
    """Return settings with other values of some fields; raises UsageError that names `source` and the wrong one."""
    try:
        # Of the others only what was set: a limit that was not is not one that was set to its default.
        return Settings(**{**settings.model_dump(exclude_unset=True), **values})
    except ValidationError as error:
        raise UsageError(f"{source}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    return f"{_PREFIX}{str(error.errors()[0]['loc'][0]).upper()}: {_reason(error)}"


def _reason(error: ValidationError) -> str:
    return error.errors()[0]["msg"].removeprefix("Value error, ")
