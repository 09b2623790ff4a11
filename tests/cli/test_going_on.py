"""What cannot go on says so and says what can be done; what could go on wrongly warns."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cli.conftest import FAILING, GATED, PERDURE, Cli, read_until
from tests.cli.test_resume import killed_at_the_gate

ONCE = """
import os, time
from perdure import node, workflow

@node(once=True)
def pay(amount: int) -> str:
    while not os.path.exists("open"):
        time.sleep(0.01)
    return "paid"

@workflow
def buy(amount: int) -> str:
    return pay(amount)
"""

PAYING = """
import os, signal
from perdure import node, workflow

@node
def total(amount: int) -> int:
    return amount + 1

@node(once=True)
def pay(amount: int) -> str:
    with open("paid", "a") as ledger:
        ledger.write(f"{amount};")
        ledger.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"

@workflow
def buy(amount: int) -> str:
    return pay(total(amount))
"""

CLOSURES = """
import os, time
from perdure import node, workflow

def build(k):
    @node
    def add(n: int) -> int:
        while not os.path.exists("open"):
            time.sleep(0.01)
        return n + k

    @workflow(name="build")
    def built(n: int) -> int:
        return add(n)

    return built

last = build(5)
"""


def in_doubt(cli: Cli) -> None:
    """Leave run `r1` with a node that must run at most once, and was lost half-way."""
    cli.write("flow.py", ONCE)
    process = cli.start("run", "flow.py", "--run-id", "r1", "-i", "amount=3")
    read_until(process, "pay started")
    process.kill()
    process.wait(timeout=30)
    assert cli("resume", "r1").returncode == 3


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_what_must_run_once_runs_once_however_durable_the_rest_is(cli: Cli, durability: str):
    cli.write("flow.py", PAYING)
    killed = cli("run", "flow.py", "--run-id", "r1", "-i", "amount=3", "--durability", durability)

    again = [cli("resume", "r1").returncode for _ in range(2)]

    assert (killed.returncode, again) == (-signal.SIGKILL, [3, 3])
    assert (cli.folder / "paid").read_text() == "4;"
    assert [(node["id"], node["status"]) for node in cli.json("show", "r1")["nodes"]] == [
        ("total", "completed"),
        ("pay", "in_doubt"),
    ]


@pytest.mark.parametrize("again", [("resume", "r1"), ("run", "flow.py", "--run-id", "r1", "-i", "n=5")])
def test_a_failed_run_says_how_to_go_on_and_how_to_start_again(cli: Cli, again: tuple[str, ...]):
    cli.write("flow.py", FAILING)
    first = cli("run", "flow.py", "--run-id", "r1", "-i", "n=5")

    done = cli(*again)

    command = "perdure run flow.py:failing --input n=5"
    assert done.returncode == 1
    assert done.stdout.endswith(
        "try again what has failed: perdure retry r1\n"
        f"start it again, from the beginning: {command}\n"
        "Run r1 failed before, and is not gone on with unless somebody says so: see above.\n"
    )
    assert command in first.stdout
    assert "before" not in first.stdout
    cli.write("flow.py", FAILING.replace('raise ValueError(f"no {n} today")', "return n"))
    assert cli(*command.split()[1:]).stdout.endswith("\n5\n")


@pytest.mark.slow
def test_a_cancelled_run_says_how_to_go_on(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli("cancel", "r1")

    done = cli("resume", "r1")

    assert done.returncode == 4
    assert "r1 was cancelled before, and is not gone on with" in done.stdout
    assert "go on with it: perdure retry r1\n" in done.stdout
    assert "perdure run flow.py:gated\n" in done.stdout


@pytest.mark.slow
def test_a_command_to_start_again_survives_a_shell(cli: Cli):
    cli.write("flow.py", FAILING.replace("n: int = 7", "n: str").replace("n: int", "n: str"))
    failed = cli("run", "flow.py", "-i", 'n=it\'s "quoted" $HOME')

    command = failed.stdout.rpartition("from the beginning: ")[2].strip().removeprefix("perdure ")
    again = subprocess.run(
        f"{' '.join(PERDURE)} {command}", shell=True, cwd=cli.folder, capture_output=True, text=True, check=False
    )

    assert again.returncode == 1
    assert 'ValueError: no it\'s "quoted" $HOME today' in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["events", "logs"])
def test_following_a_run_that_nobody_drives_says_so_and_waits(cli: Cli, command: str):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)

    following = cli.start(command, "r1", "--follow")
    assert following.stderr is not None
    said = [following.stderr.readline() for _ in range(2)]
    assert following.poll() is None
    cli.write("open", "")
    cli("resume", "r1")
    following.communicate(timeout=30)

    assert said == [
        "perdure: waiting for run r1, but no engine drives it\n",
        "perdure: continue: perdure resume r1\n",
    ]
    assert following.returncode == 0


@pytest.mark.slow
def test_following_a_run_that_is_driven_says_nothing(cli: Cli):
    cli.write("flow.py", GATED)
    running = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(running, "gate started")

    following = cli.start("events", "r1", "--follow")
    read_until(following, "gate started")
    cli.write("open", "")

    assert following.communicate(timeout=30)[1] == ""


@pytest.mark.slow
def test_interrupted_runs_can_be_listed(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("open", "")
    cli("run", "flow.py", "--run-id", "r2")

    assert [run["run_id"] for run in cli.json("list", "--status", "interrupted")] == ["r1"]
    assert len(cli.json("list", "--status", "interrupted", "--status", "completed")) == 2
    cli("resume", "r1")
    assert cli("list", "--status", "interrupted").stdout == "No runs.\n"


@pytest.mark.slow
def test_the_first_word_about_a_node_in_doubt_counts(cli: Cli):
    in_doubt(cli)

    first = cli("resolve", "r1", "pay", "done", "--output", '"paid"')
    other = cli("resolve", "r1", "pay", "retry")

    assert "pay of run r1: done. `perdure resume r1` goes on." in first.stdout
    assert other.returncode == 2
    assert "it was resolved as 'done' before" in other.stderr
    assert cli.json("resolve", "r1", "pay", "retry")["error"]["code"] == "not_in_doubt"
    assert cli("resume", "r1").returncode == 0


@pytest.mark.slow
def test_what_to_do_about_a_node_in_doubt_is_said_in_full(cli: Cli):
    in_doubt(cli)

    shown = cli("show", "r1").stdout
    unquoted = cli("resolve", "r1", "pay", "done", "--output", "paid")
    quoted = cli("resolve", "r1", "pay", "done", "--output", '"paid"')

    assert "perdure resolve r1 pay done --output JSON (or retry, or fail)" in shown
    assert """quote it: --output '"paid"'""" in unquoted.stderr
    assert quoted.returncode == 0
    assert cli("resume", "r1").stdout.endswith("\npaid\n")


@pytest.mark.slow
def test_a_renamed_node_is_named_with_the_file_that_had_it(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("flow.py", GATED.replace("def last(", "def final(").replace("last(gate", "final(gate"))

    done = cli("resume", "r1")

    assert done.returncode == 2
    assert f"needs the node types flow.last, which {cli.folder / 'flow.py'} does not declare (any more)" in done.stderr
    assert "`@node(name='flow.last')` keeps the old one" in done.stderr


@pytest.mark.slow
def test_a_node_type_with_a_closure_is_warned_of_when_it_is_loaded_again(cli: Cli):
    cli.write("flow.py", CLOSURES)
    process = cli.start("run", "flow.py", "--run-id", "r1", "-i", "n=1")
    read_until(process, "add started")
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    cli.write("open", "")

    done = cli("resume", "r1")

    assert done.returncode == 0
    assert "flow.build.<locals>.add is declared inside a function and uses k from there" in done.stderr


@pytest.mark.slow
def test_an_edited_workflow_under_an_old_id_says_how_to_go_on(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("flow.py", GATED.replace("return last(gate(first()))", "return gate(first())"))

    done = cli("run", "flow.py", "--run-id", "r1")

    assert done.returncode == 2
    assert "go on with it as it was started (`perdure resume r1`)" in done.stderr


ORDERS = """
import asyncio, os
from dataclasses import dataclass
from perdure import node, workflow

