"""`perdure triggers`: what feeds runs from outside is listed, fed and foretold, without their code."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.cli.conftest import Cli

FLOW = """
import asyncio
from perdure import Stream, Trigger, TriggerInput, collect, folder, inbox, node, redis_stream, schedule, workflow

@node
class Waves(Trigger[int, int]):
    height: int = 3
    async def inputs(self, ctx, cursor):
        for number in range((cursor or 0) + 1, 3):
            yield TriggerInput(number, id=str(number), cursor=number)
        await ctx.sleep(days=400)

@node
def generated():
    yield 1

@node
def seen(item) -> str:
    return str(item)

@workflow
def desk(words: Stream[str]) -> dict:
    return {
        "numbers": collect(seen.map(inbox.named("numbers")(int))),
        "letters": collect(seen.map(inbox.named("letters")(str, order="text"))),
        "nights": collect(seen.map(schedule("30 2 * * *", tz="Europe/Berlin", catch_up="all"))),
        "waves": collect(seen.map(Waves(height=4))),
        "words": collect(seen.map(words)),
        "plain": collect(seen.map(generated())),
    }

@workflow
def short() -> list:
    return collect(seen.map(inbox.named("mail")()))
"""


@pytest.fixture
def desk(cli: Cli) -> Cli:
    """The command line, in a folder where a run waits for what comes from outside."""
    cli.write("flow.py", FLOW)
    drive_until(cli, {"Waves": 2, "schedule": 0}, "run", "flow.py:desk", "--run-id", "desk")
    return cli


def drive_until(cli: Cli, inputs: dict[str, int], *words: str) -> None:
    """Have a process drive the run until so many inputs have come for triggers, and its schedules wait; end it then."""
    process = cli.start(*words)
    give_up_at = time.monotonic() + 60
    while not have_come(found := cli.json("triggers", "desk"), inputs):
        assert time.monotonic() < give_up_at, f"not {inputs}, but {found}"
    process.terminate()
    process.communicate(timeout=30)


def have_come(found: Any, inputs: dict[str, int]) -> bool:
    triggers = by_node(found) if isinstance(found, list) else {}  # an error, as long as there is no such run
    return all(
        node in triggers
        and triggers[node]["inputs"] == number
        and (triggers[node]["type"] != "perdure.schedule" or triggers[node]["next_at"] is not None)
        for node, number in inputs.items()
    )


def by_node(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {trigger["node_id"]: trigger for trigger in found}


@pytest.mark.slow
def test_the_triggers_of_runs_are_listed_with_how_far_they_are(desk: Cli) -> None:
    found = by_node(desk.json("triggers", "desk"))
    table = desk("triggers")

    assert found.keys() == {"numbers", "letters", "schedule", "Waves"}
    assert found["schedule"] == {
        "run_id": "desk",
        "workflow": "desk",
        "run_status": found["schedule"]["run_status"],
        "node_id": "schedule",
        "type": "perdure.schedule",
        "config": {"cron": "30 2 * * *", "tz": "Europe/Berlin", "catch_up": "all"},
        "status": "suspended",
        "cursor": None,
        "inputs": 0,
        "next_at": found["schedule"]["next_at"],
    }
    assert found["schedule"]["next_at"].endswith(":30:00.000000Z")
    assert (found["Waves"]["type"], found["Waves"]["cursor"], found["Waves"]["inputs"]) == ("flow.Waves", 2, 2)
    lines = {line.split()[1]: line for line in table.stdout.splitlines()}
    assert "schedule 30 2 * * * Europe/Berlin, catch up: all" in lines["schedule"]
    assert "inbox of integer" in lines["numbers"]
    assert "flow.Waves height=4" in lines["Waves"]


@pytest.mark.slow
def test_an_inbox_is_fed_once_for_each_id(desk: Cli) -> None:
    first = desk("triggers", "fire", "desk", "numbers", "7", "--id", "a", "--cursor", "5")
    again = desk("triggers", "fire", "desk", "numbers", "7", "--id", "a", "--cursor", "5")
    other = desk("triggers", "fire", "desk", "numbers", "8", "--id", "a", "--cursor", "6")
    text = desk.json("triggers", "fire", "desk", "letters", "7")
    piped = desk.json("triggers", "fire", "desk", "letters", "-", stdin="from elsewhere")

    assert first.stdout == "input a for numbers of run desk: delivered. `perdure resume desk` goes on.\n"
    assert again.stdout == "input a for numbers of run desk: was delivered before, and has no effect\n"
    assert other.stdout == again.stdout
    assert text["delivered"]
    assert text["input_id"] != piped["input_id"]


WRONG = [
    (("numbers", "seven"), "does not fit"),
    (("letters",), "does not fit"),
    (("nothing", "7"), "there is no such node. Inboxes of the run: numbers, letters"),
    (("schedule", "7"), "is no inbox: it is a schedule"),
    (("words", "7"), "is an input, and no inbox: perdure send desk words ITEM"),
    (("numbers", "7", "--cursor", "x", "--id", "b"), "no cursor: it takes numbers"),
    (("numbers", "7", "--id", ""), "it is empty"),
]


@pytest.mark.slow
def test_what_cannot_be_delivered_is_refused(desk: Cli) -> None:
    assert desk("triggers", "fire", "desk", "numbers", "1", "--id", "first", "--cursor", "9").returncode == 0
    drive_until(desk, {"numbers": 1}, "resume", "desk")

    for words, complaint in (*WRONG, (("numbers", "7", "--cursor", "9"), "is not after '9'")):
        done = desk("triggers", "fire", "desk", *words)
        assert done.returncode == 2, (words, done)
        assert complaint in done.stderr, (words, done.stderr)
    assert by_node(desk.json("triggers", "desk"))["numbers"]["inputs"] == 1
    assert desk("triggers", "fire", "nobody", "numbers", "7").returncode == 2


@pytest.mark.slow
def test_a_run_that_has_ended_is_shown_when_it_is_named_and_takes_nothing(cli: Cli) -> None:
    cli.write("flow.py", FLOW)
    assert cli("run", "flow.py:short", "--run-id", "s").returncode == 3
    assert cli("cancel", "s").returncode == 0

    fired = cli("triggers", "fire", "s", "mail", "x")

    assert cli("triggers").stdout == "No triggers.\n"
    assert [trigger["run_status"] for trigger in cli.json("triggers", "list", "s")] == ["cancelled"]
    assert fired.returncode == 2
    assert "is closed" in fired.stderr


@pytest.mark.slow
def test_no_more_are_listed_than_are_wanted(cli: Cli) -> None:
    cli.write("flow.py", FLOW)
    for number in range(2):
        assert cli("run", "flow.py:short", "--run-id", f"s{number}").returncode == 3

    assert len(cli.json("triggers", "--limit", "1")) == 1
    assert cli("triggers", "--limit", "1").stdout.splitlines()[-1] == "… and more: --limit 5"


@pytest.mark.slow
def test_what_a_document_leaves_open_by_null_is_left_open(cli: Cli) -> None:
    cli.write(
        "open.yaml",
        """
