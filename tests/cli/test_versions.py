"""`perdure versions`, `perdure alias`, and runs that are started by name."""

from __future__ import annotations

import re
import sqlite3
from importlib import import_module

import pytest
from click.testing import CliRunner

from tests.cli.conftest import Cli

FIRST = """
from perdure import ask, node, workflow

@node
def greeting(name: str) -> str:
    return f"Hello, {name}"

@node(once=True)
def louder(text: str, times: int = 1) -> str:
    return text + "!" * times

@workflow
def hello(name: str) -> str:
    return louder(greeting(name))
"""
SECOND = FIRST.replace("louder(greeting(name))", "louder(greeting(name), 3)")
THIRD = FIRST.replace(
    "return louder(greeting(name))", "said = louder(greeting(name))\n    return ask('ok?', show=said)"
)


def saved(cli: Cli) -> None:
    """Leave three versions of `hello`, and their code."""
    for number, text in enumerate((FIRST, SECOND, THIRD), 1):
        cli.write("flow.py", text)
        assert cli("versions", "save", "flow.py").stdout == f"hello, version {number}\n"


def test_versions_are_saved_and_listed_with_who_refers_to_them(cli: Cli):
    cli.write("flow.py", FIRST)
    assert cli("versions").returncode == 2  # there is no store
    assert cli.json("versions", "save", "flow.py")["version"] == 1
    assert cli.json("versions", "save", "flow.py:hello")["version"] == 1
    cli.write("flow.py", SECOND)
    assert cli("run", "flow.py", "--input", "name=Ada").returncode == 0
    cli("alias", "hello", "stable=1")

    lines = cli("versions").stdout.splitlines()
    assert re.fullmatch(r"WORKFLOW  VERSION  RUNS  ALIASES +SAVED +CONTENT", lines[0])
    assert re.fullmatch(r"hello +1 +0  stable +\S+ \S+  [0-9a-f]{12}", lines[1])
    assert re.fullmatch(r"hello +2 +1  latest +\S+ \S+  [0-9a-f]{12}", lines[2])
    assert [(found["version"], found["runs"], found["aliases"]) for found in cli.json("versions", "hello")] == [
        (1, 0, ["stable"]),
        (2, 1, ["latest"]),
    ]
    unknown = cli("versions", "nobody")
    assert unknown.returncode == 2
    assert "No version of workflow 'nobody' is saved" in unknown.stderr


@pytest.mark.slow
def test_a_run_is_started_by_name_with_the_code_from_where_it_was_saved(cli: Cli):
    cli.write("flow.py", FIRST)
    cli("versions", "save", "flow.py")
    cli.write("flow.py", SECOND)
    cli("versions", "save", "flow.py")
    cli("alias", "hello", "stable=1")

    stable = cli("run", "hello@stable", "--input", "name=Ada", "--run-id", "a")
    latest = cli("run", "hello@latest", "--input", "name=Ada")
    second = cli.json("run", "hello@2", "--input", "name=Ada")

    assert stable.stdout.endswith("\nHello, Ada!\n")
    assert "run follows version 1, as stable says" in stable.stdout
    assert latest.stdout.endswith("\nHello, Ada!!!\n")
    assert second["version"] == 2
    cli("alias", "hello", "stable=2")
    assert cli("run", "hello@stable", "--input", "name=Ada", "--run-id", "a").stdout.endswith("\nHello, Ada!\n")
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_a_name_that_means_nothing_is_told(cli: Cli):
    cli.write("flow.py", FIRST)
    cli("versions", "save", "flow.py")

    for target, told in (
        ("hello@3", "No version 3 of workflow 'hello'"),
        ("hello@canary", "no alias 'canary' (it has 'latest')"),
        ("nobody@1", "No version 1 of workflow 'nobody'"),
        ("hello@", "names no version"),
        ("@1", "names no workflow"),
        ("hello", "There is no file 'hello'"),
    ):
        done = cli("run", target, "--input", "name=Ada")

        assert (target, done.returncode) == (target, 2)
        assert told in done.stderr


@pytest.mark.slow
def test_wrong_inputs_and_lost_code_are_told_before_anything_is_started(cli: Cli):
    cli.write("flow.py", FIRST)
    cli("versions", "save", "flow.py")

    assert "'name' is missing" in cli("run", "hello@1").stderr
    (cli.folder / "flow.py").rename(cli.folder / "moved.py")
    gone = cli("run", "hello@1", "--input", "name=Ada")
    assert gone.returncode == 2
    assert "The node types of version 1 of workflow 'hello' were declared in" in gone.stderr
    assert cli("list").stdout == "No runs.\n"


