"""`perdure resume` and `perdure cancel`: what is left by kills and signals goes on, or ends for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import GATED, Cli, read_until

PROCESS_GATED = """
import os, time
from perdure import node, workflow

@node(executor="process")
def gate() -> int:
    open("inside", "w").close()
    while not os.path.exists("open"):
        time.sleep(0.01)
    return 1

@workflow
def gated() -> int:
    return gate()
"""

DEADLY = """
import os
from perdure import node, workflow

@node
def deadly() -> int:
    if not os.path.exists("cured"):
        os.kill(os.getpid(), 9)
    return 1

@workflow
def death() -> int:
    return deadly()
"""


def killed_at_the_gate(cli: Cli, *arguments: str, number: int = signal.SIGKILL) -> int:
    """Run the gated workflow as `r1` until it waits at its gate, send the signal, and return the exit code."""
    process = cli.start("run", "flow.py", "--run-id", "r1", *arguments)
    read_until(process, "gate started")
    process.send_signal(number)
    return process.wait(timeout=30)


@pytest.mark.slow
def test_a_killed_run_goes_on_in_another_process(cli: Cli):
    cli.write("flow.py", GATED)
    assert killed_at_the_gate(cli) == -signal.SIGKILL
    cli.write("open", "")

    done = cli("resume", "r1")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "3"
    assert cli.ledger() == ["first", "gate", "gate", "last"]
    assert "gate lost attempt 1" in done.stdout
    assert cli("verify").returncode == 0


def test_running_the_same_id_again_goes_on_too(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("open", "")

    done = cli("run", "flow.py", "--run-id", "r1")

    assert done.returncode == 0
    assert cli.ledger() == ["first", "gate", "gate", "last"]


def test_a_killed_run_is_shown_as_interrupted(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)

    assert "running, interrupted" in cli("list").stdout
    shown = cli("show", "r1").stdout
    assert "no engine drives it" in shown
    assert "continue: perdure resume r1" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_running_bodies_end_and_says_how_to_go_on(cli: Cli, number: int, exit_code: int):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")

    process.send_signal(number)
    read_until(process, "stopping: waiting for 1 running node")
    cli.write("open", "")
    printed = process.communicate(timeout=30)[0]

    assert process.returncode == exit_code
    assert "continue: perdure resume r1" in printed
    assert cli.ledger() == ["first", "gate"]
    assert cli("resume", "r1").returncode == 0
    assert cli.ledger() == ["first", "gate", "last"]


@pytest.mark.slow
def test_a_signal_is_answered_also_where_a_document_is_wanted(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1", "--json")
    while not (cli.folder / "ledger.txt").exists() or "gate" not in cli.ledger():
        assert process.poll() is None
    time.sleep(0.5)  # until it is watched

    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == "stopping: waiting for 1 running node to end (again to stop at once)\n"
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=5) == 130


@pytest.mark.slow
def test_programs_are_told_which_runs_nobody_drives(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")

    def told() -> list[bool]:
        return [cli.json("list")[0]["interrupted"], cli.json("show", "r1")["interrupted"]]

    assert told() == [False, False]
    process.kill()
    process.wait()
    assert told() == [True, True]
    cli.write("open", "")
    assert cli("resume", "r1").returncode == 0
    assert told() == [False, False]


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")
    process.send_signal(signal.SIGINT)
    read_until(process, "stopping")

    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=5) == 130
    cli.write("open", "")
    assert cli("resume", "r1").returncode == 0


@pytest.mark.slow
def test_a_signal_that_was_switched_off_stays_so(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1", ignoring=signal.SIGHUP)
    read_until(process, "gate started")

    process.send_signal(signal.SIGHUP)
    cli.write("open", "")

    assert process.wait(timeout=30) == 0


@pytest.mark.slow
def test_ctrl_c_reaches_the_whole_group_and_bodies_in_other_processes_still_end(cli: Cli):
    cli.write("flow.py", PROCESS_GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")
    while not (cli.folder / "inside").exists():
        assert process.poll() is None

    os.killpg(process.pid, signal.SIGINT)
    read_until(process, "stopping")
    cli.write("open", "")

    printed = process.communicate(timeout=30)[0]
    assert "✓ completed" in printed
    assert process.returncode == 0


@pytest.mark.slow
def test_a_hint_names_the_store_that_was_given(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r 1", "--store", "sqlite:///other.db")
    read_until(process, "gate started")
    process.send_signal(signal.SIGTERM)
    read_until(process, "stopping")
    cli.write("open", "")

    assert "perdure resume 'r 1' --store sqlite:///other.db" in process.communicate(timeout=30)[0]


@pytest.mark.slow
def test_a_run_that_another_process_drives_is_watched(cli: Cli):
    cli.write("flow.py", GATED)
    driving = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(driving, "gate started")
    watching = cli.start("resume", "r1")
    read_until(watching, "run r1 of gated")

    cli.write("open", "")

    assert driving.wait(timeout=30) == watching.wait(timeout=30) == 0
    assert cli.ledger() == ["first", "gate", "last"]


@pytest.mark.slow
def test_whoever_watches_takes_over_when_the_driving_process_dies(cli: Cli):
    cli.write("flow.py", GATED)
    driving = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(driving, "gate started")
    watching = cli.start("resume", "r1")
    read_until(watching, "run r1 of gated")

    driving.kill()
    read_until(watching, "taken over")
    cli.write("open", "")

    assert watching.wait(timeout=30) == 0
    assert cli.ledger() == ["first", "gate", "gate", "last"]


@pytest.mark.slow
def test_a_run_that_keeps_killing_its_process_is_quarantined_and_can_be_tried_again(cli: Cli):
    cli.write("flow.py", DEADLY)
    cli("run", "flow.py", "--run-id", "r1")
    for _ in range(5):
        assert cli("resume", "r1").returncode == -signal.SIGKILL

    quarantined = cli("resume", "r1")
    as_is = cli("run", "flow.py", "--run-id", "r1")
    cli.write("cured", "")
    cured = cli("resume", "r1")

    assert quarantined.returncode == as_is.returncode == 3
    assert "quarantined" in as_is.stdout
    assert "deadly" in as_is.stdout
    assert "try again: perdure resume r1" in as_is.stdout
    assert cured.returncode == 0
    assert cli("verify").returncode == 0


def test_a_finished_run_is_not_run_again(cli: Cli):
    cli.write("flow.py", GATED)
    cli.write("open", "")
    cli("run", "flow.py", "--run-id", "r1")
    (cli.folder / "flow.py").unlink()

    done = cli("resume", "r1")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "3"
    assert cli.ledger() == ["first", "gate", "last"]


@pytest.mark.slow
def test_code_outside_of_the_current_folder_is_not_loaded_unasked(cli: Cli):
    cli.write("inner/flow.py", GATED)
    process = cli.start("run", "inner/flow.py", "--run-id", "r1")
    read_until(process, "gate started")
    process.kill()
    process.wait()
    cli.write("elsewhere/open", "")
    elsewhere, store = cli.folder / "elsewhere", f"sqlite:///{cli.folder}/perdure.db"

    refused = cli("resume", "r1", "--store", store, cwd=elsewhere)
    named = cli("resume", "r1", "--store", store, "--import", "../inner/flow.py", cwd=elsewhere)

    assert refused.returncode == 2
    assert "not below the current folder" in refused.stderr
    assert "--import" in refused.stderr
    assert named.returncode == 0


@pytest.mark.slow
def test_a_moved_file_has_to_be_named(cli: Cli):
    flow = cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("open", "")
    (cli.folder / "moved").mkdir()
    flow.rename(cli.folder / "moved" / "flow.py")

    lost, found = cli("resume", "r1"), cli("resume", "r1", "--import", "moved/flow.py")

    assert lost.returncode == 2
    assert "which is gone" in lost.stderr
    assert found.returncode == 0


@pytest.mark.slow
def test_a_run_remembers_its_own_file_even_if_an_equal_graph_came_from_another(cli: Cli):
    cli.write("open", "")
    cli.write("old/flow.py", GATED)
    cli("run", "old/flow.py", "--run-id", "r0")
    (cli.folder / "old" / "flow.py").unlink()
    (cli.folder / "open").unlink()
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("open", "")

    assert cli.json("show", "r1")["version"] == 1
    assert cli("resume", "r1").returncode == 0


@pytest.mark.slow
def test_a_place_without_the_node_types_is_refused(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("other.py", "")

    done = cli("resume", "r1", "--import", "other.py")

    assert done.returncode == 2
    assert "flow.first, flow.gate, flow.last" in done.stderr


@pytest.mark.slow
def test_node_types_that_no_longer_fit_are_refused_by_name(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("flow.py", GATED.replace("last(ctx: Context, n: int)", "last(ctx: Context, number: int)"))
    cli.write("open", "")

    done = cli("resume", "r1")

    assert done.returncode == 2
    assert "the node types have changed since" in done.stderr
    assert "'last'" in done.stderr
    assert "'number'" in done.stderr
    assert cli.ledger() == ["first", "gate"]


@pytest.mark.slow
def test_the_stored_graph_runs_even_if_the_workflow_has_changed(cli: Cli):
    cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    cli.write("flow.py", GATED.replace("last(gate(first()))", "first()"))
    cli.write("open", "")

    done = cli("resume", "r1")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "3"


@pytest.mark.slow
def test_a_module_of_a_package_is_found_again(cli: Cli):
    cli.write("package/__init__.py", "")
    cli.write("package/flow.py", GATED)
    program = "from package.flow import gated; gated.options(run_id='r1').run()"
    with subprocess.Popen([sys.executable, "-c", program], cwd=cli.folder, env=cli.environment) as process:
        while not (cli.folder / "ledger.txt").exists() or "gate" not in cli.ledger():
            assert process.poll() is None
        process.kill()
    cli.write("open", "")

    done = cli("resume", "r1")

    assert done.returncode == 0
    assert {node["type"] for node in cli.json("show", "r1")["nodes"]} >= {"package.flow.gate"}


@pytest.mark.slow
def test_cancelling_a_run_that_nobody_drives_needs_no_code(cli: Cli):
    flow = cli.write("flow.py", GATED)
    killed_at_the_gate(cli)
    flow.unlink()

    done = cli("cancel", "r1", "--reason", "not needed")

    assert done.returncode == 0
    assert "cancelled" in done.stdout
    assert "not needed" in done.stdout
    assert cli("resume", "r1").returncode == 4
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_cancelling_reaches_the_process_that_drives_the_run(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")

    cancelled = cli("cancel", "r1")

    assert cancelled.returncode == 0
    assert process.wait(timeout=30) == 4
    assert cli.json("show", "r1")["status"] == "cancelled"


@pytest.mark.slow
def test_cancelling_what_has_ended_changes_nothing(cli: Cli):
    cli.write("flow.py", GATED)
    cli.write("open", "")
    cli("run", "flow.py", "--run-id", "r1")

    done = cli("cancel", "r1")

    assert done.returncode == 0
    assert "had ended before" in done.stdout
    assert cli.json("show", "r1")["status"] == "completed"


WITH_A_PROGRAM = """
import subprocess
from perdure import collect, node, workflow

