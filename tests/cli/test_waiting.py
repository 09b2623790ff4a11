"""Runs that wait, from the command line: left, stayed with, signalled, paused and resumed by processes of their own."""

from __future__ import annotations

import signal
import subprocess
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.cli.asking import FLOW, asking
from tests.cli.conftest import GATED, Cli, read_until
from tests.cli.test_terminal import Screen


@pytest.fixture
def flow(cli: Cli) -> Cli:
    cli.write("flow.py", FLOW)
    return cli


def until_status(cli: Cli, run_id: str, *statuses: str) -> Any:
    """Wait until a run has one of these statuses, and return its document."""
    deadline = time.monotonic() + 30
    while True:
        document = cli.json("show", run_id)
        if document.get("status") in statuses:
            return document
        assert time.monotonic() < deadline, document
        time.sleep(0.05)


# A run that asks


def test_a_run_that_asks_is_left_with_the_command_that_answers(flow: Cli):
    done = asking(flow)

    assert done.stdout.splitlines()[-3:] == [
        "◫ awaiting input: asks 'Publish this?'",
        "answer 'Publish this?': perdure answer r1 true (or false)",
        "then continue: perdure resume r1",
    ]
    assert "approval asks 'Publish this?' (r1/approval/1)" in done.stdout


@pytest.mark.slow
def test_the_command_that_is_named_answers_and_the_run_goes_on(flow: Cli):
    said = next(line for line in asking(flow).stdout.splitlines() if line.startswith("answer"))
    command = said.partition(": perdure ")[2].partition(" (or")[0].split()

    answered = flow(*command, "--by", "ada")
    done = flow("resume", "r1")

    assert answered.returncode == 0
    assert answered.stdout == "question r1/approval/1 is answered: true. `perdure resume r1` goes on.\n"
    assert done.returncode == 0
    assert "approval was answered by ada: true" in done.stdout
    assert done.stdout.splitlines()[-1] == "published: All about lamps."
    assert flow("verify").returncode == 0


@pytest.mark.slow
def test_the_store_is_part_of_the_commands_that_are_named(flow: Cli):
    done = flow("run", "flow.py:letter", "--run-id", "r1", "--store", "sqlite:///other.db")

    assert "perdure answer r1 true --store sqlite:///other.db (or false)" in done.stdout


@pytest.mark.slow
def test_running_or_resuming_again_says_the_same_and_asks_nothing_twice(flow: Cli):
    asking(flow)

    again = flow("run", "flow.py:letter", "--run-id", "r1")
    resumed = flow("resume", "r1")

    assert (again.returncode, resumed.returncode) == (3, 3)
    assert "perdure answer r1 true" in again.stdout
    assert "perdure answer r1 true" in resumed.stdout
    assert [entry["type"] for entry in flow.json("events", "r1")].count("InteractionRequested") == 1


@pytest.mark.slow
def test_a_run_that_waits_is_shown_with_what_it_asks(flow: Cli):
    asking(flow)

    shown, document = flow("show", "r1").stdout, flow.json("show", "r1")

    assert "◫ approval asks 'Publish this?'" in shown
    assert "question r1/approval/1, which takes true or false" in shown
    assert "perdure answer r1 true (or false)" in shown
    assert "running" not in shown
    assert document["reason"] == "asks 'Publish this?'"
    assert document["wake_at"] is None
    (wait,) = document["waits"]
    assert wait.pop("since").endswith("Z")
    assert wait == {
        "id": "r1/approval/1",
        "node_id": "approval",
        "kind": "ask",
        "prompt": "Publish this?",
        "schema": {"type": "boolean"},
        "choices": [],
        "show": "All about lamps.",
        "signal": None,
        "deadline": None,
        "answered": False,
    }


@pytest.mark.slow
def test_what_is_answered_is_not_asked_for_again_though_nobody_drives_the_run(flow: Cli):
    asking(flow)
    flow("answer", "r1", "false")

    shown = flow("show", "r1").stdout

    assert flow("answer").stdout == "Nothing is asked.\n"
    assert flow.json("show", "r1")["waits"][0]["answered"] is True
    assert "answered, and to be taken up when the run is driven" in shown
    assert "perdure answer" not in shown
    assert shown.splitlines()[-1] == "continue: perdure resume r1"


@pytest.mark.slow
def test_a_list_says_what_runs_wait_for(flow: Cli):
    asking(flow)
    asking(flow, "hurried", "r2")

    listed = flow("list").stdout.splitlines()

    assert listed[0].split() == ["RUN", "WORKFLOW", "STATUS", "STARTED", "TOOK", "WHY"]
    assert listed[1].partition("asks ")[2].startswith("'Quick!'; wakes at ")
    assert listed[2].endswith("asks 'Publish this?'")
    assert [run["run_id"] for run in flow.json("list", "--status", "awaiting_input")] == ["r2", "r1"]
    assert flow.json("list")[0]["wake_at"] is not None


