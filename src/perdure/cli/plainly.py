"""Showing a run where nothing can be drawn: a line per event in a pipe, or nothing at all."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from perdure.cli.lines import is_news, line_of
from perdure.cli.watch import Watch
from perdure.cli.words import counted
from perdure.journal.events import Recorded
from perdure.journal.states import NodeStatus


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Lines:
    """Prints a line for each event that matters to somebody who watches."""

    interval_seconds = 5.0

    def heard(self, watch: Watch, entries: Sequence[Recorded]) -> None:
        for entry in entries:
            if entry.seq > watch.known and is_news(entry.event):
                say(line_of(entry))

    def draw(self, watch: Watch) -> None:
        pass

    def stopping(self, watch: Watch) -> None:
        say(stopping_text(watch))

    def close(self) -> None:
        pass


class Silence:
    """Shows nothing: for those who want one document at the end."""

    interval_seconds = 5.0

    def heard(self, watch: Watch, entries: Sequence[Recorded]) -> None:
        pass

    def draw(self, watch: Watch) -> None:
        pass

    def stopping(self, watch: Watch) -> None:
        pass

    def close(self) -> None:
        pass


def stopping_text(watch: Watch) -> str:
    """Return what is said when a signal has come."""
    running = watch.counts()[NodeStatus.RUNNING]
    waiting = f": waiting for {counted(running, 'running node')} to end" if running else ""
    return f"stopping{waiting} (again to stop at once)"
