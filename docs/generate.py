"""Write the generated parts of reference pages from the code: `.venv/bin/python docs/generate.py`.

A part stands between two comments in its page; tests/test_docs.py fails where a page differs from what this writes.
`docs/generate.py --built DIR` writes what `make docs` adds to two of these pages, which no commit has.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

import typer
from pydantic_settings import BaseSettings

import serfer
from serfer.api.http.problems import PROBLEM_TYPES, problem_of
from serfer.api.observability.metrics import Metrics, ServiceMetrics
from serfer.api.observability.pool_metrics import InstanceMetrics, KeepWarmMetrics, PoolMetrics, VariantMetrics
from serfer.cli.main import COMMANDS, app
from serfer.core.errors import OverloadedError, SerferError, ServiceError
from serfer.core.http_messages import EngineSignals, InstanceState, ModelState
from serfer.core.options import Option, Options, flag_of, in_words, is_on_line, options_of
from serfer.core.run_machine import GANG_TRANSITIONS, TRANSITIONS
from serfer.core.variants import Place
from serfer.drivers.instance.client import FaultKind
from serfer.fleet.controller import Status, TypeStatus
from serfer.fleet.keep_warm import WarmStatus
from serfer.fleet.purchase import Purchase
from serfer.settings import DriverSettings, Settings
from serfer.splitter.network.unsupported import NEVER, REASONS
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
    """Describe every command: its options with their defaults and a sentence, those that several have only once."""
    found = [command for command in _commands() if not _is_of_bench(command)]
    yield from _options_of_commands(found, "Options of several commands")
    yield "## Commands of the bench distribution\n"
    yield "`make docs` adds their options, as `--help` shows them.\n"
    paths: dict[str, list[str]] = {}
    for command in _commands():
        if _is_of_bench(command) and command.options:
            paths.setdefault(command.meaning, []).append(command.path)
    for meaning, (first, *others) in paths.items():
        shown = [first, *(path.removeprefix(path.partition(" --")[0]).strip() for path in others)]
        yield f"- {', '.join(f'`{name}`' for name in shown)}: {meaning}"
    yield ""


def commands_of_bench() -> Iterator[str]:
    """Describe the commands of the bench distribution."""
    found = [command for command in _commands() if _is_of_bench(command)]
    yield from _options_of_commands(found, "Options of several of them")


def _options_of_commands(found: Sequence[_Command], head: str) -> Iterator[str]:
    common = _common([option for command in found for option in command.options])
    yield f"## {head}\n"
    yield "A command that has one of these names it after its own, with its default where that is another.\n"
    yield _table(_HEAD, [(option.names, option.default, option.meaning) for option in common.values()])
    seen: dict[tuple[Any, ...], str] = {}
    for path, text, options in found:
        yield f"{'##' if path.count(' ') == 1 else '###'} {path}\n"
        yield text + "\n"
        if (first := seen.setdefault(tuple(options), path)) != path and len(options) > _SEVERAL:
            yield f"Options: as of `{first}`.\n"
            continue
        own = [option for option in options if not (same := common.get(option.name)) or same.meaning != option.meaning]
        shared = [option for option in options if option not in own]
        if rows := [(option.names, option.default, option.meaning) for option in own if not option.is_key]:
            yield _table(_HEAD, rows)
        if names := [_with_default(option, common) for option in shared if not option.is_key]:
            yield f"{'Also' if rows else 'Options'}: {', '.join(names)}.\n"
        if any(option.is_key for option in options):
            yield "Keys of its table in `serfer.toml`:\n"
            keys = [option for option in own if option.is_key]
            yield "".join(f"- {key.names}{key.default and f' ({key.default})'}: {key.meaning}\n" for key in keys)
            if names := [_with_default(option, common) for option in shared if option.is_key]:
                yield f"{'Also' if keys else 'As the options'}: {', '.join(names)}.\n"


class _Described(NamedTuple):
    """An option of a command's line, or a key of its table in serfer.toml, as the page has it."""

    name: str
    names: str
    default: str
    meaning: str
    is_key: bool = False


