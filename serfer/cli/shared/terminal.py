"""Terminal output of commands, and every way in which the program can end."""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from serfer.core.errors import MissingExtraError, PlanWarning, SerferError, UnavailableError, UsageError
from serfer.core.options import Options, flag_of, is_on_line, options_of
from serfer.extras import missing_extra, pip_command

_Misuse: Any = typer.BadParameter.__mro__[-4]  # the base of typer's errors, click's in earlier versions
_ENDED: Mapping[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_BUG = os.EX_SOFTWARE
_MOST_OF_A_BUG = 300  # characters of a bug's own message
_DEBUG = "--debug"
_HOME = Path(__file__).resolve().parents[3]  # of our packages
_PACKAGES = ("serfer", "serfer_bench")
ORIGINS = "serfer.origins"
"""The key of a context's meta under which stands, by option, where its value is from, or that it is a key."""
_OPTION = re.compile(r"--[a-z][a-z-]*|(?<!--set )\b(?:[a-z]+(?:_[a-z]+)+\b|[a-z]+(?==))")
"""An option, or a key, alone or before its value."""
_FILE_WIDTH = 160  # columns for tables that go to a file or a pipe


class _Output(Console):
    """A console that leaves a closed pipe to `run`, and breaks a terminal's lines at spaces: no number is cut."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:  # noqa: ANN401 - rich's
        """Print as rich does; `soft_wrap` leaves lines to be copied to the terminal, which breaks them anywhere."""
        if soft_wrap is None and self.is_terminal and all(isinstance(item, str | Text) for item in objects):
            soft_wrap = False
        super().print(*objects, soft_wrap=soft_wrap, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Interrupt:
    """Ctrl-C or SIGTERM, remembered: a module that initialises itself in C may turn the exception into another one.

    Event loops let the exception through, so that workers, store and keys are cleaned up.
    """

    def __init__(self) -> None:
        self.number: int | None = None  # of the first one

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        raise KeyboardInterrupt

    def ended(self) -> int:
        """Say how the command has ended, and return its exit code."""
        number = self.number or signal.SIGINT
        complain(_ENDED[number])
        return 128 + number


_AS_IS: Mapping[str, Any] = {"markup": False, "emoji": False, "highlight": False}  # text is mostly from outside
out = _Output(**_AS_IS, soft_wrap=True, width=None if sys.stdout.isatty() else _FILE_WIDTH)
err = Console(**_AS_IS, stderr=True)


def complain(problem: object) -> None:
    """Print an error in one line, whatever file names and functions put into the message."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", str(problem).strip())
    err.print(f"serfer: {line}", soft_wrap=True)


def ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def uninterrupted() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ignore_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_python_warns = warnings.showwarning


def _warn(message: Warning | str, category: type[Warning], *where: Any) -> None:  # noqa: ANN401 - of Python's own
    """Show a warning of our own as any other message: where it was raised means nothing to the user of a command."""
    if issubclass(category, PlanWarning):
        complain(message)
    else:
        _python_warns(message, category, *where)


def run(app: typer.Typer, *, check: bool = True) -> NoReturn:
    interrupt = _Interrupt()
    signal.signal(signal.SIGTERM, interrupt)
    warnings.showwarning = _warn  # type: ignore[assignment]  # it takes what Python's own does
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, interrupt)
        code = _exit_code(app, sys.argv[1:], interrupt, check=check)
    except KeyboardInterrupt:  # before it began, or once more as it ended
        code = 128 + (interrupt.number or signal.SIGINT)
    ignore_signals()
    _drop_unwritten()
    gc.freeze()  # nothing is left to collect, and to look through all that torch and onnx hold takes a second
    sys.exit(code)


def _check_settings() -> None:
    """Raise UsageError for misspelt settings; where there are no settings, nothing is imported to read them."""
    if any(name.upper().startswith("SERFER_") for name in os.environ):
        from serfer.settings import unknown_settings  # noqa: PLC0415 - the command line starts fast

        if line := unknown_settings():
            raise UsageError(line)


