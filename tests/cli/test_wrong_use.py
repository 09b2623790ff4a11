"""What is wrong is said clearly, with exit code 2 and no traceback of ours, and nothing is left behind."""

from __future__ import annotations

import ctypes
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import pytest

from tests.cli.conftest import FLOW, Cli

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def refused(cli: Cli, *arguments: str) -> str:
    """Run a command that must be refused, and return what it says."""
    done = cli(*arguments)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert "perdure/cli" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("missing.py",), "There is no file 'missing.py'"),
        (("missing.py:hello",), "There is no file 'missing.py'"),
        ((".",), "is a folder"),
        (("notes.txt",), "neither a Python file"),
        (("empty.py",), "has no workflow"),
        (("flow.py:other",), "has no workflow 'other'. It has: hello"),
        (("flow.py:helo",), "did you mean 'hello'?"),
        (("flow.py",), "'name' is missing"),
        (("flow.py", "-i", "name=a", "-i", "nam=b"), "there is no input 'nam'"),
        (("flow.py", "-i", "name=a", "-i", "factor=much"), "'factor': Expected `int`, got `str`"),
        (("flow.py", "-i", "name=a", "-i", "factor=1.5"), "'factor': Expected `int`, got `float`"),
        (("flow.py", "-i", "name"), "not of the form name=value"),
        (("flow.py", "-i", "name=a", "-i", "name=b"), "given twice"),
        (("flow.py", "--inputs", "missing.json"), "missing.json cannot be read"),
        (("flow.py", "--inputs", "notes.txt"), "is not JSON"),
        (("flow.py", "--inputs", "list.json"), "not a JSON object"),
        (("flow.py", "-i", "name=a", "--import", "missing.py"), "There is no file 'missing.py' to import"),
        (("flow.py", "-i", "name=a", "--import", "no_such_module"), "No module named 'no_such_module'"),
        (("flow.py", "-i", "name=a", "--timeout", "-1"), "Invalid value for '--timeout'"),
        (("flow.py", "-i", "name=a", "--durability", "most"), "Invalid value for '--durability'"),
        (("flow.py", "-i", "name=a", "--run-id", ""), "Invalid value for '--run-id': it is empty."),
        (("flow.py", "-i", "name=a", "--run-id", "a\nb"), r"'--run-id': it has a control character ('\n')."),
        (
            ("flow.py", "-i", "name=a", "--run-id", "a" * 513),
            "'--run-id': it has 513 characters, and 512 are the most.",
        ),
        (("flow.py", "-i", "name=a", "--run-id", "\udcff"), r"Invalid value for '--run-id': '\udcff' is not UTF-8."),
        (("flow.py", "-i", "name=a", "--timeout", "soon"), "'soon' is not a valid number of seconds"),
        (("flow.py", "-i", "name=a", "--timeout", "nan"), "'nan' is not a valid number of seconds"),
        (("flow.py", "-i", "name=a", "--timeout", "1e300"), "'1e300' is not a valid number of seconds"),
        (("flow.py", "-i", "name=a", "--checkpoint-every", "inf"), "'inf' is not a valid number of seconds"),
        (("no.such:hello",), "There is no file 'no.such'"),
        (("json.py", "-i", "name=a"), "has the name of a module that is loaded already"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_nothing(cli: Cli, arguments: tuple[str, ...], complaint: str):
    for name, text in {"flow.py": FLOW, "json.py": FLOW, "empty.py": "", "notes.txt": "x", "list.json": "[]"}.items():
        cli.write(name, text)

    assert complaint in refused(cli, "run", *arguments)
    assert not list(cli.folder.glob("perdure.db*"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\ndef f(:\n    pass\n", ['flow.py", line 2', "def f(:", "SyntaxError"]),
        ("def f():\n    return 1 / 0\n\nf()\n", ['flow.py", line 2, in f', "ZeroDivisionError"]),
        ("import nothing_of_this_name\n", ['flow.py", line 1', "No module named 'nothing_of_this_name'"]),
        ("from perdure import node\n@node(retrys=3)\ndef f(): ...\n", ['flow.py", line 2', "did you mean 'retries'?"]),
        ("import sys\nsys.exit(3)\n", ["line 2 of", "__main__"]),
        (
            "from perdure import node, workflow\n@node\ndef f() -> int:\n    return 1\n\n"
            "@workflow\ndef w() -> int:\n    return f()\n\nw.run()\n",
            ['flow.py", line 10', "starts an engine while it is imported", "__main__"],
        ),
    ],
)
def test_an_error_in_the_users_file_shows_the_users_line(cli: Cli, text: str, told: list[str]):
    cli.write("flow.py", text)

    said = refused(cli, "run", "flow.py")

    for part in told:
        assert part in said
    assert "importlib" not in said
    assert said == refused(cli, "validate", "flow.py")


RAISING = """
from perdure import node, workflow

@node
def f(x: int) -> int:
    return x

@workflow
def good(x: int) -> int:
    return f(x)

@workflow
def bad(x: int) -> int:
    return f(undefined_name)
"""


def test_an_error_in_a_workflow_function_is_the_users(cli: Cli):
    cli.write("flow.py", RAISING)

    said = refused(cli, "run", "flow.py:bad", "-i", "x=1")
    checked = cli("validate", "flow.py")

    assert "'bad' raised NameError: name 'undefined_name' is not defined" in said
    assert f"({cli.folder / 'flow.py'}:14):\n    return f(undefined_name)\n" in said
    assert checked.returncode == 2
    assert "✓ good" in checked.stdout
    assert "flow.py:14" in checked.stdout
    assert cli.json("run", "flow.py:bad", "-i", "x=1")["error"]["code"] == "workflow_raised"
    assert [found["valid"] for found in cli.json("validate", "flow.py")] == [True, False]


@pytest.mark.parametrize(
    "statements",
    ["", "CREATE TABLE customers (name TEXT)", "PRAGMA journal_mode = WAL; CREATE TABLE customers (name TEXT)"],
    ids=["empty", "with-a-table", "in-wal-mode"],
)
def test_who_only_looks_creates_nothing_in_a_file_of_somebody_else(cli: Cli, statements: str):
    file = cli.write("other.db", "")
    if statements:
        connection = apsw.Connection(str(file))
        connection.execute(statements).fetchall()
        connection.close()
    before = file.read_bytes()

    for command in (("list",), ("show", "r"), ("verify",), ("events", "r"), ("resume", "r"), ("cancel", "r")):
        assert "it has no tables of perdure's" in refused(cli, *command, "--store", "sqlite:///other.db")

    assert file.read_bytes() == before
    assert not list(cli.folder.glob("other.db-*"))


@pytest.mark.parametrize(
    ("statements", "seen"),
    [
        ("CREATE TABLE customers (name TEXT)", "customers"),
        ("PRAGMA journal_mode = WAL; CREATE TABLE customers (name TEXT)", "customers"),
        ("CREATE TABLE blobs (id INTEGER PRIMARY KEY AUTOINCREMENT)", "blobs"),
        ("CREATE TABLE schema_migrations (version TEXT, dirty BOOLEAN)", "schema_migrations"),
    ],
    ids=["with-a-table", "in-wal-mode", "with-a-name-of-ours", "with-migrations"],
)
@pytest.mark.parametrize("is_read_only", [False, True], ids=["writable", "read-only"])
def test_who_runs_something_creates_nothing_in_a_file_of_somebody_else(
    cli: Cli, statements: str, seen: str, *, is_read_only: bool
):
    cli.write("flow.py", FLOW)
    file = cli.folder / "other.db"
    connection = apsw.Connection(str(file))
    connection.execute(statements).fetchall()
    connection.close()
    before = file.read_bytes()
    command = ("run", "flow.py", "-i", "name=a", "--store", "sqlite:///other.db")

    if is_read_only:
        file.chmod(0o444)
        cli.folder.chmod(0o555)
    done = cli(*command, before=obey_permissions if is_read_only else None)
    cli.folder.chmod(0o755)

    assert done.returncode == 2
    assert f"is another program's: it holds tables ('{seen}' is one)" in done.stderr
    assert file.read_bytes() == before
    assert not list(cli.folder.glob("other.db-*"))


def test_a_store_of_which_a_table_is_missing_is_damaged(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a", "--run-id", "r")
    connection = apsw.Connection(str(cli.folder / "perdure.db"))
    connection.execute("PRAGMA foreign_keys = OFF; DROP TABLE run_events").fetchall()
    connection.close()

    for command in (("run", "flow.py", "-i", "name=b"), ("events", "r")):
        said = refused(cli, *command)
        assert "is not as perdure left it: no such table: run_events. Restore it from a backup" in said
    assert cli.json("events", "r")["error"]["code"] == "store_damaged"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:/perdure.db", "Write sqlite:///perdure.db"),
        ("sqlite://perdure.db", "Write sqlite:///perdure.db"),
        ("sqlite:perdure.db", "Write sqlite:///perdure.db"),
        ("sqlite://[perdure.db", "Write sqlite:///perdure.db"),
        ("postgresql://127.0.0.1:port/x", "The port in the PostgreSQL URL is not a number"),
        ("postgresql://user:pass:word@[::1]:543x/x", "The port in the PostgreSQL URL is not a number"),
        ("postgresql://[::1/x", "The PostgreSQL URL cannot be read"),
        ("postgresql://user:hunter2/word@127.0.0.1/x", "has its special characters percent-encoded"),
        ("postgresql://user:12/word@127.0.0.1/x", "The PostgreSQL URL has an @ behind its host"),
        ("postgresql://user:12#word@127.0.0.1/x", "The PostgreSQL URL has an @ behind its host"),
        ("postgresql://user:12?word@127.0.0.1/x", "The PostgreSQL URL has an @ behind its host"),
    ],
)
def test_a_url_with_a_slip_is_told(cli: Cli, url: str, told: str):
    said = refused(cli, "list", "--store", url)

    assert told in said
    assert "hunter2" not in said
    assert list(cli.folder.iterdir()) == []


def test_a_module_that_is_not_there_is_told_without_the_ways_of_python(cli: Cli):
    cli.write("flow.py", FLOW)

    said = refused(cli, "run", "flow.py", "-i", "name=a", "--import", "no_such_module")

    assert "importlib" not in said


@pytest.mark.parametrize(
    "arguments",
    [("list", "--bogus"), ("run",), ("lsit",), ("run", "flow.py", "--run-id", ""), ("list", "--limit", "x")],
)
def test_wrong_use_is_a_document_where_json_is_wanted(cli: Cli, arguments: tuple[str, ...]):
    done = cli(*arguments, "--json")

    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "wrong_use"
    assert "Error:" in done.stderr


def test_errors_are_documents_where_json_is_wanted(cli: Cli):
    cli.write("flow.py", FLOW)

    assert cli.json("run", "flow.py")["error"]["code"] == "wrong_inputs"
    assert cli.json("run", "missing.py")["error"]["code"] == "program_error"
    assert cli.json("list")["error"]["code"] == "store_unavailable"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://host/db", "names no store that perdure knows"),
        ("postgresql+psycopg://user:hunter2@host/db", "'postgresql+psycopg://…' names no store that perdure knows"),
        ("sqlite://perdure.db", "names no SQLite file"),
        ("sqlite:///:memory:", "names no SQLite file"),
        ("sqlite:///folder", "cannot be opened"),
        ("sqlite:///missing/perdure.db", "missing does not exist"),
        ("sqlite:///flow.py", "not a usable SQLite database"),
        ("sqlite:///perdure.db?fast=1", "option that is not known"),
    ],
)
def test_a_store_that_cannot_be_one_is_refused(cli: Cli, url: str, complaint: str):
    cli.write("flow.py", FLOW)
    (cli.folder / "folder").mkdir()

    assert complaint in refused(cli, "run", "flow.py", "-i", "name=a", "--store", url)
    assert (cli.folder / "flow.py").read_text() == FLOW


