"""Runs that are recorded in their tables alone, from the command line."""

from __future__ import annotations

import apsw
import pytest

from tests.cli.conftest import FLOW, GATED, Cli, read_until


def without_events(cli: Cli, which: str = "1 = 1") -> None:
    connection = apsw.Connection(str(cli.folder / "perdure.db"))
    connection.execute(f"DELETE FROM run_events WHERE {which}")
    connection.close()


@pytest.mark.slow
def test_a_run_is_marked_wherever_it_is_looked_at(cli: Cli):
    cli.write("flow.py", FLOW)

    done = cli("run", "flow.py", "-i", "name=Ada", "--run-id", "r1", "--journal", "audit")

    assert done.returncode == 0
    assert "greeting completed" in done.stdout
    assert done.stdout.endswith("\n11\n")
    assert cli.json("show", "r1")["journal"] == "audit"
    events = cli.json("events", "r1")
    assert {event["journal"] for event in events} == {"audit"}
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert "audit" in cli("show", "r1").stdout
    assert "may have gaps" in cli("events", "r1").stderr
    assert cli.json("verify")["audited"] == ["r1"]
    assert "the log is best effort" in cli("verify").stdout
    assert "G1" in cli("doctor", "r1").stdout


@pytest.mark.slow
def test_ordinary_runs_are_not_marked(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=Ada", "--run-id", "r1")

    assert cli.json("show", "r1")["journal"] == "log"
    assert all("journal" not in event for event in cli.json("events", "r1"))
    assert cli("events", "r1").stderr == ""
    assert cli.json("verify")["audited"] == []
    assert "best effort" not in cli("verify").stdout


@pytest.mark.slow
def test_a_killed_run_goes_on_without_its_log(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1", "--journal", "audit")
    read_until(process, "gate started")
    process.kill()
    process.wait(timeout=30)
    without_events(cli)
    cli.write("open", "")

    done = cli("resume", "r1")

    assert done.returncode == 0
    assert cli.json("show", "r1")["status"] == "completed"
    assert cli.json("show", "r1")["journal"] == "audit"
    ledger = (cli.folder / "ledger.txt").read_text().split()
    assert ledger.count("first") == 1
    assert cli("verify").returncode == 0
    assert cli("events", "r1", "--follow").returncode == 0


@pytest.mark.slow
def test_a_run_without_any_event_is_shown_and_followed_to_its_end(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=Ada", "--run-id", "r1", "--journal", "audit")
    without_events(cli)

    shown = cli("show", "r1")

    assert shown.returncode == 0
    assert "greeting" in shown.stdout
    assert cli("run", "flow.py", "-i", "name=Ada", "--run-id", "r1").stdout.endswith("\n11\n")
    assert cli("events", "r1", "--follow", "--json").stdout == ""
    assert cli("verify", "r1").returncode == 0


def test_what_needs_the_log_is_refused_with_a_reason(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=Ada", "--run-id", "r1", "--journal", "audit")

    for command in (("show", "r1", "--at", "3"), ("checkpoint", "r1", "here"), ("diff", "r1", "r1@3")):
        refused = cli(*command)
        assert refused.returncode != 0
    refused = cli("show", "r1", "--at", "3", "--json")
    assert '"log_not_whole"' in refused.stdout + refused.stderr
    refused = cli("run", "flow.py", "-i", "name=Ada", "--journal", "audit", "--checkpoint-every", "1")
    assert refused.returncode not in (0, 70)
    assert "leave checkpoint_every out" in refused.stderr
