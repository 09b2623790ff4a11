"""`perdure list`, `show`, `events`, `logs`: what they print, for people and for programs, and that they drive nothing."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime

import pytest

from tests.cli.conftest import FAILING, FLOW, GATED, Cli, read_until

STAGED = """
from perdure import node, stage, workflow

@node
def one(n: int) -> int:
    return n

@node
def never(n: int) -> int:
    return n

@node
def bad(n: int) -> int:
    raise ValueError("boom")

@workflow
def staged(n: int) -> int:
    with stage("early"):
        n = one(n)
    with stage("late"):
        return never(bad(n))
"""


@pytest.fixture
def ended(cli: Cli) -> Cli:
    """A store with a completed and a failed run."""
    cli.write("flow.py", FLOW)
    cli.write("staged.py", STAGED)
    cli("run", "flow.py", "-i", "name=Ada", "--run-id", "good-1")
    cli("run", "staged.py", "-i", "n=1", "--run-id", "bad-1")
    return cli


def test_list_shows_runs_newest_first(ended: Cli):
    lines = ended("list").stdout.splitlines()

    assert lines[0].split() == ["RUN", "WORKFLOW", "STATUS", "STARTED", "TOOK"]
    assert [line.split()[0] for line in lines[1:]] == ["bad-1", "good-1"]
    assert "staged v1" in lines[1]
    assert "✗ failed" in lines[1]


def test_list_can_be_narrowed(ended: Cli):
    assert [run["run_id"] for run in ended.json("list", "--status", "failed")] == ["bad-1"]
    assert [run["run_id"] for run in ended.json("list", "--workflow", "hello")] == ["good-1"]
    assert [run["run_id"] for run in ended.json("list", "--limit", "1")] == ["bad-1"]
    assert ended.json("list", "--status", "cancelled") == []
    assert "No runs." in ended("list", "--status", "cancelled").stdout
    assert "… and more" in ended("list", "--limit", "1").stdout


def test_list_gives_documents(ended: Cli):
    run = ended.json("list")[1]

    assert run.keys() == {
        *("run_id", "workflow", "version", "status", "reason", "created_at", "started_at", "ended_at"),
        *("wake_at", "deleted_at", "tags", "interrupted"),
    }
    assert datetime.fromisoformat(run["created_at"]).tzinfo == UTC


def test_show_gives_exactly_what_the_documentation_says(ended: Cli):
    run = ended.json("show", "bad-1")

    assert list(run) == [
        *("run_id", "workflow", "version", "status", "inputs", "outputs", "error", "branch", "progress", "nodes"),
        *("reason", "wake_at", "waits", "checkpoint", "deleted_at", "tags", "journal", "told", "interrupted"),
    ]
    assert (run["run_id"], run["workflow"], run["version"], run["status"]) == ("bad-1", "staged", 1, "failed")
    assert run["inputs"] == {"n": 1}
    assert run["outputs"] is None
    assert run["branch"] == 1
    assert run["progress"] == {
        "done": 1,
        "total": 3,
        **dict.fromkeys(("percent", "remaining_seconds", "remaining_low_seconds", "remaining_high_seconds")),
        "based_on_runs": None,
        "overdue": [],
        "waits": False,
    }
    assert run["error"].keys() == {"node_id", "error_class", "type", "message", "traceback"}
    assert (run["error"]["node_id"], run["error"]["message"]) == ("bad", "boom")


def test_show_lists_every_node_in_topological_order(ended: Cli):
    nodes = ended.json("show", "bad-1")["nodes"]

    assert [node["id"] for node in nodes] == ["one", "bad", "never"]
    keys = ["id", "type", "stage", "status", "attempt", "started_at", "ended_at", "error", "stream"]
    assert all(list(node) == [*keys, "duration_seconds", "usual_seconds"] for node in nodes)
    assert [node["stage"] for node in nodes] == ["early", "late", "late"]
    assert [node["status"] for node in nodes] == ["completed", "failed", "idle"]
    assert [node["attempt"] for node in nodes] == [1, 1, 0]
    assert nodes[1]["error"]["message"] == "boom"
    assert nodes[0]["error"] is nodes[2]["error"] is nodes[2]["started_at"] is None
    assert nodes[0]["started_at"].endswith("Z")
    assert datetime.fromisoformat(nodes[0]["started_at"]) <= datetime.fromisoformat(nodes[0]["ended_at"])


def test_show_draws_the_run_and_says_what_is_wrong(ended: Cli):
    shown = ended("show", "bad-1").stdout

    assert "staged version 1  ✗ failed" in shown
    assert "n = 1" in shown
    assert "✓ one" in shown
    assert "late" in shown.splitlines()
    assert "✗ bad: ValueError: boom" in shown
    assert 'raise ValueError("boom")' in shown
    assert "perdure events bad-1" in shown
    assert "\x1b" not in shown


def test_the_width_of_a_pipe_can_be_chosen(ended: Cli):
    shown = ended("show", "bad-1", env={"COLUMNS": "70"}).stdout

    assert max(len(line) for line in shown.splitlines() if "┈" in line) <= 70


def test_large_values_are_shown_by_reference(cli: Cli):
    cli.write("flow.py", FLOW.replace('f"Hello, {name}!"', '"x" * 400_000').replace("-> int", "-> str"))
    cli.write(
        "big.py",
        "from perdure import node, workflow\n@node\ndef big() -> str:\n    return 'x' * 400_000\n"
        "@workflow\ndef large() -> str:\n    return big()\n",
    )
    cli("run", "big.py", "--run-id", "big")

    output = cli.json("show", "big")["outputs"]["output"]

    assert output["$"] == "blob"
    assert output["v"]["size"] > 400_000
    assert "sha256" in cli("show", "big").stdout
    assert cli("verify", "big").returncode == 0


def test_events_are_printed_in_order(ended: Cli):
    lines = ended("events", "good-1").stdout.splitlines()

    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0].endswith("run created from hello, version 1")
    assert "run completed in" in lines[-1]


def test_events_are_documents_too(ended: Cli):
    events = ended.json("events", "good-1")
    later = ended.json("events", "good-1", "--after", "5")

    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "RunCreated"
    assert events[0]["inputs"] == {"name": "Ada", "factor": 1}
    assert events[-1]["outputs"] == {"output": 11}
    assert later == events[5:]


@pytest.mark.slow
def test_events_can_be_followed_until_the_run_has_ended(cli: Cli):
    cli.write("flow.py", GATED)
    running = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(running, "gate started")
    following = cli.start("events", "r1", "--follow", "--json")
    seen = read_until(following, '"type":"NodeStarted","node_id":"gate"')

    cli.write("open", "")
    rest = following.communicate(timeout=30)[0].splitlines()

    assert following.returncode == 0
    events = [json.loads(line) for line in [*seen, *rest]]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "RunCompleted"


def test_following_what_has_ended_ends(ended: Cli):
    assert ended("events", "good-1", "--follow").returncode == 0
    assert ended("events", "good-1", "--follow", "--after", "1000").stdout == ""


def test_logs_are_printed(ended: Cli):
    assert ended("logs", "good-1").stdout.splitlines()[0].endswith("INFO greeting: greeted name=Ada")
    (line,) = ended.json("logs", "good-1")
    assert line.keys() == {"at", "node_id", "attempt", "level", "message", "fields"}
    assert (line["node_id"], line["message"], line["fields"]) == ("greeting", "greeted", {"name": "Ada"})
    assert ended("logs", "good-1", "--follow").stdout.count("greeted") == 1


def test_a_run_is_found_by_the_beginning_of_its_id(ended: Cli):
    ended("run", "flow.py", "-i", "name=Bo", "--run-id", "good-12")

    assert ended.json("show", "b")["run_id"] == "bad-1"
    assert ended.json("show", "good-1")["run_id"] == "good-1"
    ambiguous = ended("show", "good")
    assert ambiguous.returncode == 2
    assert "good-1\n" in ambiguous.stderr
    assert "good-12\n" in ambiguous.stderr


@pytest.mark.parametrize("command", ["show", "events", "logs", "resume", "cancel", "verify"])
def test_an_unknown_run_is_wrong_use(ended: Cli, command: str):
    done = ended(command, "nothing")

    assert done.returncode == 2
    assert "There is no run 'nothing'" in done.stderr
    assert ended.json(command, "nothing")["error"]["code"] == "run_not_found"


@pytest.mark.parametrize("command", [("list",), ("show", "r1"), ("events", "r1"), ("verify",), ("cancel", "r1")])
def test_looking_does_not_create_a_store(cli: Cli, command: tuple[str, ...]):
    done = cli(*command)

    assert done.returncode == 2
    assert "There is no store" in done.stderr
    assert list(cli.folder.iterdir()) == []


def test_looking_drives_nothing(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")
    process.send_signal(signal.SIGKILL)
    process.wait()
    cli.write("open", "")
    before = cli.json("events", "r1")

    for command in (("list",), ("show", "r1"), ("logs", "r1"), ("verify",)):
        cli(*command)

    assert cli.json("events", "r1") == before
    assert cli.ledger() == ["first", "gate"]


def test_what_a_run_says_cannot_command_the_terminal(cli: Cli):
    cli.write("flow.py", FAILING.replace("today", "\\x1b]0;owned\\x07\\x1b[2J"))
    done = cli("run", "flow.py", "--run-id", "r1")

    for printed in (done.stdout, cli("show", "r1").stdout, cli("events", "r1").stdout):
        assert "owned" in printed
        assert "\x1b" not in printed
        assert "\x07" not in printed