PROGRAM = "touch begun; until test -e open; do sleep 0.01; done"

def convert(n: int) -> int:
    subprocess.run(["sh", "-c", PROGRAM], check=True)
    return n

@node
def alone(n: int) -> int:
    return convert(n)

@node(concurrency=2)
def each(n: int) -> int:
    return convert(n)

@workflow
def lone() -> int:
    return alone(1)

@workflow
def mapped() -> list[int]:
    return collect(each.map([1, 2, 3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("flow", "result"), [("lone", "1"), ("mapped", "[1, 2, 3]")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_programs_of_bodies_that_a_signal_ends_too_fail_no_run(cli: Cli, flow: str, result: str, number: int):
    cli.write("flow.py", WITH_A_PROGRAM)
    process = cli.start("run", f"flow.py:{flow}", "--run-id", "r1")
    read_until(process, " started")  # signals are heard from here on
    while not (cli.folder / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)

    os.killpg(process.pid, number)
    printed = process.communicate(timeout=30)[0]

    assert process.returncode == 128 + number, printed
    assert "continue: perdure resume r1" in printed
    cli.write("open", "")
    resumed = cli("resume", "r1")
    assert resumed.returncode == 0
    assert resumed.stdout.splitlines()[-1] == result
    assert cli("verify", "r1").returncode == 0


@pytest.mark.slow
def test_programs_of_runs_that_a_run_has_started_fail_none_either(cli: Cli):
    cli.write(
        "flow.py",
        WITH_A_PROGRAM
        + """
import os, time

@node
def slow() -> int:
    while not os.path.exists("open"):
        time.sleep(0.01)
    return 1

@workflow
def child(n: int) -> int:
    return alone(n)

@workflow
def parent() -> tuple[list[str], int]:
    return collect(child.start_each([1])), slow()
""",
    )
    process = cli.start("run", "flow.py:parent", "--run-id", "r1")
    while not (cli.folder / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    until_running(cli, "r1", ["slow"])

    os.killpg(process.pid, signal.SIGINT)
    read_until(process, "stopping")
    (child,) = [run["run_id"] for run in cli.json("list") if run["workflow"] == "child"]
    until_running(cli, child, [])
    cli.write("open", "")

    assert process.wait(timeout=30) == 0  # the other one had time to end
    assert cli("resume", child).returncode == 0
    assert cli("verify").returncode == 0


def until_running(cli: Cli, run_id: str, node_ids: list[str]) -> None:
    """Wait until no other nodes of the run are at work than these."""
    deadline = time.monotonic() + 30
    while [node["id"] for node in cli.json("show", run_id)["nodes"] if node["status"] == "running"] != node_ids:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_terminal_that_hangs_up_twice_has_hung_up_once(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")

    process.send_signal(signal.SIGHUP)
    read_until(process, "stopping")
    process.send_signal(signal.SIGHUP)
    cli.write("open", "")

    assert process.wait(timeout=30) == 129
    assert cli("resume", "r1").returncode == 0
    assert cli.ledger() == ["first", "gate", "last"]


def test_a_run_whose_store_is_gone_is_not_said_to_be_kept(cli: Cli):
    cli.write("flow.py", GATED)
    running = cli.start("run", "flow.py", "--run-id", "g")
    while not (cli.folder / "ledger.txt").exists() or "gate" not in cli.ledger():
        pass
    for file in cli.folder.glob("perdure.db*"):
        file.unlink()
    (cli.folder / "open").touch()

    told, complaint = running.communicate(timeout=30)

    assert running.returncode == 2
    assert told.splitlines()[-1] == "stopped"
    assert not any(word in told for word in ("kept", "continue", "perdure resume"))
    assert "is gone" in complaint
