"""`perdure archive`, and reading what is in the archive."""

from __future__ import annotations

import msgspec
import pytest

from tests.cli.conftest import FAILING, FLOW, Cli

AT_ONCE = ("--older-than", "0s")


@pytest.mark.slow
def test_archived_runs_are_listed_read_and_brought_back(cli: Cli):
    cli.write("flow.py", FLOW)
    for name in ("ada", "bob"):
        cli("run", "flow.py", "--input", f"name={name}", "--run-id", name)
    before = {command: cli.json(command, "ada") for command in ("show", "events", "logs")}

    assert cli("archive").stdout.startswith("✓ 0 runs archived.")
    assert cli("archive", "--dry-run", *AT_ONCE).stdout == "2 runs would be archived.\n"
    done = cli.json("archive", *AT_ONCE)

    assert (done["runs"], done["files"], done["skipped"]) == (2, 1, [])
    assert cli.json("list") == []
    assert [run["run_id"] for run in cli.json("archive", "--list")] == ["bob", "ada"]
    assert "completed" in cli("archive", "--list").stdout
    assert {command: cli.json(command, "ad") for command in before} == before
    assert cli("verify", "ada").stdout == "✓ 1 run checked, all invariants hold.\n"
    assert cli("export", "ada").returncode == 0
    refused = cli("retry", "ada")
    assert refused.returncode == 2
    assert "perdure archive --restore ada" in refused.stderr
    assert cli("archive", "--restore", "ada").stdout == "✓ run ada is back\n"
    assert [run["run_id"] for run in cli.json("list")] == ["ada"]
    assert cli("archive", "--restore", "nobody").returncode == 2
    assert cli("verify").returncode == 0


def test_a_list_without_runs_tells_of_the_archive(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")
    assert cli("archive", "--older-than", "0s").returncode == 0

    assert cli("list").stdout == "No runs here; there are some in the archive: perdure archive --list\n"
    assert cli("list", "bob").stdout == "No runs.\n"
    assert cli.json("list") == []


def test_a_run_that_failed_is_tried_again_when_it_is_back(cli: Cli):
    cli.write("flow.py", FAILING)
    cli("run", "flow.py", "--run-id", "bad")
    cli("archive", *AT_ONCE)
    cli.write("flow.py", FAILING.replace('raise ValueError(f"no {n} today")', "return n"))

    cli("archive", "--restore", "bad")

    assert cli("retry", "bad").returncode == 0
    assert cli("verify").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--list", "--restore", "ada"), "--list and --restore do not go together."),
        (("--restore", "ada", "--dry-run"), "--dry-run does not go with --restore"),
        (("--restore", "ada", "--limit", "1"), "--limit does not go with --restore"),
        (("--restore", "ada", "--older-than", "30d"), "--older-than does not go with --restore"),
        (("--list", "--dry-run"), "--dry-run does not go with --list"),
        (("--list", "--older-than", "30d"), "--older-than does not go with --list"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cli: Cli, arguments: tuple[str, ...], complaint: str):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")
    cli("archive", *AT_ONCE)

    done = cli("archive", *arguments)

    assert done.returncode == 2
    assert complaint in done.stderr
    assert cli.json("list") == []


def test_the_archive_may_be_elsewhere(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")

    assert cli.json("archive", *AT_ONCE, "--archive", "cold")["folder"] == "cold"

    lost = cli("show", "ada")
    assert lost.returncode == 2
    assert "perdure.db-archive" in lost.stderr
    assert cli("show", "ada", env={"PERDURE_ARCHIVE": "cold"}).returncode == 0
    assert cli("archive", "--restore", "ada", "--archive", "cold").returncode == 0


@pytest.mark.slow
def test_one_of_several_that_cannot_come_back_holds_up_no_other(cli: Cli):
    cli.write("flow.py", FLOW)
    for name in ("ada", "bob", "cy"):
        cli("run", "flow.py", "--input", f"name={name}", "--run-id", name)
        cli("archive", *AT_ONCE)
    (lost,) = [run["file"] for run in cli.json("archive", "--list") if run["run_id"] == "bob"]
    (cli.folder / "perdure.db-archive" / lost).unlink()

    done = cli("archive", "--restore", "ada", "--restore", "bob", "--restore", "cy")

    assert done.returncode == 2
    assert done.stdout.splitlines() == ["✓ run ada is back", "✓ run cy is back"]
    assert done.stderr.startswith("Error: ")
    assert lost in done.stderr
    told = cli("archive", "--restore", "ada", "--restore", "bob", "--json")
    assert told.returncode == 2
    document = msgspec.json.decode(told.stdout)
    assert document["restored"] == ["ada"]
    assert [(one["run_id"], one["error"]["code"]) for one in document["refused"]] == [("bob", "archive_missing")]


@pytest.mark.slow
def test_everything_in_the_archive_is_verified_where_it_is(cli: Cli):
    cli.write("flow.py", FLOW)
    for name in ("ada", "bob"):
        cli("run", "flow.py", "--input", f"name={name}", "--run-id", name)
        cli("archive", *AT_ONCE)
    cli("run", "flow.py", "--input", "name=Eve", "--run-id", "eve")

    assert cli("verify").stdout == "✓ 1 run checked, all invariants hold.\n"
    assert cli("verify", "--archived").stdout == "✓ 3 runs checked, all invariants hold.\n"
    assert cli("verify", "ada", "--archived").returncode == 2

    older, newer = sorted((cli.folder / "perdure.db-archive").glob("*.runs"))
    older.unlink()
    content = newer.read_bytes()
    newer.write_bytes(content[: len(content) // 2])
    done = cli("verify", "--archived")
    found = {violation["run_id"]: violation for violation in cli.json("verify", "--archived")["violations"]}

    assert done.returncode == 1
    assert "2 of 3 runs broken." in done.stdout
    assert {violation["invariant"] for violation in found.values()} == {"I4"}
    assert older.name in found["ada"]["problem"]
    assert newer.name in found["bob"]["problem"]
    assert cli("verify").returncode == 0