def test_a_store_of_a_newer_perdure_is_left_alone(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a")
    connection = apsw.Connection(str(cli.folder / "perdure.db"))
    connection.execute("INSERT INTO schema_migrations VALUES (9999, 'later', 'x', 0)")
    connection.close()

    for command in (("list",), ("run", "flow.py", "-i", "name=b"), ("verify",)):
        assert "Upgrade perdure" in refused(cli, *command)


@pytest.mark.slow
def test_a_store_that_another_process_holds_is_named_with_its_holder(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a")
    connection = apsw.Connection(str(cli.folder / "perdure.db"))
    connection.execute("BEGIN IMMEDIATE")

    said = refused(cli, "run", "flow.py", "-i", "name=b")

    connection.execute("ROLLBACK")
    connection.close()
    assert "locked by another process" in said
    assert str(os.getpid()) in said


TOO_LARGE = "99999999999999999999"
TOO_LONG = "9" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "r1", "--after", TOO_LARGE),
        ("fork", "r1", "--version", TOO_LARGE),
        ("fork", "r1", "--at", TOO_LARGE),
        ("fork", "r1", "--at", TOO_LONG),
        ("show", "r1", "--at", TOO_LONG),
        ("diff", "r1", "--at", TOO_LONG),
        ("restore", "r1", TOO_LONG),
        ("promote", "r1", TOO_LARGE),
        ("versions", "diff", "hello", "1", TOO_LARGE),
        ("versions", "check", "r1", TOO_LARGE),
        ("versions", "delete", "hello", TOO_LARGE),
        ("compact", "--longer-than", TOO_LARGE),
        ("list", "--limit", TOO_LARGE),
        ("alias", "hello", "stable=1", "--revision", TOO_LARGE),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_a_number_that_no_database_can_hold_is_refused(cli: Cli, arguments: tuple[str, ...]):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a", "--run-id", "r1")

    assert "is too large: no " in refused(cli, *arguments)


def test_the_largest_number_that_a_database_can_hold_is_taken(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a", "--run-id", "r1")

    assert cli("events", "r1", "--after", str(2**63 - 1)).returncode == 0
    assert "No version 9223372036854775807 of workflow 'hello'" in refused(
        cli, "versions", "check", "r1", str(2**63 - 1)
    )


def test_a_store_that_may_not_be_written_is_refused(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a")

    with read_only(cli):
        done = cli("run", "flow.py", "-i", "name=b", before=obey_permissions)

    assert done.returncode == 2, done
    assert "perdure.db" in done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def read_only(cli: Cli) -> Iterator[None]:
    paths = [cli.folder / "perdure.db", cli.folder]
    for path in paths:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        yield
    finally:
        for path in reversed(paths):
            path.chmod(0o700)


def obey_permissions() -> None:
    """Make permissions count for this process and its children even if root owns it."""
    if os.geteuid() == 0:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--store", "sqlite:///closed/perdure.db"),
        ("run", "closed/flow.py"),
        ("validate", "closed/flow.py"),
        ("backup", "closed/copy.db"),
    ],
)
def test_what_is_out_of_reach_is_said_to_be(cli: Cli, arguments: tuple[str, ...]):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a")
    closed = cli.folder / "closed"
    closed.mkdir()
    closed.chmod(0)
    try:
        done = cli(*arguments, "--json", before=obey_permissions)
    finally:
        closed.chmod(0o700)

    assert done.returncode == 2, done
    assert "Permission denied" in json.loads(done.stdout)["error"]["message"]
    assert "closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_guessed_at(cli: Cli):
    assert "did you mean 'show'?" in refused(cli, "shwo")


def test_bench_needs_a_checkout(cli: Cli):
    done = cli("bench", "--help")

    assert done.returncode in (0, 2)
    assert "--workloads" in done.stdout or "checkout" in done.stderr
