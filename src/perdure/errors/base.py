"""The root of the tree, and how its messages list what is wrong and name commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar


class PerdureError(Exception):
    """The root of everything perdure raises on purpose."""

    code: ClassVar[str] = "perdure_error"


def quoted(name: str) -> str:
    """Return an id or a name as a shell reads it, for a command that people copy."""
    return shlex.quote(name)


def listed(problems: Sequence[str], then: str = "", most: int = 50) -> str:
    """Return what follows a colon: one problem in the same line, several in lines of their own, and the end of it all."""
    if len(problems) == 1:
        return f" {problems[0]} {then}".rstrip()
    lines = [f"\n- {problem}" for problem in problems[:most]]
    if len(problems) > most:
        lines.append(f"\n- and {len(problems) - most} more")
    return "".join(lines) + f"\n{then}"
