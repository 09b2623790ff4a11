"""A run does not fail for want of readers: the terminal is closed, or the other end of a pipe, while its bodies print."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest

from perdure.cli.terminal import require_readers
from tests.cli.conftest import PERDURE, Cli, read_until

pytestmark = pytest.mark.slow

TALKING = """
import os, sys, time
from perdure import node, workflow

@node{options}
def talk() -> int:
    for number in range(10_000):
        print("line", number, flush=True)
        print("aside", number, file=sys.stderr, flush=True)
        with open("count", "w") as count:
            count.write(str(number))
        time.sleep(0.01)
        if os.path.exists("open"):
            return number
    raise AssertionError("nobody opened")

@node{options}
def after(n: int) -> str:
    print("after")
    return "done"

@workflow
def talking() -> str:
    return after(talk())
"""
PLACES = pytest.mark.parametrize("options", ["", '(executor="process")'], ids=["thread", "process"])


def let_it_talk_to_nobody(cli: Cli) -> None:
    """Wait until the body has printed a hundred lines more, then let it end."""
    deadline = time.monotonic() + 30
    enough = printed(cli) + 100
    while printed(cli) < enough:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cli.write("open", "")


def printed(cli: Cli) -> int:
    count = cli.folder / "count"
    return int(count.read_text() or 0) if count.exists() else 0


@PLACES
def test_a_run_whose_pipe_is_closed_goes_on_in_silence(cli: Cli, options: str):
    cli.write("flow.py", TALKING.format(options=options))
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "talk started")

    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    let_it_talk_to_nobody(cli)
    exit_code = process.wait(timeout=30)

    assert exit_code == 0
    shown = cli.json("show", "r1")
    assert (shown["status"], shown["outputs"]) == ("completed", {"output": "done"})


@PLACES
def test_a_run_whose_terminal_is_closed_is_left_to_be_resumed(cli: Cli, options: str):
    cli.write("flow.py", TALKING.format(options=options))
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [*PERDURE, "run", "flow.py", "--run-id", "r1"],
        cwd=cli.folder,
        env=cli.environment | {"TERM": "xterm-256color"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    while b"0 of 2 nodes" not in os.read(terminal, 65_536):
        pass

    os.close(terminal)
    process.send_signal(signal.SIGHUP)  # what the kernel sends to whoever a terminal belonged to
    let_it_talk_to_nobody(cli)
    exit_code = process.wait(timeout=30)

    assert exit_code == 128 + signal.SIGHUP
    assert cli.json("show", "r1")["status"] == "running"
    resumed = cli("resume", "r1")
    assert resumed.returncode == 0
    assert resumed.stdout.endswith("done\n")
    assert "talk started" not in resumed.stdout  # its completion was recorded while the run was let go


def in_a_shell(cli: Cli, command: str, *, most_seconds: int = 30) -> subprocess.CompletedProcess[str]:
    """Run `perdure` with these arguments and redirections. After so many seconds it is ended, with 124."""
    return subprocess.run(
        ["/bin/bash", "-c", f"timeout {most_seconds} {shlex.join(PERDURE)} {command}"],
        cwd=cli.folder,
        env=cli.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=most_seconds + 10,
        check=False,
    )


@pytest.fixture
def talked(cli: Cli) -> Cli:
    cli.write("flow.py", TALKING.format(options=""))
    cli.write("open", "")
    cli("run", "flow.py", "--run-id", "r1")
    return cli


@pytest.mark.parametrize("command", ["events r1", "list", "show r1", "diff r1 r1"])
def test_commands_that_only_look_end_well_when_nobody_reads(talked: Cli, command: str):
    done = in_a_shell(talked, f"{command} | true; echo ${{PIPESTATUS[0]}}")  # it has ended before Python has begun

    assert (done.stdout, done.stderr) == ("0\n", "")


BUSY = """
import asyncio, os
from perdure import Context, node, workflow

@node
async def jot(ctx: Context) -> None:
    number = 0
    while not os.path.exists("open"):
        await ctx.checkpoint(number)
        await asyncio.sleep(0.02)
        number += 1

@workflow
def busy() -> None:
    jot()
"""


@pytest.mark.parametrize("options", ["", " --json"], ids=["text", "json"])
def test_who_follows_a_run_that_does_not_end_ends_when_nobody_reads(cli: Cli, options: str):
    cli.write("flow.py", BUSY)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "jot started")

    done = in_a_shell(cli, f"events r1 --follow{options} | head -1; echo ${{PIPESTATUS[0]}}", most_seconds=20)

    assert (len(done.stdout.splitlines()), done.stdout.splitlines()[-1], done.stderr) == (2, "0", "")


RESTING = """
from perdure import Context, node, workflow

@node
async def approve(ctx: Context) -> bool:
    ctx.log.info("about to ask")
    return await ctx.ask("Publish this?", schema=bool)

@workflow
def resting() -> bool:
    return approve()