# Staying


@pytest.mark.slow
def test_a_deadline_that_passes_while_nobody_drives_answers_when_somebody_does(flow: Cli):
    told = asking(flow, "hurried").stdout
    assert "or stay with it, also for when its time has come: perdure resume r1 --stay" in told
    time.sleep(8.5)
    listed, shown, questions = flow("list").stdout, flow("show", "r1").stdout, flow("answer").stdout
    assert listed.splitlines()[1].endswith("asks 'Quick!'; its time is over")
    assert "soon asks 'Quick!'; its time is over" in shown
    assert "perdure answer" not in shown
    assert "its time is over  Quick!" in questions

    too_late = flow("answer", "r1", "me!")
    assert flow("answer").stdout == "Nothing is asked.\n"
    done = flow("resume", "r1")
    late = flow("answer", "r1/soon/1", "me!")

    assert too_late.returncode == 2
    assert "Question 'r1/soon/1' of run 'r1' was not answered in time." in too_late.stderr
    assert done.stdout.splitlines()[-1] == "too late"
    assert "soon was not answered in time; its default counts: too late" in done.stdout
    assert late.returncode == 2
    assert "is not asked any more: the run is completed" in late.stderr


AWAITING = """
from perdure import Context, node, workflow

@node
async def payment(ctx: Context) -> int:
    return await ctx.wait_for("paid", schema=int, timeout={timeout})

@workflow
def invoice() -> int:
    return payment()
"""


@pytest.mark.slow
def test_a_run_that_waits_for_a_signal_is_left_also_if_it_waits_for_some_time_only(cli: Cli):
    cli.write("flow.py", AWAITING.format(timeout=14 * 86_400))

    done = cli("run", "flow.py", "--run-id", "r1", "--json")
    again = cli("resume", "r1")
    cli("signal", "r1", "paid", "7")
    paid = cli("resume", "r1")

    assert (done.returncode, again.returncode, paid.returncode) == (3, 3, 0)
    assert again.stdout.splitlines()[-3:] == [
        "send signal 'paid': perdure signal r1 paid VALUE",
        "then continue: perdure resume r1",
        "or stay with it, also for when its time has come: perdure resume r1 --stay",
    ]
    assert paid.stdout.splitlines()[-1] == "7"


ASKS_AT_ONCE = """
from perdure import ask, workflow

@workflow
def asks_at_once() -> bool:
    return ask.named("approval")("Now?", schema=bool, deadline=86_400)
"""


@pytest.mark.parametrize("name", [(), ("--run-id", "r1")])
def test_what_a_run_asks_at_once_is_told_like_all_else(cli: Cli, name: tuple[str, ...]):
    cli.write("flow.py", ASKS_AT_ONCE)

    told = cli("run", "flow.py", *name).stdout

    assert "approval asks 'Now?', until " in told
    assert "run awaits input: asks 'Now?'; wakes at " in told


