"""Make the blocking client from the asyncio one: `.venv/bin/python tests/client/unasync.py`.

Words are replaced, line by line, as httpcore's scripts/unasync.py does; tests/client/test_unasync.py compares the two.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "serfer" / "client"
RUFF = Path(sys.executable).with_name("ruff")
SOURCES = ("async_session.py", "async_client.py")
WORDS = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"await asyncio\.to_thread\((\w+), ", r"\1("),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"AsyncWire\(http, sleep\)", "Wire(http, sleep, conversation.clock.monotonic)"),  # it looks at the time itself
        (r"\bAsync(?=[A-Z])", ""),
        (r"\basync_(?=\w)", "sync_"),
        (r"__a(enter|exit)__", r"__\1__"),
        (r"\baclose\b", "close"),
        (r"\bAwaitable, ", ""),
        (r"Awaitable\[None\]", "None"),
        (r"\basyncio\.sleep\b", "time.sleep"),
        (r"^import asyncio$", "import time"),
        (r"for asyncio; tasks of one event loop may", "whose calls wait for their answers; threads may"),
        (r"\basyncio client\b", "blocking client"),
    )
]


def blocking(source: Path) -> str:
    """Return the blocking twin of a module."""
    lines = [f"# Made from {source.name} by tests/client/unasync.py: change that file, and run that script.\n"]
    for line in source.read_text().splitlines(keepends=True):
        for pattern, word in WORDS:
            line = pattern.sub(word, line)  # noqa: PLW2901
        lines.append(line)
    text = "".join(lines)
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        named = [RUFF, *command, "--stdin-filename", twin(source), "-"]
        text = subprocess.run(named, input=text, capture_output=True, text=True, check=True).stdout
    return text


def twin(source: Path) -> Path:
    """Return where it is kept."""
    return source.with_name(source.name.replace("async_", "sync_"))


if __name__ == "__main__":
    for source in SOURCES:
        twin(CLIENT / source).write_text(blocking(CLIENT / source))
