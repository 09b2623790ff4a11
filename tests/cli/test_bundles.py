"""`perdure export` and `perdure import`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import FAILING, FLOW, GATED, Cli

ELSEWHERE = ("--store", "sqlite:///elsewhere.db")


@pytest.mark.slow
def test_a_run_is_taken_to_another_store(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")

    exported = cli.json("export", "ada")
    imported = cli.json("import", "ada.bundle", *ELSEWHERE)

    assert exported["file"] == "ada.bundle"
    assert exported["size"] == (cli.folder / "ada.bundle").stat().st_size
    assert imported["run_id"] == "ada"
    assert (imported["is_new"], imported["is_paused"]) == (True, False)
    assert cli.json("show", "ada", *ELSEWHERE) == cli.json("show", "ada")
    assert cli.json("events", "ada", *ELSEWHERE) == cli.json("events", "ada")
    assert cli.json("logs", "ada", *ELSEWHERE) == cli.json("logs", "ada")
    assert cli("verify", *ELSEWHERE).returncode == 0
    again = cli("import", "ada.bundle", *ELSEWHERE)
    assert (again.returncode, again.stdout) == (0, "run ada is here already; nothing was changed\n")


def test_a_run_that_failed_is_tried_again_elsewhere(cli: Cli):
    cli.write("flow.py", FAILING)
    cli("run", "flow.py", "--run-id", "bad")
    cli("export", "bad")
    cli("import", "bad.bundle", "--run-id", "copy", *ELSEWHERE)
    cli.write("flow.py", FAILING.replace('raise ValueError(f"no {n} today")', "return n"))

    done = cli("retry", "copy", *ELSEWHERE)

    assert done.returncode == 0
    assert cli.json("show", "copy", *ELSEWHERE)["outputs"] == {"output": 7}


def test_a_run_that_was_interrupted_is_paused_elsewhere_and_goes_on(cli: Cli):
    cli.write("flow.py", GATED)
    running = cli.start("run", "flow.py", "--run-id", "gated")
    while not (cli.folder / "ledger.txt").exists() or "gate" not in cli.ledger():
        pass
    running.kill()
    running.wait()
    cli("export", "gated", "half.bundle")

    imported = cli("import", "half.bundle", *ELSEWHERE)
    assert "It is paused" in imported.stdout
    (cli.folder / "open").touch()

    done = cli("resume", "gated", *ELSEWHERE)

    assert done.returncode == 0
    assert cli.ledger() == ["first", "gate", "gate", "last"]


def test_what_cannot_be_is_said(cli: Cli):
    cli.write("flow.py", FLOW)
    for name in ("one", "two"):
        cli("run", "flow.py", "--input", "name=Ada", "--run-id", name)
    cli("export", "one")
    (cli.folder / "cut.bundle").write_bytes((cli.folder / "one.bundle").read_bytes()[:-1])

    there = cli("export", "one")
    cut = cli("import", "cut.bundle")
    taken = cli("import", "one.bundle", "--run-id", "two")
    large = cli("import", "one.bundle", "--max-size", "1K", *ELSEWHERE)
    missing = cli("import", "missing.bundle")
    nowhere = cli("export", "one", "no/such/folder.bundle")

    assert "there already" in there.stderr
    assert "cut off" in cut.stderr
    assert "another run" in taken.stderr
    assert "--max-size" in large.stderr
    assert "cannot be written (No such file or directory)" in nowhere.stderr
    assert {done.returncode for done in (there, cut, taken, large, missing, nowhere)} == {2}
    assert cli("export", "one", "--force").returncode == 0


def test_names_of_runs_are_no_paths(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "../../etc/passwd")

    exported = cli.json("export", "../../etc/passwd")

    assert Path(exported["file"]).name == exported["file"] == "_.._etc_passwd.bundle"
    assert (cli.folder / exported["file"]).exists()
