"""Put one-line faults into the product, one at a time, and count those that tests catch.

    .venv/bin/python tests/mutate.py draw --seed 4 --number 100 faults.json    # in a clean checkout
    .venv/bin/python tests/mutate.py run faults.json caught.json               # goes on where it was interrupted

A fault is an operator, a constant or a condition changed in one line. In a later commit, `run` looks for the line where
it stands now, in its file or in the file that it was moved to; a fault whose line does not exist is reported as `gone`,
and `draw --besides faults.json` draws others to replace those. Only the test files nearest to the changed module
by imports run, for at most `--seconds` a fault. Other tests may catch it too, so the count is a lower bound: compare
it only with a count of the same selection. `tests/data/faults.json` has the 100 of seed 4 at commit 5cbe0f9c, where 61
were caught so, on a busy machine.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path.cwd()
PRODUCT = ("serfer", "splitter", "drivers", "lambdas", "storage", "sam")
NEAREST = 10  # test files a fault
SWAPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*",
    ast.FloorDiv: "*", ast.Mod: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One line of a file, as it is and as the fault has it."""

    file: str
    line: int
    before: str
    after: str


def sources():
    files = (file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py"))
    return sorted(file for file in files if not any(parent.is_symlink() for parent in file.parents))


def read(path):
    """Read faults; what was said of them there is left out."""
    return [
        Fault(*(entry[name] for name in ("file", "line", "before", "after"))) for entry in json.loads(path.read_text())
    ]


def faults_of(file):
    text = file.read_text(encoding="utf-8")
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        for line, start, end, new in _edits(node, lines):
            before = lines[line - 1]
            after = _bytes_replaced(before, start, end, new)
            if after != before and _parses(lines, line, after):
                yield Fault(str(file.relative_to(ROOT)), line, before, after)


def _edits(node, lines):
    """Yield (line, first byte, byte after the last, text in its place)."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], node.ops[0], lines)
    elif isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.values[1], node.op, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and node.lineno == node.operand.lineno:
        yield node.lineno, node.col_offset, node.operand.col_offset, ""
    elif isinstance(node, ast.Constant) and node.lineno == node.end_lineno:
        if isinstance(node.value, bool):
            yield node.lineno, node.col_offset, node.end_col_offset, str(not node.value)
        elif isinstance(node.value, int):
            yield node.lineno, node.col_offset, node.end_col_offset, str(node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and node.test.lineno == node.test.end_lineno:
        test = node.test
        text = lines[test.lineno - 1].encode()[test.col_offset : test.end_col_offset].decode()
        yield test.lineno, test.col_offset, test.end_col_offset, f"(not ({text}))"


def _between(left, right, operator, lines):
    """Yield the edit of an operator that stands alone between its operands, on one line."""
    new = SWAPPED.get(type(operator))
    if new is None or left.end_lineno != right.lineno:
        return
    start, end = left.end_col_offset, right.col_offset
    gap = lines[right.lineno - 1].encode()[start:end].decode()
    if not set(gap) & set("()#'\""):
        yield right.lineno, start, end, f" {new} "


def _bytes_replaced(line, start, end, new):
    raw = line.encode()
    return (raw[:start] + new.encode() + raw[end:]).decode()


def _parses(lines, number, after):
    try:
        ast.parse("\n".join([*lines[: number - 1], after, *lines[number:]]))
    except SyntaxError:
        return False
    return True


def draw(seed, number, besides):
    """Draw faults: a file by its lines, then a fault in it; none in a line that occurs twice in the product."""
    chosen = random.Random(seed)  # noqa: S311 - not for secrets
    files = sources()
    weights = [file.read_bytes().count(b"\n") for file in files]
    once = {line for line, count in Counter(_all_lines()).items() if count == 1}
    found, taken = [], {fault.before for fault in besides}
    while len(found) < number:
        file = chosen.choices(files, weights)[0]
        faults = [fault for fault in faults_of(file) if fault.before in once and fault.before not in taken]
        if faults:
            found.append(chosen.choice(faults))
            taken.add(found[-1].before)
    return found


def _all_lines():
    return (line for file in sources() for line in file.read_text(encoding="utf-8").split("\n"))


def place(fault):
    """Return the file and the line's index where the faulty line stands now; None where it is gone."""
    first = [ROOT / fault.file] if (ROOT / fault.file).is_file() else []
    for file in (*first, *sources()):
        lines = file.read_text(encoding="utf-8").split("\n")
        for index, line in enumerate(lines):
            if line.strip() == fault.before.strip():
                return file, index
    return None


@cache
def imported(file):
    """Return the project's files that a file imports, by any statement in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("serfer."):
            names = [node.value.partition(":")[0]]  # what is imported when it is asked for
        found |= {path for name in names if (path := _file_of(name))}
    return found


def _file_of(module):
    path = (ROOT / module.replace(".", "/")).resolve()
    if not path.is_relative_to(ROOT.resolve()):
        return None
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def tests_of(file):
    """Return the test files that are nearest to a file by imports, names and folders."""
    wanted, distances = file.resolve(), []
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        seen, edge, steps = {test}, {test}, 0
        while edge and wanted not in seen and steps < 4:
            edge = {target for source in edge for target in imported(source)} - seen
            seen |= edge
            steps += 1
        if wanted in seen:
            same_name = file.stem in test.stem or test.stem.removeprefix("test_") in file.parts
            same_folders = len(set(test.parent.parts) & set(file.parent.parts))
            distances.append((steps - 2 * same_name - same_folders, str(test.relative_to(ROOT))))
    return [name for _, name in sorted(distances)[:NEAREST]]


def caught(fault, seconds):
    """Return `caught`, `missed` or `gone`, and the test that failed, or else the files that ran."""
    found = place(fault)
    if found is None:
        return "gone", []
    file, index = found
    tests = tests_of(file)
    text = file.read_text(encoding="utf-8")
    lines = text.split("\n")
    indent = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
    lines[index] = indent + fault.after.strip()
    file.write_text("\n".join(lines), encoding="utf-8")
    try:
        failed = _first_failure(tests, seconds) if tests else ""
        return ("caught", [failed]) if failed else ("missed", tests)
    finally:
        file.write_text(text, encoding="utf-8")


def _first_failure(tests, seconds):
    """Return the line of pytest that says what failed; empty where all passed, or none failed in time."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "120", *tests]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return ""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if process.returncode in {0, 5} else (lines or output.splitlines() or ["?"])[-1][:200]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "run"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--besides", type=Path)
    given = parser.parse_args()
    if given.what == "draw":
        besides = read(given.besides) if given.besides else []
        faults = draw(given.seed, given.number, besides)
        given.files[0].write_text(json.dumps([asdict(fault) for fault in faults], indent=1) + "\n")
        return
    faults = read(given.files[0])
    results = json.loads(given.files[1].read_text()) if given.files[1].exists() else []
    for number, fault in enumerate(faults[len(results) :], len(results) + 1):
        outcome, tests = caught(fault, given.seconds)
        results.append({**asdict(fault), "outcome": outcome, "tests": tests})
        given.files[1].write_text(json.dumps(results, indent=1) + "\n")
        print(number, outcome, fault.file, fault.line, flush=True)  # noqa: T201
    print(Counter(entry["outcome"] for entry in results))  # noqa: T201


if __name__ == "__main__":
    main()
