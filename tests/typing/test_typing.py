"""What users write type-checks, and their mistakes are found, in the strictest modes of both checkers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("tests/typing/good.py", "tests/typing/bad.py")


def expected_lines(name: str) -> set[int]:
    lines = (ROOT / name).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def lines_by_pyright(name: str) -> dict[int, str]:
    done = run([sys.executable, "-m", "pyright", "--outputjson", name])
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {item["range"]["start"]["line"] + 1: item["message"] for item in found if item["severity"] == "error"}


def lines_by_mypy(name: str) -> dict[int, str]:
    done = run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", name])
    pattern = re.compile(rf"{re.escape(name)}:(\d+): error: (.*)")
    return {int(match[1]): match[2] for line in done.stdout.splitlines() if (match := pattern.match(line))}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": "src", "PYTHONPATH": "src"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("check", [lines_by_pyright, lines_by_mypy])
def test_exactly_the_marked_lines_are_wrong(check: Callable[[str], dict[int, str]], name: str):
    found = check(name)

    assert {line: found.get(line) for line in found.keys() ^ expected_lines(name)} == {}


def test_the_good_file_is_also_right_when_it_runs():
    from tests.typing import good

    assert [made.id for made in good.digest.graph.nodes] == ["fetch", "paragraphs", "summarize", "approve", "publish"]
    assert len(good.everything.graph.nodes) == 21
    assert len(good.named_streams.graph.nodes) == 11
    assert [made.id for made in good.translations.graph.nodes] == ["Translator", "Translator_2"]


def test_what_the_docs_say_of_classes_under_mypy_is_in_the_good_file():
    told = (ROOT / "docs/nodes.md").read_text()
    example = told[told.index("class Translator:") : told.index("if __name__", told.index("class Translator:"))]

    assert example.strip() in (ROOT / "tests/typing/good.py").read_text()
