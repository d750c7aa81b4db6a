"""The commands of docs/tutorial.md work as written."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
STEPS = dict(re.findall(r"^## (\d)\..*?\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))


def block(language, step, number=0):
    return re.findall(rf"```{language}\n(.*?)```", STEPS[step], re.DOTALL)[number]


@pytest.mark.slow
def test_the_tutorial_works_as_it_is_written(serfer_, tmp_path, examples):
    (tmp_path / "shapes.py").write_text(block("python", "1"))
    (tmp_path / "preprocess.toml").write_text(block("toml", "1"))
    (tmp_path / "labels.txt").write_text(block("text", "1"))
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "images").symlink_to(examples)
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", STEPS["2"] + STEPS["3"] + STEPS["5"], re.DOTALL))
    commands = [shlex.split(line) for line in shell.replace("\\\n", " ").splitlines() if line]
    assert len(commands) == 6
    printed = {}
    for serfer, command, *arguments in commands:
        result = serfer_(command, *arguments, MPLCONFIGDIR=str(tmp_path / "matplotlib"))
        assert (serfer, result.code) == ("serfer", 0), result.err
        printed[command] = result.out
    assert (tmp_path / "plan.png").stat().st_size > 0
    assert "2x2" in printed["explain"]
    assert re.search(r"circle|square|triangle", printed["classify"])
    assert "same first class" in printed["classify"]
    assert "$" in printed["cost"]
