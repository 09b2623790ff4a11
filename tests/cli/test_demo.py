"""`perdure demo` does what it says, for real: the numbers are checked against what it leaves behind."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.slow


def test_the_demo_is_a_proof(cli: Cli):
    done = cli("demo", "--folder", "tour", "--json")

    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    assert found["status"] == "completed"
    assert found["equals_undisturbed"] is True
    assert found["repeated"] == found["violations"] == []
    assert len(found["kept"]) >= 5
    assert found["interrupted"]
    assert sorted([*found["kept"], *found["interrupted"], *found["later"]]) == sorted(
        node["id"] for node in cli.json("show", "demo", "--store", "sqlite:///tour/perdure.db")["nodes"]
    )
    assert found["seconds"] < 30


def test_the_demo_really_kills_and_really_repeats_only_what_was_cut_off(cli: Cli):
    found = json.loads(cli("demo", "--folder", "tour", "--json").stdout)

    ledger = (cli.folder / "tour" / "ledger.txt").read_text().split("\n")
    ran = [line.split()[0] for line in ledger if line]
    assert {node for node in ran if node != "look_up" and ran.count(node) == 2} == set(found["interrupted"])
    assert ran.count("look_up") == 2  # it fails once by itself
    events = cli.json("events", "demo", "--store", "sqlite:///tour/perdure.db")
    claims = [event.get("lost", False) for event in events if event["type"] == "RunClaimed"]
    assert claims == [False, True]


def test_the_demo_tells_its_story_and_leaves_nothing(cli: Cli):
    done = cli("demo")

    assert done.returncode == 0, done
    for part in ("kill -9", "$ perdure resume demo", "done twice  nothing", "the process died", "all invariants hold"):
        assert part in done.stdout
    assert "as without the kill" in done.stdout
    assert list(cli.folder.iterdir()) == []


def test_the_demo_leaves_a_folder_in_which_commands_need_no_store(cli: Cli):
    told = cli("demo", "--folder", "tour").stdout

    assert f"cd {cli.folder / 'tour'} && " in told
    assert "✓ completed" in cli("list", cwd=cli.folder / "tour").stdout


def test_a_folder_that_cannot_be_written_is_refused(cli: Cli):
    cli.write("file", "")

    done = cli("demo", "--folder", "file/tour")

    assert done.returncode == 2
    assert "The demo cannot write to" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_keeps_away_from_folders_that_are_in_use(cli: Cli):
    cli.write("tour/notes.txt", "mine")

    done = cli("demo", "--folder", "tour")

    assert done.returncode == 2
    assert "not an empty folder" in done.stderr