def _drop_unwritten() -> None:
    """Drop output that cannot be written: its reader is gone or has the error; Python would report it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(app: typer.Typer, arguments: list[str], interrupt: _Interrupt, *, check: bool = False) -> int:
    arguments, debug = _without_debug(arguments)
    meta: dict[str, Any] = {}
    try:
        command = typer.main.get_command(app)
        command._main_shell_completion({}, "serfer")  # noqa: SLF001 - typer has no other way in; ends where it was meant
        # Not its main(): that one has exit codes of its own for interrupts and closed pipes.
        if check:
            _check_settings()
        with command.make_context("serfer", arguments) as context:
            meta = context.meta
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return interrupt.ended()
    except Exception as error:  # noqa: BLE001 - a bug, too, ends here
        if interrupt.number:
            return interrupt.ended()
        if debug:
            err.print("".join(traceback.format_exception(error)), end="", soft_wrap=True)
        return _code_of(error, meta.get(ORIGINS, {}))
    return 0


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Take --debug out of the arguments, wherever it stands before `--`: it is every command's."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != _DEBUG]
    return [*options, *arguments[end:]], len(options) < end


def _code_of(error: Exception, origins: Mapping[str, str]) -> int:
    match error:
        case _Misuse():
            return _misused(error)
        case BrokenPipeError():
            return 0  # the reader of the output has closed it
        case SerferError():
            line, code = _with_origins(str(error), origins), error.exit_code
        case OSError():  # a full disk, say
            line, code = _refused(error), UnavailableError.exit_code
        case MemoryError():
            line, code = f"there is not enough memory {error}", UnavailableError.exit_code
        case ModuleNotFoundError() if error.name and pip_command(error.name):
            line, code = str(missing_extra(error.name)), MissingExtraError.exit_code
        case _:
            line, code = _bug(error), _BUG
    complain(line)
    return code


def _with_origins(line: str, origins: Mapping[str, str]) -> str:
    named = {name: f"--{name.replace('_', '-').removeprefix('--')}" for name in _OPTION.findall(line)}
    said = [(name, origins[flag]) for name, flag in named.items() if flag in origins]
    told = [f"{name} is {origin}" for name, origin in said if origin != f"from --set {name}"]
    return f"{line} ({'; '.join(told)})" if told else line


def _refused(error: OSError) -> str:
    why = error.strerror or str(error)
    line = f"{error.filename}: {why}" if error.filename else why
    return f"{line}: free some space, or write elsewhere" if error.errno == errno.ENOSPC else line


def _bug(error: Exception) -> str:
    what = traceback.format_exception_only(error)[-1].strip()[:_MOST_OF_A_BUG]
    return (
        f"a bug in SerFer, {_place(error)}: {what} (to report it, send what the same command prints with {_DEBUG}, and "
        "what serfer doctor prints)"
    )


def _place(error: Exception) -> str:
    frames = [(Path(frame.filename), frame) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [
        (file.relative_to(_HOME), frame)
        for file, frame in frames
        if file.is_relative_to(_HOME) and file.relative_to(_HOME).parts[0] in _PACKAGES
    ]
    file, frame = (ours or frames)[-1]
    return f"{file}:{frame.lineno} in {frame.name}"


def _misused(error: Any) -> int:  # noqa: ANN401 - typer's
    message, context = error.format_message().replace("Value error, ", "", 1), getattr(error, "ctx", None)
    kind = getattr(context and context.command.callback, "options", None)
    flag = getattr(error, "option_name", "")
    if kind and (key := _key_of(kind, flag) or _key_of(kind, flag.replace("--no-", "--", 1))):
        message = f"{message.partition(' (')[0].rstrip('.')}: it is a key, --set {key}=VALUE"
    if "\n" in message:
        err.print(message, soft_wrap=True)
    else:
        complain(f"{message.rstrip('.')} (see {context.command_path if context else 'serfer'} --help)")
    return UsageError.exit_code


def _key_of(kind: type[Options], flag: str) -> str | None:
    keys = (item for item, described in options_of(kind) if flag_of(item, described) == flag)
    return next((item.name for item in keys if not is_on_line(kind, item)), None)