name: open
nodes:
  - {id: nightly, type: perdure.schedule, data: {cron: 30 2 * * *, every: null}}
  - {id: box, type: perdure.inbox, data: {schema: null}}
edges:
  - {source: nightly, target: $output, targetHandle: nights, mode: collect}
  - {source: box, target: $output, targetHandle: mail, mode: collect}
""",
    )
    drive_until(cli, {"nightly": 0}, "run", "open.yaml", "--run-id", "desk")

    assert cli("triggers", "fire", "desk", "box", "5").returncode == 0
    table = cli("triggers")
    assert table.returncode == 0
    assert "schedule 30 2 * * * UTC" in table.stdout


@pytest.mark.parametrize("after", ["9999-12-31T23:59", "0001-01-01T00:00+14:00"])
def test_times_that_no_calendar_has_are_wrong_use(cli: Cli, after: str) -> None:
    told = cli("triggers", "next", "* * * * *", "--after", after)

    assert told.returncode == 2
    assert "--after" in told.stderr


@pytest.mark.slow
def test_passwords_are_not_shown(cli: Cli) -> None:
    redis = {"key": "orders", "url": "redis://ada:secret@localhost:1/0"}
    cli.write(
        "redis.json",
        json.dumps(
            {
                "name": "r",
                "nodes": [{"id": "o", "type": "perdure.redis_stream", "data": redis}],
                "edges": [{"source": "o", "target": "$output", "targetHandle": "output", "mode": "collect"}],
            }
        ),
    )
    process = cli.start("run", "redis.json", "--run-id", "r")
    while not isinstance(found := cli.json("triggers"), list) or not found:
        assert process.poll() is None
    table = cli("triggers")

    assert found[0]["config"]["url"] == "redis://ada:***@localhost:1/0"
    assert "secret" not in table.stdout


def test_the_times_of_a_schedule_are_told(cli: Cli) -> None:
    said = cli("triggers", "next", "30 2 * * *", "--tz", "Europe/Berlin", "--after", "2026-10-24T12:00", "--count", "2")
    times = cli.json("triggers", "next", "@daily", "--after", "2026-01-01T00:00:00+02:00", "--count", "1")

    assert said.stdout == "Sun 2026-10-25 02:30:00+02:00\nMon 2026-10-26 02:30:00+01:00\n"
    assert times == ["2026-01-01T00:00:00+00:00"]
    assert len(cli.json("triggers", "next", "* * * * *")) == 5


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("61 * * * *",), "no cron expression"),
        (("@daily", "--tz", "Mars"), "no time zone 'Mars'"),
        (("@daily", "--after", "soon"), "--after is no time: 'soon'"),
        (("@daily", "--count", "0"), "--count"),
        ((), "CRON"),
    ],
)
def test_what_is_no_schedule_has_no_times(cli: Cli, words: tuple[str, ...], complaint: str) -> None:
    done = cli("triggers", "next", *words)

    assert done.returncode == 2
    assert complaint in done.stderr
