"""What the tests of the command line stand on: a folder with workflows, and the real program in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forks import Forks

PERDURE = (sys.executable, "-P", "-m", "perdure")
"""As the installed program does it: without the current folder among the places of modules."""

FLOW = """
from perdure import SyncContext, node, workflow

@node
def greeting(ctx: SyncContext, name: str) -> str:
    print("a body prints")
    ctx.log.info("greeted", name=name)
    return f"Hello, {name}!"

@node
def length(text: str, factor: int) -> int:
    return len(text) * factor

@workflow
def hello(name: str, factor: int = 1) -> int:
    return length(greeting(name), factor)

if __name__ == "__main__":
    raise SystemExit("run as a program")
"""

GATED = """
import asyncio, os
from perdure import Context, node, workflow

def note(ctx):
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{ctx.node_id}\\n")

@node
async def first(ctx: Context) -> int:
    note(ctx)
    return 1

@node
async def gate(ctx: Context, n: int) -> int:
    note(ctx)
    while not os.path.exists("open"):
        await asyncio.sleep(0.01)
    return n + 1

@node
async def last(ctx: Context, n: int) -> int:
    note(ctx)
    return n + 1

@workflow
def gated() -> int:
    return last(gate(first()))
"""

FAILING = """
from perdure import node, workflow

@node
def bad(n: int) -> int:
    raise ValueError(f"no {n} today")

@workflow
def failing(n: int = 7) -> int:
    return bad(n)
"""


class Cli:
    """The command line, in a folder of its own."""

    def __init__(self, folder: Path, forks: Forks) -> None:
        self.folder = folder
        self._forks = forks
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("PERDURE_STORE", "NO_COLOR", "TERM")
        } | {"COLUMNS": "100"}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def __call__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        before: Callable[[], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `before` it, do something in its process."""
        folder, environment = cwd or self.folder, self.environment | dict(env or {})
        if before is None:
            return self._forks.run(arguments, cwd=folder, env=environment, stdin=stdin or "")
        return subprocess.run(
            [*PERDURE, *arguments],
            cwd=folder,
            env=environment,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=before,
        )

    def json(self, *arguments: str, **more: Any) -> Any:
        """Run a command with --json and return the document it prints."""
        return json.loads(self(*arguments, "--json", **more).stdout)

    def start(self, *arguments: str, ignoring: signal.Signals | None = None) -> subprocess.Popen[str]:
        """Start a command, in a process group of its own, and leave it running."""
        process = subprocess.Popen(
            [*PERDURE, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=None if ignoring is None else lambda: signal.signal(ignoring, signal.SIG_IGN),
        )
        self.started.append(process)
        return process

    def ledger(self) -> list[str]:
        """Return the nodes whose bodies have run, in order, each as often as it ran."""
        return (self.folder / "ledger.txt").read_text().split()


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read what a process prints until a line holds the text, and return the lines so far."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} was not printed, but {lines}; {process.stderr.read() if process.stderr else ''}")


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.fixture
def cli(tmp_path: Path, forks: Forks) -> Iterator[Cli]:
    program = Cli(tmp_path, forks)
    yield program
    for process in program.started:
        # The programs that it has started hold its pipes, and would go on. They are in its group, which may be there without it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
