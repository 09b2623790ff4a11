"""`perdure doctor`: says what is wrong, repairs it, explains its codes; and `resume` and `run` repair what they take up."""

from __future__ import annotations

import sqlite3

import pytest

from perdure.journal.ailments import CATALOGUE
from tests.cli.conftest import Cli

ASKING = """
from perdure import Context, ask, node, when, workflow

def note(ctx):
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{ctx.node_id}\\n")

@node
async def draft(ctx: Context) -> int:
    note(ctx)
    return 1

@node
async def publish(ctx: Context, n: int) -> int:
    note(ctx)
    return n + 1

@workflow
def asking() -> int | None:
    n = draft()
    with when(ask("publish?", schema=bool)):
        done = publish(n)
    return done
"""


FAILING = """
from perdure import node, workflow

@node
def bad() -> int:
    raise ConnectionError("no route")

@workflow
def failing() -> int:
    return bad()
"""


def edit(cli: Cli, sql: str) -> None:
    """Change the database behind perdure's back."""
    with sqlite3.connect(cli.folder / "perdure.db") as connection:
        connection.execute(sql)
    connection.close()


@pytest.fixture
def waiting(cli: Cli) -> Cli:
    """A run that waits, and whose row says that it is running."""
    cli.write("asking.py", ASKING)
    assert cli("run", "asking.py", "--run-id", "r1").returncode == 3
    edit(cli, "UPDATE run_state SET status = 'running'")
    return cli


def test_a_damaged_run_is_found_and_repaired(waiting: Cli):
    found = waiting("doctor")
    assert found.returncode == 1
    assert "A2 it is running, and by its log it waits: 'ask' has asked" in found.stdout
    assert "perdure doctor r1 --fix" in found.stdout
    assert "1 of 1 run damaged." in found.stdout

    fixed = waiting("doctor", "--fix")
    assert fixed.returncode == 0
    assert "repaired: it goes on on branch 2, which keeps branch 1 up to event" in fixed.stdout
    assert "awaiting input" in fixed.stdout

    again = waiting("doctor", "r1", "--fix")
    assert again.returncode == 0
    assert "no issue" in again.stdout
    assert waiting("verify").returncode == 0

    assert waiting("answer", "r1", "true").returncode == 0
    done = waiting("resume", "r1")
    assert done.returncode == 0
    assert done.stdout.endswith("2\n")
    assert waiting.ledger() == ["draft", "publish"]


def test_a_program_reads_what_was_found(waiting: Cli):
    document = waiting.json("doctor")
    (diagnosis,) = document["diagnoses"]
    assert (document["runs"], diagnosis["run_id"], diagnosis["healthy"], diagnosis["repair"]) == (1, "r1", False, None)
    (found,) = diagnosis["findings"]
    assert (found["code"], found["node_id"], found["left"]) == ("A2", "ask", None)

    (diagnosis,) = waiting.json("doctor", "r1", "--fix")["diagnoses"]
    assert (diagnosis["healthy"], diagnosis["left"]) == (True, [])
    assert diagnosis["repair"]["branch"] == 2
    assert diagnosis["repair"]["status"] == "awaiting_input"
    assert waiting.json("doctor")["diagnoses"] == []


@pytest.mark.parametrize("command", [("resume", "r1"), ("run", "asking.py", "--run-id", "r1")])
def test_whoever_takes_a_run_up_repairs_it(waiting: Cli, command: tuple[str, ...]):
    told = waiting(*command)
    assert told.returncode == 3
    assert "run repaired on branch 2: A2" in told.stdout
    assert waiting("doctor").returncode == 0
    assert waiting("verify").returncode == 0
    assert waiting.ledger() == ["draft"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("resume", "r1"), ("run", "asking.py", "--run-id", "r1")])
def test_a_run_that_waits_for_nothing_goes_on_when_it_is_asked_for(cli: Cli, command: tuple[str, ...]):
    cli.write("asking.py", ASKING)
    assert cli("run", "asking.py", "--run-id", "r1").returncode == 3
    connection = sqlite3.connect(cli.folder / "perdure.db")
    connection.execute("CREATE TABLE backup AS SELECT * FROM run_state")
    connection.commit()
    assert cli("answer", "r1", "true").returncode == 0
    assert cli("resume", "r1").returncode == 0
    connection.execute("DELETE FROM run_state")
    connection.execute("INSERT INTO run_state SELECT * FROM backup")
    connection.commit()
    connection.close()
    assert "A1" in cli("doctor").stdout

    done = cli(*command)

    assert done.returncode == 0
    assert done.stdout.endswith("2\n")
    assert cli("verify").returncode == 0
    assert cli.ledger() == ["draft", "publish"]


def test_a_run_whose_version_is_gone_goes_on_with_its_first(waiting: Cli):
    edit(waiting, "UPDATE run_state SET status = 'awaiting_input', workflow_version = 7")
    assert "E2" in waiting("doctor").stdout
    assert waiting("resume", "r1").returncode == 3
    assert waiting("doctor").returncode == 0
    assert waiting("verify").returncode == 0


def test_what_cannot_be_repaired_is_said(waiting: Cli):
    edit(waiting, "DELETE FROM run_events WHERE seq = 4")
    told = waiting("doctor", "--fix")
    assert told.returncode == 1
    assert "event 4 is missing" in told.stdout
    assert "It is left as it is" in told.stdout


def test_an_error_by_its_class_needs_the_code(cli: Cli):
    cli.write("failing.py", FAILING)
    assert cli("run", "failing.py", "--run-id", "r1").returncode == 1
    edit(cli, "UPDATE run_state SET status = 'running', ended_at = NULL")
    (cli.folder / "failing.py").rename(cli.folder / "moved.py")
    told = cli("doctor", "--fix")
    assert told.returncode == 1
    assert "--import" in told.stdout
    (cli.folder / "moved.py").rename(cli.folder / "failing.py")
    assert cli("doctor", "--fix").returncode == 0
    assert cli("verify").returncode == 0


def test_the_catalogue_can_be_read(cli: Cli):
    assert CATALOGUE["A1"].remedy in cli("doctor", "--explain", "a1").stdout
    assert [ailment["code"] for ailment in cli.json("doctor", "--explain", "all")] == list(CATALOGUE)


@pytest.mark.slow
def test_two_processes_that_resume_a_damaged_run_make_one_branch(waiting: Cli):
    processes = [waiting.start("resume", "r1") for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)

    assert [process.returncode for process in processes] == [3, 3, 3]
    assert len(waiting.json("branches", "r1")) == 2
    assert waiting("verify").returncode == 0
    assert waiting.ledger() == ["draft"]
