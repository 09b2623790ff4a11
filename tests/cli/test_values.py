"""Results as people read them, and in full for programs."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.conftest import PERDURE, Cli

VALUES = """
import numpy as np
import pydantic
from perdure import node, workflow

class Order(pydantic.BaseModel):
    item: str
    note: str = ""

@node
def scalar() -> np.float64:
    return np.float64(150000.0)

@node
def array() -> np.ndarray:
    return np.arange(4).reshape(2, 2)

@node
def raw() -> bytes:
    return b"\\x00hi"

@node
def keyed() -> dict[int, str]:
    return {1: "a"}

@node
def order() -> Order:
    return Order(item="tea")

@node
def numbers() -> list[int]:
    return [1, 2, 3]

@node
def half() -> str:
    return "half \\ud800 of it"

@node
def page() -> str:
    return "line\\n" * 100_000

@node
def image() -> bytes:
    return bytes(range(256)) * 4_000

@workflow
def several():
    return {"s": scalar(), "a": array(), "r": raw(), "k": keyed(), "o": order(), "n": numbers(), "h": half()}

@workflow
def text() -> str:
    return page()

@workflow
def binary() -> bytes:
    return image()
"""


@pytest.mark.slow
def test_values_are_written_as_a_person_would(cli: Cli):
    cli.write("flow.py", VALUES)

    printed = cli("run", "flow.py:several", "--run-id", "r1").stdout

    _, _, result = printed.partition("\na: ")
    assert result.splitlines() == [
        "[[0, 1], [2, 3]]",
        r"h: half \ud800 of it",
        *("k: {", '  "1": "a"', "}"),
        "n: [1, 2, 3]",
        *("o: {", '  "item": "tea",', '  "note": ""', "}"),
        r"r: b'\x00hi'",
        "s: 150000.0",
    ]
    assert 'o = {"item":"tea","note":""}' in cli("show", "r1").stdout


def test_a_large_result_is_named_and_can_be_had_in_full(cli: Cli):
    cli.write("flow.py", VALUES)

    printed = cli("run", "flow.py:text", "--run-id", "r1").stdout.splitlines()

    assert printed[-2].startswith("<")
    assert printed[-1] == "the result in full: perdure show r1 --result"
    assert cli("show", "r1", "--result").stdout == "line\n" * 100_000 + "\n"
    assert cli.json("show", "r1", "--result")["output"] == "line\n" * 100_000


@pytest.mark.slow
def test_bytes_are_printed_as_they_are(cli: Cli):
    cli.write("flow.py", VALUES)
    cli("run", "flow.py:binary", "--run-id", "r1")

    done = subprocess.run([*PERDURE, "show", "r1", "--result"], cwd=cli.folder, capture_output=True, check=True)

    assert done.stdout == bytes(range(256)) * 4_000


@pytest.mark.slow
def test_a_run_without_a_result_says_so(cli: Cli):
    cli.write("flow.py", VALUES.replace("return np.arange", "raise ValueError; return np.arange"))
    cli("run", "flow.py:several", "--run-id", "r1")

    done = cli("show", "r1", "--result")

    assert done.returncode == 2
    assert "has no result: it is failed" in done.stderr
