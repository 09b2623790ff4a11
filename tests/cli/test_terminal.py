"""In a terminal: a picture that is drawn over and over, colours unless they are not wanted, and a clean end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from perdure.cli.live import Picture
from perdure.cli.watch import Watch
from perdure.ids import RunId
from tests.cli.conftest import GATED, PERDURE, Cli

pytestmark = pytest.mark.slow

DEADLINE_SECONDS = 30
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
_PIECES = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def replayed(raw: str) -> list[str]:
    """Return the lines that are to be seen when all of this has been written to a terminal that is high enough."""
    lines, row, column = [""], 0, 0
    for number, command, back, down, text in _PIECES.findall(raw):
        if command == "A":
            row = max(0, row - int(number or 1))
        elif command == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        elif back:
            column = 0
        elif down:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
    return lines


class Screen:
    """A command in a terminal, of 100 by 30 unless it is to be narrower."""

    def __init__(self, cli: Cli, *arguments: str, env: Mapping[str, str] | None = None, columns: int = 100) -> None:
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.process = subprocess.Popen(
            [*PERDURE, *arguments],
            cwd=cli.folder,
            env={name: value for name, value in cli.environment.items() if name != "COLUMNS"}
            | {"TERM": "xterm-256color"}
            | dict(env or {}),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self.text = ""

    def read_until(self, text: str) -> None:
        """Read until this has been shown."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            if not self._read():
                break
        assert text in self.text, self.text

    @property
    def has_cursor(self) -> bool:
        """Whether the cursor is to be seen."""
        return self.text.rfind(SHOW_CURSOR) >= self.text.rfind(HIDE_CURSOR)

    def close(self) -> int:
        """Read to the end and return the exit code."""
        while self._read():
            pass
        os.close(self._terminal)
        return self.process.wait(timeout=DEADLINE_SECONDS)

    def write(self, text: str) -> None:
        """Type this."""
        os.write(self._terminal, text.encode())

    def _read(self) -> bool:
        if not select.select([self._terminal], [], [], DEADLINE_SECONDS)[0]:
            return False
        try:
            found = os.read(self._terminal, 65_536)
        except OSError:  # what Linux says when the other side is closed
            return False
        self.text += found.decode(errors="replace")
        return bool(found)


def test_a_terminal_shows_the_run_as_it_goes_on(cli: Cli):
    cli.write("flow.py", GATED)
    screen = Screen(cli, "run", "flow.py", "--run-id", "r1")

    screen.read_until("1 of 3 nodes")
    cli.write("open", "")
    exit_code = screen.close()

    assert exit_code == 0
    assert screen.has_cursor
    assert "\x1b[32m" in screen.text
    end = screen.text[screen.text.rindex("3 of 3 nodes") :]
    assert "completed in" in end
    assert end.rstrip().endswith("3")


@pytest.mark.parametrize(("answer", "exit_code"), [("n", 1), ("y", 0)])
def test_deleting_asks_before_and_takes_no_for_an_answer(cli: Cli, answer: str, exit_code: int):
    cli.write("flow.py", GATED)
    cli.write("open", "")
    cli("run", "flow.py", "--run-id", "r1")
    screen = Screen(cli, "delete", "r1")

    screen.read_until("for good? [y/N]")
    screen.write(f"{answer}\n")

    assert screen.close() == exit_code
    assert ("Nothing was deleted." in screen.text) == (answer == "n")
    assert (cli.json("show", "r1")["deleted_at"] is None) == (answer == "n")


def test_colours_can_be_switched_off(cli: Cli):
    cli.write("flow.py", GATED)
    cli.write("open", "")
    run = Screen(cli, "run", "flow.py", "--run-id", "r1", env={"NO_COLOR": "1"})
    run.close()
    show = Screen(cli, "show", "r1", env={"NO_COLOR": "1"})
    show.close()

    assert "\x1b[32m" not in run.text
    assert "\x1b[" not in show.text


def test_a_dumb_terminal_gets_lines(cli: Cli):
    cli.write("flow.py", GATED)
    cli.write("open", "")
    screen = Screen(cli, "run", "flow.py", env={"TERM": "dumb"})
    screen.close()

    assert "gate started" in screen.text
    assert "\x1b" not in screen.text