BESIDE = """
from perdure import Context, node, workflow

@node
async def payment(ctx: Context) -> int:
    return await {wait}

@node
async def naps(ctx: Context) -> int:
    await ctx.sleep(seconds=20)  # so long that the run rests meanwhile
    return 1

@node
def after(n: int) -> int:
    return n + 1

@workflow
def invoice() -> tuple[int, int]:
    return payment(), after(naps())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "rests", "command"),
    [
        (
            'ctx.wait_for("paid", schema=int, timeout=14 * 86_400)',
            "run suspended: waits for signal 'paid'; wakes at ",
            "send signal 'paid': perdure signal r1 paid VALUE",
        ),
        ('ctx.ask("Fine?", schema=int)', "run awaits input: asks 'Fine?'; wakes at ", "answer 'Fine?': perdure answer"),
    ],
    ids=["signal", "question"],
)
def test_a_run_that_sleeps_in_one_place_is_stayed_with_while_it_waits_for_somebody_in_another(
    cli: Cli, wait: str, rests: str, command: str
):
    cli.write("flow.py", BESIDE.replace("{wait}", wait))

    done = cli("run", "flow.py", "--run-id", "r1")

    assert done.returncode == 3
    lines = done.stdout.splitlines()
    place = {
        text: next(index for index, line in enumerate(lines) if text in line)
        for text in (rests, command, "naps completed")
    }
    assert place[rests] < place[command] < place["naps completed"]
    nodes = {node["id"]: node["status"] for node in cli.json("show", "r1")["nodes"]}
    assert (nodes["naps"], nodes["after"], nodes["payment"]) == ("completed", "completed", "suspended")


@pytest.mark.slow
def test_a_process_that_stays_with_a_signal_goes_on_when_its_time_is_over(cli: Cli):
    cli.write("flow.py", AWAITING.format(timeout=20))

    done = cli("run", "flow.py", "--run-id", "r1", "--stay")

    assert done.returncode == 1
    assert "run suspended: waits for signal 'paid'" in done.stdout
    assert "TimeoutError" in done.stdout


@pytest.mark.slow
def test_a_process_that_stays_goes_on_when_its_time_has_come(flow: Cli):
    done = flow("run", "flow.py:hurried", "--stay")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "too late"


@pytest.mark.slow
def test_a_process_that_stays_goes_on_when_another_answers(flow: Cli):
    staying = flow.start("run", "flow.py:letter", "--run-id", "r1", "--stay")
    lines = read_until(staying, "perdure answer r1 true (or false)")

    answered = flow("answer", "r1", "true")
    output, _ = staying.communicate(timeout=30)

    assert any("run awaits input" in line for line in lines)
    assert answered.stdout == "question r1/approval/1 is answered: true.\n"  # somebody goes on with it
    assert staying.returncode == 0
    assert output.splitlines()[-1] == "published: All about lamps."


@pytest.mark.slow
def test_a_process_that_stays_can_be_stopped(flow: Cli):
    staying = flow.start("run", "flow.py:letter", "--run-id", "r1", "--stay")
    read_until(staying, "perdure answer r1")

    staying.send_signal(signal.SIGINT)
    output, _ = staying.communicate(timeout=30)

    assert staying.returncode == 130
    assert "stopped; run r1 is kept as it is" in output
    assert "perdure answer r1 true (or false)" in output
    assert flow.json("show", "r1")["status"] == "awaiting_input"


@pytest.mark.slow
def test_the_picture_of_a_run_that_asks_shows_it_waiting(flow: Cli):
    screen = Screen(flow, "run", "flow.py:letter", "--run-id", "r1", "--stay", env={"NO_COLOR": "1"})

    screen.read_until("perdure answer r1 true (or false)")
    flow("answer", "r1", "true")
    exit_code = screen.close()

    assert exit_code == 0
    assert "◫ approval" in screen.text
    assert "asks 'Publish this?'" in screen.text
    assert "◫ 1 " in screen.text  # node is suspended
    assert "published: All about lamps." in screen.text


# Nodes that were suspended


def test_a_suspended_node_goes_on_with_a_value(flow: Cli):
    told = asking(flow, "stopped").stdout

    done = flow("resume", "r1", "--node", "stop", "--value", '"fine"')
    again = flow("resume", "r1", "--node", "stop", "--value", '"no"')

    assert "let stop go on: perdure resume r1 --node stop --value JSON" in told
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "here: fine"
    assert again.returncode == 2
    assert "The first answer counts." in again.stderr


@pytest.mark.slow
def test_a_node_that_is_not_suspended_cannot_be_told_to_go_on(flow: Cli):
    asking(flow, "stopped")

    wrong = flow("resume", "r1", "--node", "stpo")
    unread = flow("resume", "r1", "--node", "stop", "--value", "fine")
    alone = flow("resume", "r1", "--value", "1")

    assert [done.returncode for done in (wrong, unread, alone)] == [2, 2, 2]
    assert "Run 'r1' does not wait for 'stpo'" in wrong.stderr
    assert "--value is not JSON" in unread.stderr
    assert "--value '\"fine\"'" in unread.stderr
    assert "--value needs --node" in alone.stderr
    assert len(flow.json("show", "r1")["waits"]) == 1


# Signals


@pytest.mark.slow
def test_a_signal_that_came_before_is_taken(flow: Cli):
    staying = flow.start("run", "flow.py:paying", "--run-id", "r1", "--stay")
    read_until(staying, "till waits for signal 'paid'")

    sent = flow("signal", "r1", "paid", "7", "--id", "payment-1")
    output, _ = staying.communicate(timeout=30)
    late = flow("signal", "r1", "paid", "8")
    again = flow("signal", "r1", "paid", "7", "--id", "payment-1")

    assert sent.stdout == "signal paid sent to run r1\n"
    assert "run received signal 'paid': 7" in output
    assert output.splitlines()[-1] == "7"
    assert late.returncode == 2
    assert "Run 'r1' has ended: it is completed. Signal 'paid' was not sent: nobody would take it." in late.stderr
    assert (again.returncode, again.stdout) == (0, "signal paid was sent to run r1 before; once more changes nothing\n")


def test_signals_are_kept_until_somebody_waits_and_count_once(flow: Cli):
    asking(flow)

    first = flow.json("signal", "r1", "paid", '{"amount": 12}', "--id", "a")
    again = flow.json("signal", "r1", "paid", '{"amount": 12}', "--id", "a")
    told = flow("signal", "r1", "paid", '{"amount": 12}', "--id", "a")
    plain = flow("signal", "r1", "hello", "some words")
    flow("signal", "r1", "nothing")
    flow("resume", "r1")

    assert first == {"run_id": "r1", "signal": "paid", "value": {"amount": 12}, "sent": True}
    assert again == first | {"sent": False}
    assert told.stdout == (
        "signal paid was sent to run r1 before; once more changes nothing. `perdure resume r1` goes on.\n"
    )
    assert plain.stdout == "signal hello sent to run r1. `perdure resume r1` goes on.\n"
    received = [entry for entry in flow.json("events", "r1") if entry["type"] == "SignalReceived"]
    assert [(entry["name"], entry["value"]) for entry in received] == [
        ("paid", {"amount": 12}),
        ("hello", "some words"),
        ("nothing", None),
    ]
    assert flow("verify").returncode == 0


def test_a_signal_for_which_a_run_does_not_wait_is_kept_and_said_to_be(flow: Cli):
    flow("run", "flow.py:paying", "--run-id", "r1")

    told = flow("signal", "r1", "payed", "7")

    assert told.stdout == "signal payed sent to run r1, and is kept: the run waits for paid\n"


@pytest.mark.slow
def test_a_signal_needs_a_run_and_a_name(flow: Cli):
    asking(flow)

    assert flow("signal", "r9", "paid").returncode == 2
    assert flow("signal", "r1").returncode == 2
    assert flow("signal", "r1", "").returncode == 2
    assert flow("signal", "r1", "paid", "--id", "").returncode == 2


# Time


@pytest.mark.slow
def test_a_run_that_sleeps_is_stayed_with_and_says_until_when(flow: Cli):
    done = flow("run", "flow.py:sleepy")

    assert done.returncode == 0
    assert "nap sleeps 1.0 s, until " in done.stdout
    assert done.stdout.splitlines()[-1] == "rested"


@pytest.mark.slow
def test_a_run_that_hibernates_until_some_time_is_woken_by_the_same_process(flow: Cli):
    flow.write("flow.py", FLOW.replace("ctx.sleep(1)", "ctx.sleep(17)"))

    done = flow("run", "flow.py:sleepy", "--run-id", "r1")

    assert done.returncode == 0
    assert "run suspended: sleeps, until " in done.stdout
    assert done.stdout.splitlines()[-1] == "rested"


@pytest.mark.slow
def test_a_run_that_waits_for_items_is_left_with_the_command_that_sends_one(flow: Cli):
    done = flow("run", "flow.py:fed", "--run-id", "r1")

    assert done.returncode == 3
    assert "give numbers an item: perdure send r1 numbers ITEM" in done.stdout
    flow("send", "r1", "numbers", "1", "2", "--close")
    assert flow.json("resume", "r1")["outputs"] == {"output": [2, 4]}


# Pausing


@pytest.fixture
def gated(cli: Cli) -> subprocess.Popen[str]:
    cli.write("flow.py", GATED)
    running = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(running, "gate started")
    return running


@pytest.mark.slow
def test_a_paused_run_keeps_what_its_running_nodes_come_to(cli: Cli, gated: subprocess.Popen[str]):
    pausing = cli.start("pause", "r1", "--reason", "lunch", "--grace", "60")
    until_status(cli, "r1", "pausing")
    cli.write("open", "")
    paused, _ = pausing.communicate(timeout=30)
    output, _ = gated.communicate(timeout=30)
    before = cli.ledger()
    done = cli("resume", "r1")

    assert paused == "run r1 ◫ paused: lunch\n"
    assert pausing.returncode == 0
    assert gated.returncode == 3
    assert "continue: perdure resume r1" in output
    assert before == ["first", "gate"]
    assert done.stdout.splitlines()[-1] == "3"
    assert cli.ledger() == ["first", "gate", "last"]
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_a_run_that_is_paused_at_once_repeats_what_was_stopped(cli: Cli, gated: subprocess.Popen[str]):
    paused = cli.json("pause", "r1", "--now")
    gated.communicate(timeout=30)
    listed = cli("list", "--status", "paused").stdout
    cli.write("open", "")
    done = cli("resume", "r1")

    assert paused["status"] == "paused"
    assert gated.returncode == 3
    assert "◫ paused" in listed
    assert done.returncode == 0
    assert cli.ledger() == ["first", "gate", "gate", "last"]
    at = {entry["type"]: datetime.fromisoformat(entry["at"]) for entry in cli.json("events", "r1")}
    assert at["RunPaused"] - at["RunPausing"] < timedelta(seconds=8)  # the usual grace period is 10 seconds


@pytest.mark.slow
def test_many_runs_are_paused_and_resumed_by_filter(cli: Cli, gated: subprocess.Popen[str]):
    none = cli("pause", "--workflow", "other")
    told = cli("pause", "--workflow", "gated", "--status", "running", "--now")
    until_status(cli, "r1", "paused")
    gated.communicate(timeout=30)
    again = cli.json("pause", "--all")
    resumed = cli.json("resume", "--all", "--reason", "back")
    cli.write("open", "")
    done = cli("resume", "r1")

    assert none.stdout == "No run of workflow other is to be paused.\n"
    assert told.stdout == "1 run told to be paused:\n  r1\n"
    assert again == {"runs": [], "told": "pause"}
    assert resumed == {"runs": ["r1"], "told": "resume"}
    assert done.returncode == 0
    assert "run resumed: back" in done.stdout


@pytest.mark.slow
def test_a_run_that_nobody_drives_is_paused_by_whoever_takes_it_up(flow: Cli):
    asking(flow)

    told = flow("pause", "r1")
    flow("answer", "r1", "true")
    done = flow("resume", "r1")

    assert told.returncode == 0
    assert "No engine drives it; whoever takes it up will pause it before anything else." in told.stdout
    types = [entry["type"] for entry in flow.json("events", "r1")]
    assert types.index("RunPaused") < types.index("InteractionResponded")
    assert done.stdout.splitlines()[-1] == "published: All about lamps."


@pytest.mark.slow
def test_a_run_that_was_told_to_go_on_is_paused_again_by_a_later_word(cli: Cli, gated: subprocess.Popen[str]):
    cli("pause", "r1", "--now")
    gated.communicate(timeout=30)
    cli("resume", "--all")

    again = cli("pause", "r1", "--reason", "after all")
    twice = cli("pause", "r1")
    of_all = cli.json("pause", "--all")

    assert again.returncode == 0
    assert "It was told to go on before; whoever takes that up will pause it again." in again.stdout
    assert twice.stdout == again.stdout
    assert of_all["runs"] == []
    told = [word["kind"] for word in cli.json("show", "r1")["told"]]
    assert told == ["resume", "pause"]
    cli("resume", "--all")
    assert cli.json("pause", "--all")["runs"] == ["r1"]


@pytest.mark.slow
def test_a_run_that_has_ended_stays_as_it_is(flow: Cli):
    flow("run", "flow.py:sleepy", "--run-id", "r1")

    done = flow("pause", "r1")

    assert done.returncode == 0
    assert "completed" in done.stdout
    assert done.stdout.endswith("(it had ended before)\n")


WRONG_USE = (
    ("pause",),
    ("pause", "r1", "--all"),
    ("pause", "r1", "--status", "running"),
    ("pause", "r1", "--now", "--grace", "3"),
    ("pause", "r1", "--grace", "-1"),
    ("pause", "--status", "completed"),
    ("pause", "r9"),
    ("resume",),
    ("resume", "r1", "--workflow", "letter"),
    ("resume", "--all", "--stay"),
    ("resume", "--all", "--node", "stop"),
    ("answer", "r1", "true", "false"),
    ("answer", "--limit", "0"),
)


@pytest.mark.slow
def test_wrong_use_changes_nothing(flow: Cli):
    asking(flow)
    before = flow.json("show", "r1")

    done = {words: flow(*words) for words in WRONG_USE}

    assert {words: told.returncode for words, told in done.items()} == dict.fromkeys(WRONG_USE, 2)
    assert all("Error:" in told.stderr and "Traceback" not in told.stderr for told in done.values())
    assert flow.json("show", "r1") == before


@pytest.mark.slow
def test_what_a_run_was_told_while_nobody_drove_it_is_shown(flow: Cli):
    asking(flow)
    assert flow("pause", "r1", "--reason", "for the night").returncode == 0

    shown, document = flow("show", "r1").stdout, flow.json("show", "r1")

    assert "to pause: for the night" in shown
    assert "and not taken up yet" in shown
    (told,) = document["told"]
    assert told.pop("at").endswith("Z")
    assert told == {"kind": "pause", "reason": "for the night"}
    flow("resume", "r1")
    assert flow.json("show", "r1")["told"] == []
