"""What a person says a node has returned is read as what the node returns, wherever its code is at hand."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli, read_until

FLOW = """
import time
from dataclasses import dataclass
from decimal import Decimal
from perdure import Outputs, node, unless, when, workflow

@dataclass
class Receipt:
    number: int
    total: Decimal
    def __bool__(self) -> bool:
        return self.number > 0

class Both(Outputs):
    receipt: Receipt
    note: str

@node(once=True)
def pay() -> Receipt:
    time.sleep(60)
    raise AssertionError

@node(once=True)
def pay_twice() -> Both:
    time.sleep(60)
    raise AssertionError

@node
def shown(receipt: Receipt) -> str:
    return f"{type(receipt).__name__} {receipt.total}"

@node
def bare(receipt) -> str:
    return f"{type(receipt).__name__} {receipt!r}"

@node
def noted(note: str) -> str:
    return note

@workflow
def buy() -> dict:
    receipt = pay()
    with when(receipt):
        paid = shown(receipt)
    with unless(receipt):
        unpaid = shown.named("unpaid")(receipt)
    return {"paid": paid, "unpaid": unpaid}

@workflow
def buy_bare() -> str:
    return bare(pay())

@workflow
def buy_twice() -> dict:
    both = pay_twice()
    return {"shown": shown(both.receipt), "note": noted(both.note)}
"""


def in_doubt(cli: Cli, flow: str, node: str, text: str = FLOW) -> None:
    """Leave run `r1` of a workflow with a node in doubt."""
    cli.write("flow.py", text)
    process = cli.start("run", f"flow.py:{flow}", "--run-id", "r1")
    read_until(process, f"{node} started")
    process.kill()
    process.wait(timeout=30)
    assert cli("resume", "r1").returncode == 3


@pytest.mark.slow
@pytest.mark.parametrize(("number", "side"), [(17, "paid"), (0, "unpaid")])
def test_an_output_is_what_the_node_returns(cli: Cli, number: int, side: str):
    in_doubt(cli, "buy", "pay")

    said = cli("resolve", "r1", "pay", "done", "--output", f'{{"number": {number}, "total": "1.50"}}')

    assert (said.returncode, said.stderr) == (0, "")
    assert cli("resume", "r1").returncode == 0
    outputs = cli.json("show", "r1")["outputs"]
    assert outputs == {"paid": None, "unpaid": None} | {side: "Receipt 1.50"}


@pytest.mark.slow
def test_an_output_that_does_not_fit_is_refused_and_may_be_corrected(cli: Cli):
    in_doubt(cli, "buy", "pay")

    wrong = cli("resolve", "r1", "pay", "done", "--output", '{"number": "many"}')

    assert wrong.returncode == 2
    assert "--output is not what node pay returns" in wrong.stderr
    assert "Receipt" in wrong.stderr
    assert cli("resolve", "r1", "pay", "done", "--output", '{"number": 1, "total": "2"}').returncode == 0


@pytest.mark.slow
def test_nothing_is_refused_where_the_node_returns_something(cli: Cli):
    in_doubt(cli, "buy", "pay")

    left_out = cli("resolve", "r1", "pay", "done")
    null = cli("resolve", "r1", "pay", "done", "--output", "null")

    assert (left_out.returncode, null.returncode) == (2, 2)
    assert "--output is missing: node pay returns Receipt." in left_out.stderr
    assert "--output is not what node pay returns" in null.stderr
    assert cli.json("show", "r1")["status"] == "suspended"
    assert cli("resolve", "r1", "pay", "retry").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("returned", ["None", "Receipt | None", "Any", "list | None"])
def test_nothing_is_taken_where_the_node_may_return_it(cli: Cli, returned: str):
    changed = FLOW.replace("def pay() -> Receipt:", f"def pay() -> {returned}:").replace(
        "dataclass\n", "dataclass\nfrom typing import Any\n", 1
    )
    in_doubt(cli, "buy_bare", "pay", changed)

    said = cli("resolve", "r1", "pay", "done")

    assert (said.returncode, said.stderr) == (0, "")
    assert "done, with null as its output" in said.stdout
    assert cli("resume", "r1").stdout.endswith("\nNoneType None\n")


@pytest.mark.slow
def test_without_the_code_nothing_is_taken_for_null(cli: Cli):
    in_doubt(cli, "buy_twice", "pay_twice")
    left_out = cli("resolve", "r1", "pay_twice", "done")
    (cli.folder / "flow.py").rename(cli.folder / "elsewhere.py")

    said = cli("resolve", "r1", "pay_twice", "done")

    assert "has outputs with names (receipt, note)" in left_out.stderr
    assert (said.returncode, said.stderr) == (0, "")


def test_without_the_code_an_output_is_plain_json_and_that_is_said(cli: Cli):
    in_doubt(cli, "buy_bare", "pay")
    (cli.folder / "flow.py").rename(cli.folder / "elsewhere.py")

    said = cli("resolve", "r1", "pay", "done", "--output", '{"number": 1}')

    assert said.returncode == 0
    assert "the output is kept as plain JSON" in said.stderr
    (cli.folder / "elsewhere.py").rename(cli.folder / "flow.py")
    assert cli("resume", "r1").stdout.endswith("\ndict {'number': 1}\n")


@pytest.mark.slow
def test_several_outputs_are_given_by_their_names(cli: Cli):
    in_doubt(cli, "buy_twice", "pay_twice")
    both = '{"receipt": {"number": 1, "total": "3"}, "note": "thanks"}'

    unnamed = cli("resolve", "r1", "pay_twice", "done", "--output", "3")
    unknown = cli("resolve", "r1", "pay_twice", "done", "--output", '{"recept": 1}')
    (cli.folder / "flow.py").rename(cli.folder / "elsewhere.py")
    without_code = cli("resolve", "r1", "pay_twice", "done", "--output", both)
    (cli.folder / "elsewhere.py").rename(cli.folder / "flow.py")
    said = cli("resolve", "r1", "pay_twice", "done", "--output", both)

    assert "has outputs with names (receipt, note)" in unnamed.stderr
    assert "no output 'recept': it has receipt, note" in unknown.stderr
    assert "--import" in without_code.stderr
    assert [done.returncode for done in (unnamed, unknown, without_code, said)] == [2, 2, 2, 0]
    assert cli("resume", "r1").returncode == 0
    assert cli.json("show", "r1")["outputs"] == {"shown": "Receipt 3", "note": "thanks"}


@pytest.mark.parametrize("resolution", ["retry", "fail"])
def test_an_output_of_what_is_not_done_is_refused(cli: Cli, resolution: str):
    done = cli("resolve", "r1", "pay", resolution, "--output", "5")

    assert done.returncode == 2
    assert f"--output goes with done: a node that is told '{resolution}' has no output." in done.stderr


@pytest.mark.slow
def test_a_node_that_was_resolved_is_not_listed_as_in_doubt(cli: Cli):
    in_doubt(cli, "buy_bare", "pay")

    first, second = (cli("resolve", "r1", "pay", "retry") for _ in range(2))

    assert (first.returncode, second.returncode) == (0, 2)
    assert "is not in doubt: it was resolved as 'retry' before. In doubt: none." in second.stderr


@pytest.mark.slow
def test_resolving_drives_nothing(cli: Cli):
    in_doubt(cli, "buy_bare", "pay")

    cli("resolve", "r1", "pay", "done", "--output", '{"number": 1, "total": "1"}')

    assert cli.json("show", "r1")["status"] == "suspended"
