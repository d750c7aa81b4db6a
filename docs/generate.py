"""Write the generated parts of reference pages from the code: `.venv/bin/python docs/generate.py`.

A part stands between two comments in its page; tests/test_docs.py fails where a page differs from what this writes.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer
from pydantic_settings import BaseSettings

import serfer
from serfer.api.http.problems import PROBLEM_TYPES, problem_of
from serfer.api.observability.instance_metrics import InstanceMetrics
from serfer.api.observability.metrics import Metrics, ServiceMetrics
from serfer.api.observability.pool_metrics import KeepWarmMetrics, PoolMetrics
from serfer.api.observability.variant_metrics import VariantMetrics
from serfer.cli.main import COMMANDS, app
from serfer.cli.shared.setting_options import setting_of
from serfer.core.errors import OverloadedError, SerferError, ServiceError
from serfer.core.http_messages import EngineSignals, InstanceState, ModelState
from serfer.core.options import Option, Options, in_words, is_on_line, options_of, types_of
from serfer.core.run_machine import GANG_TRANSITIONS, TRANSITIONS
from serfer.core.variants import Place
from serfer.drivers.instance.client import FaultKind
from serfer.fleet.controller import Status, TypeStatus
from serfer.fleet.keep_warm import WarmStatus
from serfer.fleet.purchase import Purchase
from serfer.settings import DriverSettings, Settings
from serfer.splitter.network.unsupported import unsplit_kinds
from serfer.splitter.tiling.operators import tiled_kinds

DOCS = Path(__file__).parent
_UNITS = {"bytes": "bytes", "pixels": "pixels", "s": "s", "ms": "ms", "hour": "$"}
_BOUNDS = {"gt": "&gt;", "ge": "&ge;", "le": "&le;"}
_WIDE = 100
_SEVERAL = 3  # commands of a group
_INTERNAL = (
    "self",
    "transport",
    "sleep",
    "clock",
    "asker",
    "context",
    "faults",
)  # parameters of tests and of SerFer itself
_MADE_BY_SERFER = ("Pipeline",)  # by open(), so its constructor is not public
_PUBLIC = {
    "Pipeline": (
        "run",
        "run_to_result",
        "stored",
        "classify",
        "predict",
        "submit",
        "pixels",
        "warm",
        "health",
        "last",
        "last_report",
        "close",
    ),
}


def commands() -> Iterator[str]:
    """Describe every command with its options, as `--help` does."""
    _MEANINGS.clear()
    root = typer.main.get_command(app)
    context = root.make_context("serfer", [], resilient_parsing=True)
    for name in COMMANDS:
        yield from _command(root.get_command(context, name), context, name)  # type: ignore[attr-defined]


def _command(command: Any, parent: Any, name: str) -> Iterator[str]:  # noqa: ANN401 - typer's own types are private
    context = type(parent)(command, parent=parent, info_name=name, resilient_parsing=True)  # with all options
    inner = command.list_commands(context) if hasattr(command, "list_commands") else ()
    yield f"{'##' if parent.parent is None else '###'} {context.command_path}\n"
    yield inspect.cleandoc(command.help) + "\n"
    if not inner:
        yield f"    {' '.join(command.get_usage(context).removeprefix('Usage: ').split())}\n"
        records = [param.get_help_record(context) for param in command.params]
        rows = [(f"`{option}`", " ".join(meaning.split())) for option, meaning in filter(None, records)]
        path = context.command_path
        yield _table(("option", "meaning"), [(option, _once(option, meaning, path)) for option, meaning in rows])
        if kind := getattr(command.callback, "options", None):
            yield from _keys(kind)
    for other in inner:
        yield from _command(command.get_command(context, other), context, other)


_MEANINGS: dict[str, str] = {}
_SHORT = 30  # characters of a meaning that is written again


def _once(option: str, meaning: str, path: str) -> str:
    """Return what an option means, or the command at which the page has said so."""
    if len(meaning) < _SHORT or path == _MEANINGS.setdefault(option + meaning, path):
        return meaning
    return f"as of `{_MEANINGS[option + meaning]}`"


def _keys(kind: type[Options]) -> Iterator[str]:
    """List the keys of a command that its line has not, with their variables."""
    table = kind.command.replace(" ", "-")
    rows = []
    for item, described in options_of(kind):
        if not is_on_line(kind, item):
            type_name, default, meaning = _of_option(kind, item, described)
            rows.append((f"`{item.name}`", type_name, default, _once(item.name, meaning, f"serfer {kind.command}")))
    if rows:
        first = f"SERFER_{table.replace('-', '_').upper()}_{rows[0][0].strip('`').upper()}"
        yield f"Keys of `[{table}]` in `serfer.toml`, of variables (`{first}`) and of `--set`, as its options are:\n"
        yield _table(("key", "type", "default", "meaning"), rows)


def _of_option(kind: type[Options], item: Field[Any], described: Option) -> tuple[str, str, str]:
    """Return the type, the default and the meaning of an option."""
    default = described.shown or ("" if item.default in (None, (), MISSING) else f"`{item.default}`")
    return in_words(types_of(kind)[item.name]), default, described.help


def settings(described: type[BaseSettings] = Settings) -> Iterator[str]:
    """List the fields of settings with type, bounds, unit, default and meaning."""
    rows, meanings = [], _attribute_docstrings(described)
    options = _options_of_settings() if described is Settings else {}
    for name, field in described.model_fields.items():
        bounds = (
            f"{sign} {getattr(item, key):,}"
            for item in field.metadata
            for key, sign in _BOUNDS.items()
            if hasattr(item, key)
        )
        default = str(field.get_default(call_default_factory=True)).replace(str(Path.home()), "~")
        default = "" if default in ("None", "", "()") else f"`{default}`"
        unit = _UNITS.get(name.rpartition("_")[2], "")
        rows.append(
            (
                f"`{field.validation_alias or f'SERFER_{name.upper()}'}`",
                options.get(name, ""),
                f"{_type(field.annotation)} {', '.join(bounds)}",
                unit,
                default,
                meanings[name],
            )
        )
    yield _table(("variable", "option", "type", "unit", "default", "meaning"), rows)


def _options_of_settings() -> dict[str, str]:
    """Return the option that stands for each setting, with the commands that have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, command in _leaves():
        for param in command.params:
            if name := setting_of(param):
                found.setdefault(name, {}).setdefault(param.opts[0], []).append(path)
    return {
        name: "; ".join(f"`{option}` of {_listed(paths)}" for option, paths in options.items())
        for name, options in found.items()
    }


