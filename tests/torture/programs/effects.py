"""What bodies leave behind outside the database: a ledger with a line for every time that a body was begun.

A line is written with one `write` to a file opened for appending, and synced: it survives whatever happens to the process
afterwards, and lines of several processes do not mix.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

VARIABLE = "PERDURE_TORTURE_LEDGER"


class Attempt(Protocol):
    """What a context says about its attempt."""

    run_id: str
    node_id: str
    attempt: int
    idempotency_key: str


class Effect(NamedTuple):
    """A body was begun, by the engine in this process."""

    run_id: str
    node_id: str
    attempt: int
    key: str
    pid: int


def record(context: Attempt, *, engine: int | None = None) -> None:
    """Write down that the body of this attempt is at work. `engine` is the engine's process if it is not this one."""
    pid = engine or os.getpid()
    line = f"{context.run_id} {context.node_id} {context.attempt} {context.idempotency_key} {pid}\n"
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


class Ledger:
    """The ledger as the test reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in order to write to it."""
        return {VARIABLE: str(self.path)}

    def count(self) -> int:
        return self.path.read_bytes().count(b"\n")

    def effects(self) -> list[Effect]:
        return list(_parse(self.path.read_text(encoding="utf-8")))


def _parse(text: str) -> Iterator[Effect]:
    for line in text.splitlines():
        run_id, node_id, attempt, key, pid = line.split(" ")
        yield Effect(run_id, node_id, int(attempt), key, int(pid))