class _Command(NamedTuple):
    path: str
    meaning: str
    options: tuple[_Described, ...]


_HEAD = ("option", "default", "meaning")
_BENCH = ("study", "bench")


def _commands() -> list[_Command]:
    return [
        _Command(context.command_path, _sentence(inspect.cleandoc(command.help)), tuple(_described(command, context)))
        for command, context in walk()
    ]


def _is_of_bench(command: _Command) -> bool:
    return command.path.split()[1] in _BENCH


def _common(options: Iterable[_Described]) -> dict[str, _Described]:
    """Return the meaning of each name that most commands give it, where several do."""
    meanings: dict[str, Counter[str]] = {}
    for option in options:
        meanings.setdefault(option.name, Counter())[option.meaning] += 1
    common = {}
    for name, counts in meanings.items():
        meaning, count = counts.most_common(1)[0]
        if count > 1 and meaning:
            same = [option for option in options if (option.name, option.meaning) == (name, meaning)]
            default = Counter(option.default for option in same).most_common(1)[0][0]
            common[name] = min(same, key=lambda option: option.is_key)._replace(default=default)
    return dict(sorted(common.items(), key=lambda item: item[1].names.strip("`-[").lower()))


def _with_default(option: _Described, common: Mapping[str, _Described]) -> str:
    shown = option.names.partition(" ")[0].strip("`")
    usual = common[option.name].default
    return f"`{shown}`" if option.default in (usual, "") else f"`{shown}` ({option.default})"


def walk() -> Iterator[tuple[Any, Any]]:
    """Yield every command, groups before theirs, with its context."""
    root = typer.main.get_command(app)
    context = root.make_context("serfer", [], resilient_parsing=True)

    def below(command: Any, parent: Any, name: str) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - typer's own types are private
        inner = type(parent)(command, parent=parent, info_name=name, resilient_parsing=True)  # with all options
        yield command, inner
        for other in command.list_commands(inner) if hasattr(command, "list_commands") else ():
            yield from below(command.get_command(inner, other), inner, other)

    for name in COMMANDS:
        yield from below(root.get_command(context, name), context, name)  # type: ignore[attr-defined]


_DEFAULT = re.compile(r"\[(?:default: ([^\]]*)|(required))\]")
_BOUNDS_SHOWN = re.compile(r"\[([^\]]*<=?x\b[^\]]*|x[<>]=?[^\]]*)\]")
_IN_BRACKETS = re.compile(rf"\s*(?:\[SERFER_\w+\]|{_DEFAULT.pattern}|{_BOUNDS_SHOWN.pattern})")


def _described(command: Any, context: Any) -> Iterator[_Described]:  # noqa: ANN401 - typer's own types are private
    if hasattr(command, "list_commands"):
        return
    for param in command.params:
        if (record := param.get_help_record(context)) is None:
            continue
        names, text = re.sub(r" <[^>]*>", "", record[0]), " ".join(record[1].split())
        found = [found[1] or found[2] for found in _DEFAULT.finditer(text)]
        found += [found[1] for found in _BOUNDS_SHOWN.finditer(_DEFAULT.sub("", text))]
        default = "; ".join(found).strip("()").replace(f"<={2**63 - 1}", "")
        yield _Described(str(param.name), f"`{names}`", default, _sentence(_IN_BRACKETS.sub("", text)))
    if kind := getattr(command.callback, "options", None):
        for item, described in options_of(kind):
            if not is_on_line(kind, item):
                _, default, meaning = _of_option(kind, item, described)
                default = "" if default == "`False`" else default.strip("`()")
                yield _Described(item.name, f"`{item.name}`", default, _sentence(meaning), is_key=True)


def _sentence(text: str) -> str:
    """Return the first sentence of a help text."""
    first = re.split(r"(?<=[.])\s+(?=[A-Z`])|\n\n", text, maxsplit=1)[0]
    return " ".join(first.split()).rstrip(":")