def _leaves() -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its words."""
    root = typer.main.get_command(app)
    context = root.make_context("serfer", [], resilient_parsing=True)

    def below(command: Any, parent: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own types are private
        if not hasattr(command, "list_commands"):
            yield path, command
            return
        inner = type(parent)(command, parent=parent, info_name=path, resilient_parsing=True)
        for name in command.list_commands(inner):
            yield from below(command.get_command(inner, name), inner, f"{path} {name}")

    for name in COMMANDS:
        yield from below(root.get_command(context, name), context, name)  # type: ignore[attr-defined]


def _listed(paths: Sequence[str]) -> str:
    """Return commands, several of a group together, such as `app`."""
    groups = Counter(path.split()[0] for path in paths)
    return ", ".join(dict.fromkeys(path.split()[0] if groups[path.split()[0]] >= _SEVERAL else path for path in paths))


def problem_types() -> Iterator[str]:
    """List the types of problem details."""
    rows = [(f"`urn:serfer:problem:{slug}`", str(status), meaning) for slug, (status, meaning) in PROBLEM_TYPES.items()]
    yield _table(("type", "status", "meaning"), rows)


def errors() -> Iterator[str]:
    """List every error that `serfer` exports with its bases, exit code and HTTP status."""
    rows = []
    for name in serfer.__all__:
        error = getattr(serfer, name)
        if isinstance(error, type) and issubclass(error, SerferError):
            instance = error("", retry_after_s=1.0) if issubclass(error, OverloadedError) else error("")
            bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
            status = "" if issubclass(error, ServiceError) else str(problem_of(instance).status)  # a client's own
            rows.append((f"`{name}`", bases, str(error.exit_code), status, " ".join((error.__doc__ or "").split())))
    yield _table(("error", "is a", "exit code", "HTTP status", "meaning"), rows)


def metrics() -> Iterator[str]:
    """List every metric with its type and labels."""
    admission = SimpleNamespace(turns=SimpleNamespace(waiting=0, running=0), rate=0.0)
    status = Status(types={Purchase(""): TypeStatus()})
    counts = Counter[Any]()
    pool = SimpleNamespace(serving=0, router=SimpleNamespace(counts=counts), faults=dict.fromkeys(FaultKind, 0))
    pool.serving_by_type = counts
    controller: Any = SimpleNamespace(
        status=status, changes=counts, troubles=counts, decider=SimpleNamespace(troubles=counts)
    )
    service: Any = SimpleNamespace(admission=admission, draining=False)
    running: Any = SimpleNamespace(pool=pool, controller=controller)
    load = EngineSignals(0, 0, 0, 0, 0.0, 1.0, 1, 0.0, 0.0)
    state = ModelState("loaded", 0, 0, None, 0, 0, 0.0, "", load)
    repository: Any = SimpleNamespace(states=lambda: {"": state}, state=lambda: InstanceState("", 0, 0, 0.0))
    served = SimpleNamespace(scaled=None, variants={"": SimpleNamespace(place=Place.INSTANCE)})
    copies = SimpleNamespace(changes=counts)
    fleet: Any = SimpleNamespace(
        served={"": served}, counts={("", ""): 0}, leads=False, changes=counts, copies=copies, troubles=counts
    )
    warmth: Any = SimpleNamespace(status=WarmStatus(), pings=0, troubles=Counter())
    made = Metrics({"": ""})
    sources = (
        *made.registry._collector_to_names,  # noqa: SLF001 - collectors, which know their labels
        *(
            ServiceMetrics(made, service),
            PoolMetrics(running),
            KeepWarmMetrics({"": warmth}),
            InstanceMetrics(repository),
            VariantMetrics(fleet, lambda _application, _variant: 0),
        ),
    )
    rows = []
    for source in sources:
        for metric in source.collect():
            labels = getattr(source, "_labelnames", ()) or dict.fromkeys(
                name for sample in metric.samples for name in sample.labels
            )
            name = metric.name + "_total" * (metric.type == "counter")
            shown = ", ".join(f"`{label}`" for label in labels if label != "le")
            rows.append((f"`{name}`", metric.type, shown, metric.documentation))
    yield _table(("metric", "type", "labels", "meaning"), rows)


def python_api() -> Iterator[str]:
    """Describe every name that `serfer` exports, errors apart, and the records that they return."""
    public = {name: getattr(serfer, name) for name in serfer.__all__}
    for name, value in public.items():
        if inspect.isfunction(value):
            yield f"## serfer.{name}\n"
            yield from _callable(f"serfer.{name}", value)
    for name, value in public.items():
        if isinstance(value, type) and not issubclass(value, Exception):
            yield from _class(name, value)


def transitions(table: Mapping[Any, Mapping[Any, Any]]) -> Iterator[str]:
    """List the transitions of the run machine's tiles or gangs."""
    rows = [
        (f"`{state.name}`", change.value, f"`{then.name}`")
        for state, changes in table.items()
        for change, then in changes.items()
    ]
    yield _table(("state", "event", "next state"), rows)