def test_what_bodies_print_stands_above_the_picture(cli: Cli):
    cli.write(
        "flow.py",
        GATED.replace("    return n + 1\n\n@workflow", '    print("from the body")\n    return n + 1\n\n@workflow'),
    )
    cli.write("open", "")
    screen = Screen(cli, "run", "flow.py")
    screen.close()

    assert screen.text.count("from the body") == 1


PRINTS = """
import sys
from perdure import node, workflow

@node
def talk() -> int:
    print("FIRST LINE")
    print("SECOND LINE", file=sys.stderr)
    return 1

@workflow
def talking() -> int:
    return talk()
"""


def test_what_a_body_prints_at_once_is_never_erased(cli: Cli):
    cli.write("flow.py", PRINTS)

    for number in range(10):
        screen = Screen(cli, "run", "flow.py", "--run-id", f"r{number}")
        assert screen.close() == 0
        lines = replayed(screen.text)
        assert [lines.count(told) for told in ("FIRST LINE", "SECOND LINE")] == [1, 1], lines


class TwoLines(Picture):
    """A picture that is always the same."""

    def lines(self, watch: Watch) -> Iterator[Text]:
        yield Text("one")
        yield Text("two")


def test_nothing_is_drawn_while_a_body_prints(monkeypatch: pytest.MonkeyPatch):
    written = StringIO()
    monkeypatch.setattr(sys, "stdout", StringIO())
    monkeypatch.setattr(sys, "stderr", StringIO())
    outputs = sys.stdout, sys.stderr
    picture = TwoLines(Console(file=written, force_terminal=True, width=80, height=30, color_system=None))
    watch = Watch(RunId("r"), (), known=0)

    def talk(name: str) -> None:
        for number in range(200):
            sys.stdout.write(f"{name} [/b] {number}\n")  # print writes twice, and others may come between

    with ThreadPoolExecutor(2) as bodies:
        talking = [bodies.submit(talk, name) for name in ("a", "b")]
        while not all(body.done() for body in talking):
            picture.draw(watch)
    print("flushed [/b]", end="", flush=True)
    print("[red]no end [/b] of line", end="")
    picture.close()

    told = [line for line in replayed(written.getvalue().replace("\n", "\r\n")) if line]
    assert sorted(told[:-4]) == sorted(f"{name} [/b] {number}" for name in ("a", "b") for number in range(200))
    assert told[-4:] == ["flushed [/b]", "[red]no end [/b] of line", "one", "two"]
    assert (sys.stdout, sys.stderr) == outputs


def test_a_terminal_has_its_cursor_whenever_a_process_is_killed(cli: Cli):
    cli.write("flow.py", GATED)
    screen = Screen(cli, "run", "flow.py", "--run-id", "r1")
    screen.read_until("1 of 3 nodes")

    screen.process.kill()
    screen.close()

    assert screen.has_cursor


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_gives_the_terminal_back(cli: Cli, times: int):
    cli.write("flow.py", GATED)
    screen = Screen(cli, "run", "flow.py", "--run-id", "r1")
    screen.read_until("1 of 3 nodes")

    screen.process.send_signal(signal.SIGINT)
    screen.read_until("stopping: waiting for 1 running node")
    if times == 2:
        screen.process.send_signal(signal.SIGINT)
    else:
        cli.write("open", "")
    exit_code = screen.close()

    assert exit_code == 130
    assert screen.has_cursor
    assert "perdure resume r1" in screen.text


def test_a_list_fits_a_narrow_terminal_and_keeps_the_ids(cli: Cli):
    cli.write("flow.py", GATED)
    cli.write("open", "")
    cli("run", "flow.py")
    run_id = cli.json("list")[0]["run_id"]

    narrow = Screen(cli, "list", columns=60, env={"NO_COLOR": "1"})
    narrow.close()
    wide = Screen(cli, "list", columns=120, env={"NO_COLOR": "1"})
    wide.close()

    assert all(len(line) <= 60 for line in narrow.text.splitlines())
    assert run_id in narrow.text
    assert "completed" in narrow.text
    assert "TOOK" not in narrow.text
    assert "TOOK" in wide.text
