"""`perdure delete`."""

from __future__ import annotations

import msgspec

from tests.cli.conftest import FLOW, GATED, Cli


def test_the_values_of_a_run_are_deleted(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")

    asked = cli("delete", "ada")
    assert (asked.returncode, "--yes" in asked.stderr) == (2, True)
    assert cli.json("show", "ada")["inputs"]["name"] == "Ada"
    assert cli.json("delete", "ada", "--yes", "--reason", "asked for") == [{"run_id": "ada", "deleted": True}]

    assert "Ada" not in cli("events", "ada", "--json").stdout
    assert cli.json("events", "ada")[-1]["reason"] == "asked for"
    assert cli.json("show", "ada")["deleted_at"] is not None
    shown = cli("show", "ada").stdout
    assert ("its values are gone" in shown, "null" in shown) == (True, False)
    assert "completed, deleted" in cli("list").stdout
    assert cli.json("logs", "ada") == []
    assert cli("verify").returncode == 0
    assert cli("delete", "ada", "--yes").stdout == "the values of run ada were deleted before\n"
    assert cli("show", "ada", "--result").returncode == 2


def test_a_run_that_has_not_ended_is_refused(cli: Cli):
    cli.write("flow.py", GATED)
    running = cli.start("run", "flow.py", "--run-id", "gated")
    while not (cli.folder / "ledger.txt").exists() or "gate" not in cli.ledger():
        pass

    refused = cli("delete", "gated", "--yes")

    assert (refused.returncode, "has not ended" in refused.stderr) == (2, True)
    (cli.folder / "open").touch()
    assert running.wait() == 0


def test_one_of_several_that_is_refused_holds_up_no_other(cli: Cli):
    cli.write("flow.py", FLOW)
    for name in ("ada", "bob"):
        cli("run", "flow.py", "--input", f"name={name}", "--run-id", name)

    done = cli("delete", "ada", "nobody", "bob", "--yes")

    assert done.returncode == 2
    assert done.stdout.splitlines() == [
        "✓ the values of run ada are deleted",
        "✓ the values of run bob are deleted",
    ]
    assert done.stderr.count("Error: ") == 1
    assert "'nobody'" in done.stderr
    told = cli("delete", "ada", "nobody", "--yes", "--json")
    assert told.returncode == 2
    first, second = msgspec.json.decode(told.stdout)
    assert first == {"run_id": "ada", "deleted": False}
    assert (second["run_id"], second["error"]["code"]) == ("nobody", "run_not_found")


def test_a_run_whose_values_were_deleted_has_no_result_to_go_on_to(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")
    cli("delete", "ada", "--yes")

    for command in (("resume", "ada"), ("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")):
        done = cli(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "The values of run 'ada' were deleted" in done.stderr
        assert cli(*command, "--json").returncode == 2
