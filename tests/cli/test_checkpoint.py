"""`perdure checkpoint`, and what other commands show of checkpoints."""

from __future__ import annotations

import pytest

from tests.cli.conftest import GATED, Cli, read_until
from tests.cli.test_resume import killed_at_the_gate

ASKING = """
from perdure import ask, node, workflow

@node
def first() -> int:
    return 1

@node
def last(n: int, word: str) -> str:
    return f"{word} {n}"

@workflow
def asking() -> str:
    return last(first(), ask("which word?"))
"""


def asked(cli: Cli, *options: str) -> None:
    """Leave run `r1` waiting for an answer."""
    cli.write("flow.py", ASKING)
    assert cli("run", "flow.py", "--run-id", "r1", *options).returncode == 3


@pytest.mark.slow
def test_a_run_that_rests_is_given_a_name_without_its_code(cli: Cli):
    asked(cli)
    (cli.folder / "flow.py").rename(cli.folder / "gone.py")
    before = cli.json("show", "r1")

    done = cli("checkpoint", "r1", "before the word")

    assert done.returncode == 0
    assert done.stdout.startswith("checkpoint before the word of run r1 saved: it holds everything up to event ")
    assert done.stderr == ""
    shown = cli.json("show", "r1")
    assert (shown["status"], shown["waits"]) == ("awaiting_input", before["waits"])
    (cli.folder / "gone.py").rename(cli.folder / "flow.py")
    cli("answer", "r1", "hello")
    assert cli("resume", "r1").stdout.endswith("\nhello 1\n")
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_names_are_listed_and_shown(cli: Cli):
    asked(cli)
    assert cli("checkpoint", "r1").stdout == "Run r1 has no checkpoints.\n"
    assert cli.json("show", "r1")["checkpoint"] is None
    assert "saved" not in cli("show", "r1").stdout

    first = cli.json("checkpoint", "r1", "one")
    second = cli.json("checkpoint", "r1", "another one")

    listed = cli("checkpoint", "r1").stdout.splitlines()
    assert listed[0].split() == ["CHECKPOINT", "EVENT", "SAVED"]
    assert [line[:11].strip() for line in listed[1:]] == ["one", "another one"]
    assert cli.json("checkpoint", "r1") == [first["saved"], second["saved"]]
    assert (second["run_id"], second["name"]) == ("r1", "another one")
    assert second["saved"] | {"at": ""} == {
        "name": "another one",
        "seq": first["saved"]["seq"] + 2,
        "at": "",
        "periodic": False,
        "branch": 1,
    }
    assert cli.json("show", "r1")["checkpoint"] == second["saved"]
    assert f"saved   another one up to event {second['saved']['seq']}, " in cli("show", "r1").stdout
    events = cli("events", "r1").stdout
    assert f"run saved checkpoint 'one' of all up to event {first['saved']['seq']}\n" in events
    assert [entry["type"] for entry in cli.json("events", "r1")].count("CheckpointSaved") == 2


@pytest.mark.slow
def test_a_run_of_another_process_is_given_a_name(cli: Cli):
    cli.write("flow.py", GATED)
    running = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(running, "gate started")

    done = cli("checkpoint", "r1", "at the gate")

    assert done.returncode == 0
    assert "saved: it holds everything up to event" in done.stdout
    assert "run saved checkpoint 'at the gate'" in read_until(running, "checkpoint")[-1]
    cli.write("open", "")
    assert running.wait(timeout=30) == 0
    assert cli.ledger() == ["first", "gate", "last"]


@pytest.mark.slow
def test_a_run_that_nobody_drives_is_given_its_name_by_whoever_takes_it_up(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)

    done = cli("checkpoint", "r1", "later")
    again = cli("checkpoint", "r1", "later")
    other = cli.json("checkpoint", "r1", "later still")

    assert done.returncode == 0
    assert done.stdout == (
        "checkpoint later of run r1 is asked for. No engine drives it; whoever takes it up will save it before anything else.\n"
    )
    assert again.returncode == 2
    assert "has a checkpoint 'later' already: somebody has asked for one" in again.stderr
    assert other == {"run_id": "r1", "name": "later still", "saved": None}
    assert cli("checkpoint", "r1").stdout == "Run r1 has no checkpoints.\n"
    cli.write("open", "")
    assert cli("resume", "r1").returncode == 0
    assert [saved["name"] for saved in cli.json("checkpoint", "r1")] == ["later", "later still"]
    assert cli("verify").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("r1", ""), "needs a name"),
        (("r1", "periodic-1"), "kept for checkpoints that are saved by themselves"),
        (("r1", "a\nb"), "cannot be shown"),
        (("r2", "a"), "There is no run 'r2'"),
        (("r2",), "There is no run 'r2'"),
    ],
)
def test_wrong_use_is_told(cli: Cli, arguments: tuple[str, ...], complaint: str):
    asked(cli)

    done = cli("checkpoint", *arguments)

    assert done.returncode == 2
    assert complaint in done.stderr
    assert cli.json("checkpoint", "r1") == []


@pytest.mark.slow
def test_a_run_that_has_ended_is_refused(cli: Cli):
    asked(cli)
    cli("cancel", "r1")

    done = cli("checkpoint", "r1", "too late")

    assert done.returncode == 2
    assert "Run 'r1' has ended: it is cancelled. Checkpoint 'too late' was not saved." in done.stderr
    assert cli.json("checkpoint", "r1", "too late")["error"]["code"] == "run_ended"


def test_runs_can_be_saved_by_themselves(cli: Cli):
    asked(cli, "--checkpoint-every", "60")

    (saved,) = cli.json("checkpoint", "r1")

    assert (saved["name"], saved["periodic"]) == ("periodic-1", True)
    assert "saved   periodic-1 up to event" in cli("show", "r1").stdout


@pytest.mark.slow
def test_no_time_at_all_is_refused(cli: Cli):
    cli.write("flow.py", ASKING)

    done = cli("run", "flow.py", "--checkpoint-every", "0")

    assert done.returncode == 2
    assert "--checkpoint-every" in done.stderr


@pytest.mark.slow
def test_what_is_saved_by_itself_is_in_the_log_and_makes_no_noise(cli: Cli):
    cli.write("flow.py", ASKING)

    printed = cli("run", "flow.py", "--run-id", "r1", "--checkpoint-every", "60").stdout

    assert "checkpoint" not in printed
    assert "run saved checkpoint 'periodic-1'" in cli("events", "r1").stdout


@pytest.mark.slow
def test_a_run_that_was_only_given_a_name_is_drawn_as_resting(cli: Cli):
    asked(cli)
    cli("checkpoint", "r1", "one")
    cli("answer", "r1", "hello")
    cli("resume", "r1")

    shown = cli("show", "r1").stdout

    assert "stopped" not in shown
    assert "the process died" not in shown