@dataclass
class Order:
    number: int

@node
async def take() -> Order:
    return Order(7)

@node
async def gate(order: Order) -> int:
    while not os.path.exists("open"):
        await asyncio.sleep(0.01)
    return 1

@node(EXECUTOR)
def pack(order: Order, n: int) -> str:
    return f"packed {order}"

@workflow
def shop() -> str:
    order = take()
    return pack(order, gate(order))
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_model_that_has_changed_lets_the_run_wait_until_it_is_repaired(cli: Cli, executor: str):
    orders = ORDERS.replace("EXECUTOR", f"executor={executor!r}")
    cli.write("flow.py", orders)
    killed_at_the_gate(cli)
    cli.write("open", "")

    cli.write("flow.py", orders.replace("    number: int", "    number: int\n    note: str"))
    refused = [cli("resume", "r1"), cli("run", "flow.py", "--run-id", "r1")]
    cli.write("flow.py", orders.replace("    number: int", '    number: int\n    note: str = "none"'))
    repaired = cli("resume", "r1")

    for done in refused:
        assert done.returncode == 2
        assert "do not make a flow.Order: there is no 'note'" in done.stderr
        assert "Give fields that were added to the type a default" in done.stderr
        assert "Nothing is lost" in done.stderr
    assert repaired.returncode == 0
    assert repaired.stdout.endswith("\npacked Order(number=7, note='none')\n")
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_a_run_that_another_process_drives_is_watched_and_left_to_it(cli: Cli):
    cli.write("flow.py", GATED)
    driving = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(driving, "gate started")

    watching = cli.start("resume", "r1")
    said = read_until(watching, "run r1 of gated")
    watching.send_signal(signal.SIGINT)
    left, _ = watching.communicate(timeout=30)
    cli.write("open", "")
    driving.communicate(timeout=30)

    assert said[-1].rstrip() == "run r1 of gated, version 1, driven by another process, watched here"
    assert "watched no longer; run r1 goes on in another process" in left
    assert "follow: perdure events r1 --follow" in left
    assert "stopped" not in left
    assert (watching.returncode, driving.returncode) == (130, 0)


