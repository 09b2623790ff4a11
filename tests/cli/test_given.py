"""Inputs on the command line and in files: what the annotation says, to the last digit."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli

TYPED = """
import enum
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from perdure import node, workflow

class Colour(enum.Enum):
    RED = "red"

@dataclass
class Job:
    folder: Path
    price: Decimal

@node
def lines(path: Path) -> int:
    return len(path.read_text().splitlines())

@node
def told(price: Decimal, job: Job, folders: list[Path], names: dict[int, str], day: date, colour: Colour) -> str:
    return repr((price, job, folders, names, day, colour))

@workflow
def count(path: Path = Path("flow.py")) -> int:
    return lines(path)

@workflow
def tell(
    price: Decimal,
    job: Job,
    folders: list[Path] = [],
    names: dict[int, str] = {},
    day: date = date(2026, 1, 31),
    colour: Colour = Colour.RED,
) -> str:
    return told(price, job, folders, names, day, colour)
"""


def test_a_path_is_a_path(cli: Cli):
    cli.write("flow.py", TYPED)
    cli.write("two.txt", "a\nb\n")

    assert cli("run", "flow.py:count", "-i", "path=two.txt").stdout.splitlines()[-1] == "2"
    assert int(cli("run", "flow.py:count").stdout.splitlines()[-1]) == TYPED.count("\n")


def test_decimals_keep_every_digit_and_parts_get_their_types(cli: Cli):
    cli.write("flow.py", TYPED)
    job = '{"folder": "/etc", "price": 12345678901234567890.10}'
    inputs = {"price": "0.12345678901234567890123", "job": job, "folders": '["/a"]', "names": '{"1": "x"}'}
    cli.write("in.json", "{" + ", ".join(f'"{name}": {text}' for name, text in inputs.items()) + "}")

    by_option = cli("run", "flow.py:tell", *(word for pair in inputs.items() for word in ("-i", "=".join(pair))))
    by_file = cli("run", "flow.py:tell", "--inputs", "in.json")

    told = by_option.stdout.splitlines()[-1]
    assert told.startswith(
        "(Decimal('0.12345678901234567890123'), "
        "Job(folder=PosixPath('/etc'), price=Decimal('12345678901234567890.10')), [PosixPath('/a')], {1: 'x'}, "
    )
    assert by_file.stdout.splitlines()[-1] == told


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("-i", "price=1"), "'job' is missing (it takes Job). Give 'job' as --input job=VALUE. Nothing was started."),
        (("-i", "price=1", "-i", 'job={"folder": 5, "price": 1}'), "Expected `Path`, got `int` - at `$.folder`"),
        (("-i", "price=much", "-i", 'job={"folder": "a", "price": 1}'), "'price': Invalid decimal string"),
        (("-i", "price=1", "-i", "day=soon"), "date is written 2026-01-31"),
        (("-i", "price=1", "-i", "colour=RED"), "Colour is one of 'red'"),
        (("--inputs", "-"), "standard input is not JSON"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(cli: Cli, given: tuple[str, ...], complaint: str):
    cli.write("flow.py", TYPED)

    done = cli("run", "flow.py:tell", *given, stdin="x")

    assert done.returncode == 2
    assert complaint in done.stderr
    assert not list(cli.folder.glob("perdure.db*"))


def test_the_same_inputs_are_the_same_however_they_are_given(cli: Cli):
    cli.write("flow.py", TYPED)
    job = {"folder": "a", "price": "1.10"}
    cli("run", "flow.py:tell", "--run-id", "r1", "-i", "price=1.10", "-i", f"job={json.dumps(job)}")
    cli.write("in.json", json.dumps({"price": "1.10", "job": job}))

    again = cli("run", "flow.py:tell", "--run-id", "r1", "--inputs", "in.json")

    assert again.returncode == 0, again


PLAIN = """
from perdure import node, workflow

@node
def told(flag: bool, xs: list[str]) -> str:
    return repr((flag, xs))

@workflow
def tell(flag: bool = False, xs: list[str] = []) -> str:
    return told(flag, xs)
"""


@pytest.mark.parametrize(("text", "meant"), [("True", True), ("yes", True), ("NO", False), ("false", False)])
def test_a_truth_value_may_be_said_as_people_do(cli: Cli, text: str, meant: bool):
    cli.write("flow.py", PLAIN)

    assert cli("run", "flow.py", "-i", f"flag={text}").stdout.splitlines()[-1] == f"({meant}, [])"


def test_who_gives_a_text_for_a_list_is_shown_how_a_list_is_written(cli: Cli):
    cli.write("flow.py", PLAIN)

    done = cli("run", "flow.py", "-i", "xs=a")

    assert done.returncode == 2
    assert "Give 'xs' as a JSON list: --input xs='[\"a\"]'." in done.stderr