"""


@pytest.mark.parametrize("command", ["events r1 -f", "events r1 --json -f", "logs r1 -f", "logs r1 -f --json"])
def test_commands_that_follow_a_run_that_rests_end_when_nobody_reads_any_more(cli: Cli, command: str):
    cli.write("flow.py", RESTING)
    assert cli("run", "flow.py", "--run-id", "r1").returncode == 3
    process = cli.start(*command.split())
    assert process.stdout is not None
    process.stdout.readline()
    assert process.stderr is not None
    process.stderr.readline()  # it has told that it waits, and will print nothing more

    process.stdout.close()

    assert process.wait(timeout=30) == 0
    assert "Traceback" not in process.stderr.read()


def test_only_pipes_have_readers_that_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reading, writing = os.pipe()
    terminal, inner = pty.openpty()
    os.close(terminal)
    with open(writing, "w") as pipe, open(inner, "w") as closed, (tmp_path / "log").open("w") as log:
        for output in (pipe, closed, log, StringIO(), None):
            monkeypatch.setattr(sys, "stdout", output)
            require_readers()

        os.close(reading)
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(BrokenPipeError):
            require_readers()


def test_commands_that_check_or_do_something_end_with_their_own_code_whoever_reads(talked: Cli):
    with closing(sqlite3.connect(talked.folder / "perdure.db")) as database, database:
        database.execute("UPDATE run_node_state SET attempt = 7")

    codes = {
        command: in_a_shell(talked, f"{command} | true; echo ${{PIPESTATUS[0]}}").stdout.strip()
        for command in (
            "verify r1",
            "verify r1 --json",
            "delete nosuch --yes",
            "show nosuch --json",
            "show nosuch 2>&1",
            "show --nosuch 2>&1",
            "show --nosuch --json",
            "nosuch 2>&1",
            "nosuch --json",
            "--help",
        )
    }

    assert codes == {
        "verify r1": "1",
        "verify r1 --json": "1",
        "delete nosuch --yes": "2",
        "show nosuch --json": "2",
        "show nosuch 2>&1": "2",
        "show --nosuch 2>&1": "2",
        "show --nosuch --json": "2",
        "nosuch 2>&1": "2",
        "nosuch --json": "2",
        "--help": "0",
    }


def test_what_a_command_has_to_show_is_there_also_if_nobody_reads_what_it_warns_of(cli: Cli):
    cli.write("flow.py", TALKING.format(options=""))
    cli.write("open", "")
    cli("run", "flow.py", "--run-id", "r1", "--journal", "audit")
    warned = cli("events", "r1")

    done = in_a_shell(cli, "events r1 2>&1 >events.txt | true; echo ${PIPESTATUS[0]}")

    assert warned.stderr
    assert done.stdout == "0\n"
    assert (cli.folder / "events.txt").read_text() == warned.stdout


# Nowhere to write to


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("errors_too", [False, True])
@PLACES
def test_a_run_goes_on_when_there_is_no_room_for_what_it_prints(cli: Cli, options: str, errors_too: bool):
    cli.write("flow.py", TALKING.format(options=options))
    cli.write("open", "")

    done = in_a_shell(cli, "run flow.py --run-id r1 > /dev/full" + " 2>&1" * errors_too)

    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stderr.count("not all output can be written (No space left on device)") == (not errors_too)
    assert cli.json("show", "r1")["outputs"] == {"output": "done"}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_run_goes_on_when_there_is_no_room_for_what_it_prints_as_errors_on_standard_output(cli: Cli):
    cli.write("flow.py", "import sys\nsys.stderr = sys.stdout\n" + TALKING.format(options=""))
    cli.write("open", "")

    done = in_a_shell(cli, "run flow.py --run-id r1 > /dev/full")

    assert done.returncode == 0
    assert "not all output can be written" in done.stderr
    assert cli.json("show", "r1")["outputs"] == {"output": "done"}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_command_that_only_looks_says_that_there_is_no_room(talked: Cli):
    done = in_a_shell(talked, "list > /dev/full")

    assert (done.returncode, done.stderr) == (2, "Error: The output cannot be written (No space left on device).\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_goes_nowhere_if_standard_streams_are_closed(cli: Cli, closed: str):
    cli.write("flow.py", TALKING.format(options=""))
    cli.write("open", "")

    done = in_a_shell(cli, f"run flow.py --run-id r1 {closed}")

    assert done.returncode == 0
    assert cli.json("show", "r1")["outputs"] == {"output": "done"}
    assert cli("verify", "r1").returncode == 0  # and not into the database


def test_a_script_whose_standard_errors_are_closed_runs_as_any_other(cli: Cli):
    cli.write("flow.py", TALKING.format(options=""))
    cli.write("open", "")
    cli.write("wrapper.sh", f"{shlex.join(PERDURE)} run flow.py --run-id r1\n")

    done = subprocess.run(  # the shell reads the script through the descriptor that is free, which is that of errors
        ["/bin/bash", "-c", "bash wrapper.sh 2>&-"], cwd=cli.folder, env=cli.environment, timeout=30, check=False
    )

    assert done.returncode == 0
    assert cli.json("show", "r1")["outputs"] == {"output": "done"}


def test_what_is_printed_goes_nowhere_once_a_body_has_closed_standard_output(cli: Cli):
    cli.write(
        "flow.py",
        """
import os, subprocess
from perdure import node, workflow

@node
def close() -> str:
    os.close(1)
    print("into nowhere", flush=True)
    subprocess.run(["echo", "into nowhere"], check=True)
    return "done"

@workflow
def closing() -> str:
    return close()
""",
    )

    done = cli("run", "flow.py", "--run-id", "r1")

    assert (done.returncode, "bug" in done.stderr) == (0, False), done.stderr
    assert cli.json("show", "r1")["outputs"] == {"output": "done"}
    assert cli("verify", "r1").returncode == 0