def _of_option(kind: type[Options], item: Field[Any], described: Option) -> tuple[str, str, str]:
    """Return the type, the default and the meaning of an option."""
    default = described.shown or ("" if item.default in (None, (), MISSING) else f"`{item.default}`")
    return in_words(get_type_hints(kind)[item.name]), default, described.help


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
                " ".join(f"{_type(field.annotation)} {', '.join(bounds)} {unit}".split()),
                default,
                meanings[name],
            )
        )
    yield _table(("variable", "option", "type", "default", "meaning"), rows)


def _options_of_settings() -> dict[str, str]:
    """Return the options that stand for each setting."""
    found: dict[str, dict[str, None]] = {}
    for command, _ in walk():
        kind = getattr(command.callback, "options", None)
        for item, described in options_of(kind) if kind else ():
            if described.setting and is_on_line(kind, item):
                found.setdefault(described.setting, {})[f"`{flag_of(item, described)}`"] = None
    return {name: ", ".join(options) for name, options in found.items()}


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
            rows.append((f"`{name}`", bases, str(error.exit_code), status, _sentence(error.__doc__ or "")))
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
    service: Any = SimpleNamespace(admission=admission, draining=False, restarts=0)
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


def names() -> Iterator[str]:
    """List every name that `serfer` exports, errors apart, with a sentence."""
    public = ((name, getattr(serfer, name)) for name in sorted(serfer.__all__, key=str.lower) if name[0] != "_")
    described = ((name, value) for name, value in public if callable(value) and not _is_error(value))
    yield "".join(f"- `{name}`: {_sentence(inspect.getdoc(value) or '')}\n" for name, value in described)


def _is_error(value: Any) -> bool:  # noqa: ANN401 - what `serfer` exports
    return isinstance(value, type) and issubclass(value, Exception)


def python_api() -> Iterator[str]:
    """Describe every name that `serfer` exports, errors apart, and the records that they return."""
    public = {name: getattr(serfer, name) for name in serfer.__all__}
    for name, value in public.items():
        if inspect.isfunction(value):
            yield f"## serfer.{name}\n"
            yield from _callable(f"serfer.{name}", value)
    for name, value in public.items():
        if isinstance(value, type) and not _is_error(value):
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
        found = re.search(r"^Date: \S+\. Status: ((?:.+\n)+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{path} lacks its line 'Date: YYYY-MM-DD. Status: ...'")
        status = " ".join(found[1].split()).removeprefix("accepted").strip(".,; ")
        rows.append(f"- [{number}]({path.name}): {title}{status and f' ({status})'}")
    yield "\n".join(rows) + "\n"


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
    names |= {"bool": "0 or 1", "Literal": "word"}
    if isinstance(annotation, types.UnionType):
        return "".join(_type(part) for part in annotation.__args__)
    return names.get(getattr(annotation, "__name__", ""), "names")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.strip().replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def operators() -> Iterator[str]:
    """List the operators that the splitter has rules for, from their registry."""
    unsplit = {
        f"{'refused' if why in NEVER else 'in one task, as given'}: {why}": tuple(sorted(kinds))
        for kinds, why in REASONS.items()
    }
    kinds = {**tiled_kinds(), **unsplit}
    yield _table(("how", "operators"), ((how, ", ".join(names)) for how, names in kinds.items()))


PARTS: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "reference/commands.md": {"commands": commands},
    "reference/settings.md": {"settings": settings, "driver variables": partial(settings, DriverSettings)},
    "reference/api.md": {"problem types": problem_types},
    "reference/networks.md": {"operators": operators},
    "reference/metrics.md": {"metrics": metrics},
    "reference/python.md": {"names": names, "errors": errors},
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
    if sys.argv[1:2] == ["--built"]:
        for name, part in {"python": python_api, "commands": commands_of_bench}.items():
            (Path(sys.argv[2]) / f"{name}.txt").write_text("\n".join(part()), encoding="utf-8")
    else:
        for page in PARTS:
            (DOCS / page).write_text(regenerated(page), encoding="utf-8")
