"""A run drawn in a terminal while it goes on: a line per node, four times a second at most.

Nodes that have ended are folded into a count as soon as there are more lines than the terminal has.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO, cast

from rich.console import Console, Group
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from perdure.cli.flowing import Columns, columns_of
from perdure.cli.forecast import Forecast
from perdure.cli.marks import NODE_MARKS, RUN_MARKS, Meaning, words_of
from perdure.cli.options import Place
from perdure.cli.plainly import stopping_text
from perdure.cli.waits import how_to_end, waiting_words
from perdure.cli.watch import Flowing, Shown, Watch
from perdure.cli.words import counted, duration, error_line, fitted, padded, plain
from perdure.clock import Clock, SystemClock
from perdure.graph.model import Node
from perdure.ids import NodeId
from perdure.journal.events import Recorded
from perdure.journal.states import ENDED, NodeState, NodeStatus, WaitState

REDRAW_SECONDS = 0.25
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_WIDTH = 20
_STREAM_BAR_WIDTH = 12
_WIDE = 100
"""Where there are so many columns, there is room for a bar beside the numbers."""
_NAME_WIDTH = 32
_INDENT = 4
_FRAME_LINES = 6
"""Lines of the screen that are left to the head, the summary and the prompt."""
_STYLES: dict[Meaning, str] = {"good": "green", "bad": "red", "warning": "yellow", "moving": "cyan", "faint": "dim"}


class Picture:
    """Draws a run in the terminal, over and over."""

    interval_seconds = REDRAW_SECONDS

    def __init__(
        self, console: Console | None = None, clock: Clock | None = None, *, place: Place | None = None
    ) -> None:
        """With a `place`, the commands that end what the run waits for are shown of one that is stayed with."""
        self._place = place
        self._console = console or Console(highlight=False)
        self._clock = clock or SystemClock()
        self._forecast = Forecast(self._clock)
        self._notice = ""
        self._turn = 0
        self._lock = threading.RLock()
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._prints: list[_Above] = []
        self._start()

    def begin(self) -> None:
        pass

    def heard(self, watch: Watch, entries: Sequence[Recorded]) -> None:
        pass

    def draw(self, watch: Watch) -> None:
        self._turn += 1
        picture = Group(*self.lines(watch))
        with self._lock:
            self._live.update(picture, refresh=True)

    def stopping(self, watch: Watch) -> None:
        self._notice = stopping_text(watch)
        self.draw(watch)

    def close(self) -> None:
        with self._lock:
            try:
                for stream in self._prints:
                    stream.flush()  # what has no end of line yet
            finally:
                self._live.stop()
                sys.stdout, sys.stderr = map(_Above.unwrapped, (sys.stdout, sys.stderr))
        sys.stdout.flush()

    def _start(self) -> None:
        with self._lock:
            if self._console.is_terminal:
                self._prints = [_Above(self._console, stream, self._lock) for stream in (sys.stdout, sys.stderr)]
                sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in self._prints)
            with self._console:
                self._live.start()
                self._console.show_cursor()  # whoever is killed cannot do that any more

    def lines(self, watch: Watch) -> Iterator[Text]:
        """Yield the picture as it is at this moment."""
        yield self._head(watch)
        room = max(self._console.height - _FRAME_LINES, 5)
        is_folded = len(watch.nodes) + len({node.stage for node in watch.nodes}) > room
        rows = list(itertools.islice(self._rows(watch, folded=is_folded), room + 1))
        if len(rows) > room:
            rows[room - 1 :] = [Text("  … and more", "dim")]
        yield from rows
        yield self._summary(watch)
        if line := self._forecast.line(watch):
            yield self._fitted(Text(f"  {line}", "dim"))
        if self._place is not None and watch.is_stayed_with:
            for why, command in how_to_end(watch.run_id, watch.awaited(), self._place):
                yield Text("  ").append(f"{why}: ", "dim").append(command)
        if self._notice:
            yield Text(self._notice, "yellow")

    def _head(self, watch: Watch) -> Text:
        run = watch.run
        mark, meaning = RUN_MARKS[run.status]
        head = Text(f"{mark} ", _STYLES[meaning])
        head.append(plain(run.workflow), "bold")
        head.append(f"  run {plain(run.run_id)}", "dim")
        if watch.goes_on_elsewhere:
            head.append("  driven by another process", "dim")
        return self._fitted(head)

    def _rows(self, watch: Watch, *, folded: bool) -> Iterator[Text]:
        names = min(max((len(node.id) for node in watch.nodes), default=0), _NAME_WIDTH)
        table = _Table(watch.flowing(now=self._clock.now_micros()), is_wide=self._console.width >= _WIDE)
        stages: dict[str | None, list[Node]] = {}
        for node in watch.nodes:
            stages.setdefault(node.stage, []).append(node)
        for stage, members in stages.items():
            if stage is not None:
                yield self._fitted(Text(f"  {plain(stage)}", "bold"))
            indent = "  " if stage is None else " " * _INDENT
            states = [watch.projection.node(node.id) for node in members]
            if folded and (rest := _counted(state for state in states if not _is_moving(state))):
                yield self._fitted(Text(indent).append(rest, "dim"))
            for state in states:
                if not folded or _is_moving(state):
                    yield self._row(state, watch, names, indent, table)

    def _row(self, state: NodeState, watch: Watch, names: int, indent: str, table: _Table) -> Text:
        status, waits, shown = watch.status(state), watch.waits_of(state.node_id), watch.shown.get(state.node_id)
        mark, meaning = NODE_MARKS[status]
        if status is NodeStatus.RUNNING:
            mark = _SPINNER[self._turn % len(_SPINNER)]
        row = Text(indent).append(f"{mark} ", _STYLES[meaning])
        row.append(padded(plain(state.node_id), names + _INDENT - len(indent)), "dim" if meaning == "faint" else "")
        row.append(f" {self._time(state, status, waits):>9}", "dim")
        has_columns = table.append(row, state.node_id)
        if state.attempt > 1:
            row.append(f"  attempt {state.attempt}", "yellow")
        if status is NodeStatus.SUSPENDED and waits:
            more = f" and {len(waits) - 1:,} more" if len(waits) > 1 else ""
            row.append(f"  {waiting_words(waits[0], now=self._clock.now_micros())}{more}", "yellow")
        elif shown is not None and status is NodeStatus.RUNNING:
            _append_shown(row, Shown(text=shown.text) if has_columns else shown)
        elif state.status not in ENDED and state.error is not None:
            row.append(f"  {error_line(state.error)}", "yellow")
        elif state.status is NodeStatus.FAILED and state.error is not None:
            row.append(f"  {error_line(state.error)}", "red")
        return self._fitted(row)

    def _time(self, state: NodeState, status: NodeStatus, waits: Sequence[WaitState]) -> str:
        if status is NodeStatus.SUSPENDED:
            return duration(self._clock.now_micros() - waits[0].opened_at) if waits else ""
        if status is NodeStatus.RUNNING and state.started_at is not None:
            return duration(self._clock.now_micros() - state.started_at)
        if state.status is NodeStatus.SCHEDULED and state.due is not None:
            return f"in {duration(state.due - self._clock.now_micros())}"
        return "" if state.duration_ms is None else duration(state.duration_ms * 1_000)

    def _summary(self, watch: Watch) -> Text:
        counts = watch.counts()
        summary = Text("  ")
        for status, (mark, meaning) in NODE_MARKS.items():
            if counts[status] and status is not NodeStatus.IDLE:
                summary.append(f"{mark} {counts[status]} ", _STYLES[meaning]).append(f"{words_of(status)}   ", "dim")
        done = counts[NodeStatus.COMPLETED] + counts[NodeStatus.SKIPPED]
        summary.append(f"{done} of {counted(len(watch.nodes), 'node')}", "dim")
        run = watch.run
        if run.started_at is not None:
            elapsed = (run.ended_at or self._clock.now_micros()) - run.started_at
            summary.append(f"   {duration(elapsed)}", "dim")
        return self._fitted(summary)

    def _fitted(self, line: Text) -> Text:
        line.truncate(self._console.width, overflow="ellipsis")
        line.no_wrap = True
        return line


class _Above(FileProxy):
    """Prints above the picture. Nothing is drawn meanwhile: what is printed where the picture has just come is erased with it."""

    def __init__(self, console: Console, stream: TextIO, lock: threading.RLock) -> None:
        super().__init__(console, stream)
        self._lock = lock
        self._is_in_line = False
        """Whether what was printed last has no end of line yet."""

    def write(self, text: str) -> int:
        with self._lock:
            super().write(text)
            if text:
                self._is_in_line = not text.endswith("\n")
        return len(text)

    def flush(self) -> None:
        with self._lock:
            if self._is_in_line:  # what is printed is no markup, for which rich would take it when it is flushed
                self.write("\n")

    @staticmethod
    def unwrapped(stream: TextIO) -> TextIO:
        """Return what a stream was before; itself if somebody has put something else in its place."""
        return cast("TextIO", stream.rich_proxied_file) if isinstance(stream, _Above) else stream


class _Table:
    """The columns of the nodes that have to do with streams, each as wide as the widest of them."""

    def __init__(self, flowing: Mapping[NodeId, Flowing], *, is_wide: bool) -> None:
        self._flowing = flowing
        self._rows = {name: columns_of(node) for name, node in flowing.items()}
        self._has_bars = is_wide and any(_share(node) is not None for node in flowing.values())
        rows = self._rows.values()
        self._done = max((len(row.done) for row in rows), default=0)
        self._total = max((len(row.total) for row in rows), default=0)
        self._rate = max((len(row.rate) for row in rows), default=0)
        self._activity = max((len(row.activity) for row in rows), default=0)
        self._waiting = max((len(row.waiting) for row in rows), default=0)

    def append(self, line: Text, node_id: NodeId) -> bool:
        """Append the columns of a node. False if it has none."""
        columns = self._rows.get(node_id)
        if columns is None or columns == Columns():
            return False
        line.append(f"  {columns.done:>{self._done}}").append(f"{columns.total:<{self._total}}", "dim")
        if self._has_bars:
            self._append_bar(line, _share(self._flowing[node_id]))
        line.append(_column(f"{columns.rate:>{self._rate}}"))
        line.append(_column(f"{columns.activity:<{self._activity}}"), "dim")
        line.append(_column(f"{columns.waiting:<{self._waiting}}"), "dim")
        line.append(_column(columns.failed), "red").append(_column(columns.retrying), "yellow")
        line.rstrip()
        return True

    @staticmethod
    def _append_bar(line: Text, share: float | None) -> None:
        if share is None:
            line.append(" " * (_STREAM_BAR_WIDTH + 2))
        else:
            _append_bar(line, share, _STREAM_BAR_WIDTH)


def _column(text: str) -> str:
    """Return a column with the space before it; nothing if no row has it."""
    return f"  {text}" if text else ""


def _share(flowing: Flowing) -> float | None:
    """Return how much of a node's work is done, while that is known and something is left."""
    if flowing.headway is None or not flowing.total or flowing.headway.done >= flowing.total:
        return None
    return flowing.headway.done / flowing.total


def _is_moving(state: NodeState) -> bool:
    """Whether the node gets a line of its own when there are many."""
    return state.status not in (NodeStatus.IDLE, NodeStatus.COMPLETED, NodeStatus.SKIPPED, NodeStatus.CANCELLED)


def _counted(states: Iterator[NodeState]) -> str:
    counts = Counter(state.status for state in states)
    told = (f"{NODE_MARKS[status][0]} {number} {words_of(status)}" for status, number in counts.items())
    return "   ".join(told)


def _append_shown(row: Text, shown: Shown) -> None:
    if shown.done is not None and shown.total:
        share = min(max(shown.done / shown.total, 0.0), 1.0)
        _append_bar(row, share, _BAR_WIDTH)
        row.append(f" {share:>4.0%}")
    elif shown.done is not None:
        row.append(f"  {shown.done:g}")
    if shown.text:
        row.append(f"  {fitted(plain(shown.text), 200)}", "dim")


def _append_bar(row: Text, share: float, width: int) -> None:
    filled = int(share * width)
    row.append("  " + "━" * filled, "cyan").append("━" * (width - filled), "dim")
