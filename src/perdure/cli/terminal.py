"""What is written to: how wide it is, whether it shows colours, and whether a picture can be redrawn on it."""

from __future__ import annotations

import errno
import os
import select
import shutil
import stat
import sys
from typing import TextIO

import msgspec

LEAST_WIDTH, MOST_WIDTH = 60, 160
WIDTH_OF_A_PIPE = 100

_CODES = {
    "good": "32",
    "bad": "31",
    "warning": "33",
    "moving": "36",
    "strong": "1",
    "faint": "2",
}


class Pen(msgspec.Struct, frozen=True):
    """Colours text by what it means, or leaves it as it is."""

    is_coloured: bool = False

    def good(self, text: str) -> str:
        return self._painted(text, "good")

    def bad(self, text: str) -> str:
        return self._painted(text, "bad")

    def warning(self, text: str) -> str:
        return self._painted(text, "warning")

    def moving(self, text: str) -> str:
        return self._painted(text, "moving")

    def strong(self, text: str) -> str:
        return self._painted(text, "strong")

    def faint(self, text: str) -> str:
        return self._painted(text, "faint")

    def _painted(self, text: str, meaning: str) -> str:
        return f"\x1b[{_CODES[meaning]}m{text}\x1b[0m" if self.is_coloured and text else text


class Paper(msgspec.Struct, frozen=True, kw_only=True):
    """Where output goes."""

    width: int
    pen: Pen
    is_live: bool
    """Whether it is a terminal on which lines can be drawn again."""


def paper(stream: TextIO | None = None) -> Paper:
    """Describe where output goes: standard output, unless another stream is given."""
    chosen = stream or sys.stdout
    is_terminal = chosen.isatty()
    is_dumb = os.environ.get("TERM") == "dumb"
    colours = is_terminal and not is_dumb and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size((WIDTH_OF_A_PIPE, 24)).columns
    return Paper(width=min(max(width, LEAST_WIDTH), MOST_WIDTH), pen=Pen(colours), is_live=is_terminal and not is_dumb)


def require_readers() -> None:
    """Raise BrokenPipeError if whoever read standard output through a pipe has left. Whoever only waits would not come to know.

    Nothing is written to find out. Files and terminals have no readers of whom this can be asked.
    """
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (AttributeError, OSError, ValueError):
        return  # there is none
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return
    poll = select.poll()
    poll.register(output, 0)  # what is wrong with it is always told
    if any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