def test_what_is_in_a_group_of_errors_is_shown(cli: Cli):
    cli.write(
        "flow.py",
        "import asyncio\nfrom perdure import node, workflow\n\n"
        "async def fails(text: str) -> None:\n    raise ValueError(text)\n\n"
        "@node\nasync def both() -> int:\n"
        "    async with asyncio.TaskGroup() as group:\n"
        "        group.create_task(fails('the first'))\n        group.create_task(fails('the second'))\n"
        "    return 1\n\n"
        "@workflow\ndef grouped() -> int:\n    return both()\n",
    )

    done = cli("run", "flow.py", "--run-id", "r1", env={"COLUMNS": "160"})
    shown = cli("show", "r1", env={"COLUMNS": "160"})

    for output in (done.stdout, shown.stdout):
        assert "ValueError: the first" in output
        assert "ValueError: the second" in output
        assert 'flow.py", line 5, in fails' in output
        assert 'flow.py", line 9, in both' in output
        assert "perdure/dispatch" not in output
        assert "asyncio/" not in output


@pytest.mark.parametrize(
    "clause",
    ["except* ValueError as found:\n        raise RuntimeError('all of it') from found",
     "except ExceptionGroup:\n        raise RuntimeError('all of it')"],
    ids=["caused-by-it", "while-handling-it"],
)  # fmt: skip
def test_an_error_that_a_group_of_errors_led_to_is_shown_itself(cli: Cli, clause: str):
    cli.write(
        "flow.py",
        "import asyncio\nfrom perdure import node, workflow\n\n"
        "async def fails(text: str) -> None:\n    raise ValueError(text)\n\n"
        "@node\nasync def both() -> int:\n"
        "    try:\n        async with asyncio.TaskGroup() as group:\n"
        "            for number in range(9):\n                group.create_task(fails(f'number {number}'))\n"
        f"    {clause}\n    return 1\n\n"
        "@workflow\ndef grouped() -> int:\n    return both()\n",
    )

    done = cli("run", "flow.py", "--run-id", "r1", env={"COLUMNS": "160"})

    assert "RuntimeError: all of it" in done.stdout
    assert 'flow.py", line 14, in both\n      raise RuntimeError' in done.stdout
    assert "number 8" not in done.stdout


@pytest.mark.slow
def test_who_has_taken_a_run_over_and_leaves_it_at_once_is_told_how_to_go_on(cli: Cli):
    cli.write("flow.py", GATED)
    first = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(first, "gate started")
    second = cli.start("resume", "r1")
    read_until(second, "watched here")
    first.kill()
    read_until(second, "gate started (attempt 2)")

    second.send_signal(signal.SIGINT)
    read_until(second, "again to stop at once")
    second.send_signal(signal.SIGINT)
    output, _ = second.communicate(timeout=30)

    assert second.returncode == 130
    assert output == "stopped; run r1 is kept as it is\ncontinue: perdure resume r1\n"