@pytest.mark.slow
def test_an_alias_is_set_moved_back_and_removed(cli: Cli):
    saved(cli)

    assert cli("alias", "hello", "stable=1").stdout == "hello@stable means version 1\n"
    assert cli("alias", "hello", "stable=1:90,3:10").stdout == "hello@stable means version 1:90,3:10\n"
    lines = cli("alias", "hello").stdout.splitlines()
    assert re.fullmatch(r"ALIAS +VERSION +REVISION +MOVED", lines[0])
    assert re.fullmatch(r"latest +3 \(the newest\) +0", lines[1])
    assert re.fullmatch(r"stable +1:90,3:10 +2  \S+ \S+", lines[2])
    assert cli.json("alias", "hello")[1]["targets"] == {"1": 90, "3": 10}

    assert cli("alias", "hello", "--rollback", "stable").stdout == "hello@stable means version 1\n"
    lines = cli("alias", "hello", "--history", "stable").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["1", "1"], ["2", "1:90,3:10"], ["3", "1"]]
    assert lines[3].endswith("back to 1")
    assert [move["restores"] for move in cli.json("alias", "hello", "--history", "stable")] == [None, None, 1]

    late = cli("alias", "hello", "stable=2", "--revision", "2")
    assert (late.returncode, "moved by somebody else" in late.stderr) == (2, True)
    assert cli.json("alias", "hello", "stable=2", "--revision", "3")["revision"] == 4
    assert "stable" not in cli("alias", "hello", "--remove", "stable").stdout
    assert cli("alias", "hello", "--remove", "stable").returncode == 2
    assert cli("alias", "hello", "latest=1").stdout == "hello@latest means version 1\n"
    assert cli("alias", "hello", "--rollback", "latest").stdout == "hello@latest means the newest version\n"


@pytest.mark.slow
def test_what_is_no_alias_is_refused(cli: Cli):
    cli.write("flow.py", FIRST)
    cli("versions", "save", "flow.py")
    command = import_module("perdure.cli.alias").alias_command
    store = ("--store", f"sqlite:///{cli.folder}/perdure.db")

    for arguments in (
        ("stable",),
        ("stable=",),
        ("stable=x",),
        ("stable=1:",),
        ("stable=1:0",),
        ("stable=1,1",),
        ("3=1",),
        ("=1",),
        ("stable=1", "--remove", "stable"),
        ("--revision", "1"),
    ):
        done = CliRunner().invoke(command, ["hello", *arguments, *store])

        assert (arguments, done.exit_code) == (arguments, 2)
        assert "Error:" in done.output
    for arguments in (("stable=9",), ("--rollback", "stable"), ("--history", "stable")):
        assert cli("alias", "hello", *arguments).returncode == 2
    assert len(cli.json("alias", "hello")) == 1


@pytest.mark.slow
def test_two_versions_are_compared(cli: Cli):
    saved(cli)

    assert cli("versions", "diff", "hello", "1", "1").stdout == "= no difference\n"
    assert cli("versions", "diff", "hello", "1", "2").stdout == "≠ louder  data: times\n= 1 node the same\n"
    assert cli("versions", "diff", "hello", "1", "3").stdout.splitlines() == [
        "+ ask",
        "+ louder.output → ask.show",
        "+ ask.output → $output.output",
        "− louder.output → $output.output",
        "≠ output output",
        "= 2 nodes the same",
    ]
    assert cli.json("versions", "diff", "hello", "1", "2")["changed"] == [
        {"node_id": "louder", "aspects": ["data"], "handles": ["times"]}
    ]
    assert cli("versions", "diff", "hello", "1", "9").returncode == 2


@pytest.mark.slow
def test_whether_a_run_can_follow_a_version_is_told(cli: Cli):
    saved(cli)
    cli("run", "hello@1", "--input", "name=Ada", "--run-id", "ada")

    can, cannot = cli("versions", "check", "ada", "3"), cli("versions", "check", "ada", "2")

    assert can.returncode == 0
    assert can.stdout.splitlines() == [
        "✓ version 1 of hello → version 3: it can go on",
        "= greeting: kept",
        "= louder: kept",
        "· ask: to come",
    ]
    assert cannot.returncode == 1
    assert cannot.stdout.splitlines() == [
        "✗ version 1 of hello → version 2: it cannot go on",
        "= greeting: kept",
        "✗ louder: impossible because it must run at most once, and has begun",
    ]
    document = cli.json("versions", "check", "ada", "2")
    assert (document["possible"], document["reasons"]) == (
        False,
        ["louder: it must run at most once, and has begun"],
    )
    assert cli("versions", "check", "ada", "9").returncode == 2
    assert cli("versions", "check", "nobody", "1").returncode == 2
    (cli.folder / "flow.py").unlink()
    assert "is not here to say whether it may" in cli("versions", "check", "ada", "2").stdout


@pytest.mark.slow
def test_a_version_is_deleted_to_which_nothing_refers(cli: Cli):
    saved(cli)
    cli("run", "hello@1", "--input", "name=Ada")

    refused = cli("versions", "delete", "hello", "1")
    assert (refused.returncode, "runs refer to it" in refused.stderr) == (2, True)
    assert cli("versions", "delete", "hello", "2").stdout == "version 2 of hello is deleted\n"
    assert [found["version"] for found in cli.json("versions", "hello")] == [1, 3]
    rows = sqlite3.connect(cli.folder / "perdure.db").execute("SELECT workflow, targets FROM workflow_aliases")
    assert rows.fetchall() == []