def records() -> Iterator[str]:
    """List the architecture decision records."""
    rows = []
    for path in sorted((DOCS / "adr").glob("0*.md")):
        text = path.read_text(encoding="utf-8")
        number, title = text.splitlines()[0].removeprefix("# ").split(". ", 1)
        found = re.search(r"^Date: (\S+)\. Status: ((?:.+\n)+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{path} lacks its line 'Date: YYYY-MM-DD. Status: ...'")
        rows.append((f"[{number}]({path.name})", title, found[1], " ".join(found[2].split()).removesuffix(".")))
    yield _table(("", "decision", "date", "status"), rows)


def _class(name: str, described: type) -> Iterator[str]:
    yield f"## serfer.{name}\n"
    made_by_user = "__init__" in vars(described) and not is_dataclass(described)
    if made_by_user and name not in _MADE_BY_SERFER:
        yield f"```python\n{_signature(f'serfer.{name}', described)}\n```\n"
    yield _docstring(described) + "\n"
    if is_dataclass(described):
        if issubclass(described, Options):
            own = [(f"`{item.name}`", *_of_option(described, item, about)) for item, about in options_of(described)]
            yield _table(("field", "type", "default", "meaning"), own)
        else:
            shown = [item for item in fields(described) if not item.name.startswith("_")]
            yield _table(("field", "type"), [(f"`{item.name}`", f"`{item.type}`") for item in shown])
    chosen = _PUBLIC.get(name) or [member for member in vars(described) if not member.startswith("_")]
    for member in chosen:
        value = inspect.getattr_static(described, member)
        if isinstance(value, property):
            yield f"### {name}.{member}\n\n{_docstring(value)}\n"
        elif isinstance(value, types.FunctionType | classmethod):
            yield f"### {name}.{member}\n"
            yield from _callable(f"{name}.{member}", getattr(described, member))


