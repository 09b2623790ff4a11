"""A trigger that sees files come: `files = folder("inbox", "*.csv")`.

A file is given once, when it has not changed for a moment. The cursor is when it came into the folder, and its name.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from perdure.graph.declare import NodeDecorator, Stream
from perdure.graph.model import FOLDER
from perdure.graph.triggers import Trigger, TriggerInput, require_no_problems
from perdure.ids import is_text

TICK_SECONDS = 0.02
"""For how long files may get the same time: the clock of a file system goes in ticks."""

Cursor = tuple[int, str]
"""When the file came or was changed last, in nanoseconds since 1970, and its name in the folder."""


class Folder(Trigger[Cursor, str]):
    """Looks into a folder again and again."""

    path: str
    pattern: str = "*"
    every: float = 1.0
    settled: float = 1.0

    async def inputs(self, ctx: Any, cursor: Cursor | None) -> AsyncIterator[TriggerInput[Cursor, str]]:
        last = None if cursor is None else (cursor[0], cursor[1])
        while True:
            now = ctx.now().timestamp()
            for place in await asyncio.to_thread(self._files, now, last):
                last = place
                name = place[1]
                yield TriggerInput(str(Path(self.path) / name), id=f"{name}@{place[0]}", cursor=place)
            await asyncio.sleep(self.every)

    def problems(self) -> Iterator[str]:
        if not 0 < self.every < float("inf") or not 0 <= self.settled < float("inf"):
            yield "A folder is looked at in intervals: every=1.0 is one second."
        if not _is_pattern(self.pattern):
            yield (
                f"{self.pattern!r} is no pattern for names of files in a folder: '*.csv' is one, and '**/*.csv' is one "
                "that looks into the folders in it as well."
            )

    def is_after(self, cursor: Cursor, last: Cursor) -> bool:
        return tuple(cursor) > tuple(last)

    def _files(self, now: float, last: Cursor | None) -> list[Cursor]:
        """Return the files that have come, oldest first. Once one is found that may still be written to, none after it."""
        found: list[Cursor] = []
        for path in Path(self.path).glob(self.pattern):
            name = str(path.relative_to(self.path))
            if is_text(name) and (came := _came(path)) is not None:
                found.append((came, name))
        settled_before = (now - max(self.settled, TICK_SECONDS)) * 1e9
        return sorted(place for place in found if place[0] <= settled_before and (last is None or place > last))


def _is_pattern(pattern: str) -> bool:
    """Whether a pattern stays in its folder, and means the same for all versions of Python."""
    parts = Path(pattern).parts
    has_half_a_step = any("**" in part and part != "**" for part in parts)
    return bool(parts) and not Path(pattern).is_absolute() and ".." not in parts and not has_half_a_step


def _came(path: Path) -> int | None:
    """Return when a file came into its folder or was changed last; None if it is none."""
    try:
        status, link = path.stat(), path.lstat()
    except OSError:  # gone again, or a link to what is not there or must not be seen
        return None
    # A link is in the folder since it was made, however old the file is.
    return max(status.st_ctime_ns, link.st_ctime_ns) if stat.S_ISREG(status.st_mode) else None


Folder.__name__ = "folder"  # what its nodes are called
_folder = NodeDecorator(FOLDER)(Folder)


def folder(path: str | Path, pattern: str = "*", *, every: float = 1.0, settled: float = 1.0) -> Stream[str]:
    """Give the path of each file that comes into a folder, or is changed there. The run lives until it is stopped.

    It is looked at `every` so many seconds, and a file is given when nothing has happened to it for `settled` seconds.
    """
    wanted = Folder()
    wanted.pattern, wanted.every, wanted.settled = pattern, every, settled
    require_no_problems(wanted)
    return _folder(path=str(path), pattern=pattern, every=every, settled=settled)