def _callable(name: str, described: Callable[..., Any]) -> Iterator[str]:
    prefix = "async " if inspect.iscoroutinefunction(described) else ""
    yield f"```python\n{prefix}{_signature(name, described)}\n```\n"
    yield _docstring(described) + "\n"


def _docstring(described: Any) -> str:  # noqa: ANN401 - what has one
    """Return a docstring as Markdown, its parameters and errors as a list."""
    text = re.sub(r"^(Args|Raises):\n", r"\1:\n\n", inspect.getdoc(described) or "", flags=re.MULTILINE)
    return re.sub(r"^ {8}", "  ", re.sub(r"^ {4}(\w+): ", r"- `\1`: ", text, flags=re.MULTILINE), flags=re.MULTILINE)


def _signature(name: str, described: Callable[..., Any]) -> str:
    """Write a call with its parameters, one a line where they are many; parameters of tests are left out."""
    signature = inspect.signature(described)
    kept = [value for value in signature.parameters.values() if value.name not in _INTERNAL]
    whole = str(signature.replace(parameters=kept))
    whole = re.sub(r"(: |-> )'([^']*)'", r"\1\2", whole).removesuffix(" -> None")
    if len(name + whole) <= _WIDE:
        return name + whole
    inside, _, returned = whole[1:].rpartition(")")
    parts = re.split(r", (?=\*|\w+: )", inside)
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _attribute_docstrings(described: type) -> dict[str, str]:
    """Return the strings that stand below the fields of a class, by field."""
    described_class: Any = ast.parse(inspect.getsource(described)).body[0]
    pairs: Any = pairwise(described_class.body)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _type(annotation: Any) -> str:  # noqa: ANN401 - what an annotation may be
    """Name a setting's type for a reader."""
    names = {"Path": "path", "str": "text", "int": "integer", "float": "number", "SecretStr": "secret", "NoneType": ""}
    if isinstance(annotation, types.UnionType):
        return "".join(_type(part) for part in annotation.__args__)
    return names.get(getattr(annotation, "__name__", ""), "names")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.strip().replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def operators() -> Iterator[str]:
    """List the operators that the splitter has rules for, from their registry."""
    kinds = {**tiled_kinds(), **unsplit_kinds()}
    yield _table(("how", "operators"), ((how, ", ".join(names)) for how, names in kinds.items()))


PARTS: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "reference/commands.md": {"commands": commands},
    "reference/settings.md": {"settings": settings, "driver variables": partial(settings, DriverSettings)},
    "reference/api.md": {"problem types": problem_types},
    "reference/networks.md": {"operators": operators},
    "reference/metrics.md": {"metrics": metrics},
    "reference/python.md": {"python": python_api, "errors": errors},
    "explanation/run-machine.md": {
        "transitions": partial(transitions, TRANSITIONS),
        "gang-transitions": partial(transitions, GANG_TRANSITIONS),
    },
    "adr/index.md": {"records": records},
}


def regenerated(page: str) -> str:
    """Return the text of a page with its generated parts written again."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, part in PARTS[page].items():
        begin, end = f"<!-- {name} begin: written by docs/generate.py -->\n", f"<!-- {name} end -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} has no part {name}: {begin}{end}")
        text = before + begin + "\n" + "\n".join(part()) + "\n" + end + after
    return text


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(regenerated(page), encoding="utf-8")
