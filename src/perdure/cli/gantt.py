"""A run as a picture: its nodes over time, with every attempt, and the moments in which nobody drove it.

Time runs on the axis only while an engine had the run; between two engines the axis is broken, so that a run which was
resumed a week later is as easy to read as one that was resumed at once. Graphs with many nodes are drawn a row per
stage or node type, the more nodes run at once the higher.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perdure.cli.flowing import rate_text
from perdure.cli.marks import NODE_MARKS, Meaning, painted, words_of
from perdure.cli.terminal import Paper, Pen
from perdure.cli.timeline import Ending, Outcome, Period, Span, Timeline
from perdure.cli.words import cells, counted, duration, fitted, padded, plain, time_of_day
from perdure.graph.model import Node
from perdure.ids import NodeId
from perdure.journal.headway import Headway
from perdure.journal.states import NodeState, NodeStatus

MOST_ROWS = 40
"""With more nodes than this, they are drawn in groups."""
MOST_REMARKABLE = 12
"""How many nodes get a row of their own beside the groups, because something happened to them."""
MOST_BREAKS = 5
"""How many of the breaks of the axis are explained: the last ones."""

_NAME_WIDTH = 26
_NOTE_WIDTH = 24
_LEAST_AXIS = 20
_BREAK = 3
_LEVELS = "▁▂▃▄▅▆▇█"
_BARS: dict[Outcome, tuple[str, Meaning]] = {
    "completed": ("█", "good"),
    "running": ("▒", "moving"),
    "waiting": ("─", "warning"),
    "failed": ("╳", "bad"),
    "lost": ("░", "warning"),
    "cancelled": ("╌", "faint"),
}
_ENDINGS: dict[Ending, str] = {
    "died": "the process died",
    "stopped": "it was stopped",
    "rested": "it waited, with nobody driving it",
    "paused": "it was paused",
    "completed": "it completed",
    "failed": "it failed",
    "cancelled": "it was cancelled",
}
_TROUBLED: tuple[Outcome, ...] = ("failed", "lost")

_NO_STREAMS: Mapping[NodeId, Headway] = {}

Cell = tuple[str, Meaning | None]
_EMPTY: Cell = (" ", None)


def draw(
    nodes: Sequence[Node],
    states: Mapping[NodeId, NodeState],
    timeline: Timeline,
    paper: Paper,
    streams: Mapping[NodeId, Headway] = _NO_STREAMS,
) -> Iterator[str]:
    """Yield the picture, line by line. `nodes` are in the order in which they are to be shown."""
    if not timeline.spans:
        return
    notes = {
        node.id: _note(states.get(node.id), timeline.spans.get(node.id, ()), streams.get(node.id)) for node in nodes
    }
    is_grouped = len(nodes) > MOST_ROWS
    names = {_group_of(node) for node in nodes} if is_grouped else {node.id for node in nodes}
    if is_grouped:
        names |= {node.id for node in _remarkable(nodes, states, timeline)[:MOST_REMARKABLE]}
    name_width = min(max(cells(plain(name)) for name in names), _NAME_WIDTH, paper.width // 4)
    room = paper.width - name_width - 5
    longest = max((len(notes[node.id]) for node in nodes if node.id in names), default=0)
    note_width = min(max(_NOTE_WIDTH, longest), room - _LEAST_AXIS)
    axis = Axis(timeline.periods, room - note_width)
    sheet = _Sheet(paper.pen, axis, name_width, {name: fitted(note, note_width) for name, note in notes.items()})
    yield from (_groups if is_grouped else _nodes)(nodes, states, timeline, sheet)
    yield sheet.scale()
    yield from _breaks(timeline.periods, paper.pen)
    yield from _legend(timeline, paper.pen)


class Axis:
    """Where moments are, in columns."""

    def __init__(self, periods: Sequence[Period], width: int) -> None:
        self._periods = periods
        self.width = width
        self._break = self._break_width(len(periods) - 1)
        self.active = sum(period.end - period.start for period in periods)
        """For how long somebody drove the run."""
        self._starts: list[float] = []
        column = 0.0
        for period in periods:
            self._starts.append(column)
            column += self._columns(period.end - period.start) + self._break

    @property
    def breaks(self) -> Iterator[int]:
        """The columns that stand for the times between two engines."""
        if self._break:
            for start in self._starts[1:]:
                yield math.floor(start - self._break / 2)

    def column(self, at: int) -> float:
        """Return the column of a moment."""
        latest = next((i for i in reversed(range(len(self._periods))) if self._periods[i].start <= at), 0)
        inside = min(at, self._periods[latest].end) - self._periods[latest].start
        return self._starts[latest] + self._columns(inside)

    def cells(self, span: Span) -> range:
        """Return the columns that an attempt covers: at least one. A lost one goes on into the break."""
        first = min(math.floor(self.column(span.start)), self.width - 1)
        reach = self._break // 2 if span.outcome == "lost" else 0
        last = min(math.ceil(self.column(span.end) - 1e-6) + reach, self.width)
        return range(first, max(first + 1, last))

    def _columns(self, micros: int) -> float:
        room = self.width - self._break * (len(self._periods) - 1)
        return micros / max(self.active, 1) * room

    def _break_width(self, number: int) -> int:
        if number * _BREAK <= self.width // 3:
            return _BREAK
        return 1 if number <= self.width // 3 else 0


class _Sheet:
    """Puts names, bars and notes into lines of one width."""

    def __init__(self, pen: Pen, axis: Axis, name_width: int, notes: Mapping[NodeId, str]) -> None:
        self.pen = pen
        self.axis = axis
        self.notes = notes
        self._name_width = name_width

    def line(self, mark: tuple[str, Meaning], name: str, bar: Sequence[Cell], note: str) -> str:
        sign = painted(self.pen, *mark)
        label = padded(plain(name), self._name_width)
        shown = self.pen.faint(label) if mark[1] == "faint" else label
        return f"{sign} {shown} {self._painted(bar)}  {self.pen.faint(note)}".rstrip()

    def title(self, text: str) -> str:
        return self.pen.strong(plain(text))

    def bar(self, cells: Iterable[tuple[int, Cell]] = ()) -> list[Cell]:
        """Return a bar with these cells in their columns, and the times between engines marked."""
        bar = [_EMPTY] * self.axis.width
        for column, cell in cells:
            bar[column] = cell
        for column in self.axis.breaks:
            bar[column] = ("╎", "warning")
        return bar

    def scale(self) -> str:
        bar: list[Cell] = [("┈", "faint") if cell is _EMPTY else cell for cell in self.bar()]
        end = duration(self.axis.active)
        return f"{' ' * (self._name_width + 3)}{self._painted(bar)}  {self.pen.faint(end)}"

    def _painted(self, bar: Sequence[Cell]) -> str:
        parts: list[str] = []
        for meaning, group in itertools.groupby(bar, key=_meaning_of):
            text = "".join(sign for sign, _ in group)
            parts.append(text if meaning is None else painted(self.pen, text, meaning))
        return "".join(parts)


def _meaning_of(cell: Cell) -> Meaning | None:
    return cell[1]


def _nodes(
    nodes: Sequence[Node], states: Mapping[NodeId, NodeState], timeline: Timeline, sheet: _Sheet
) -> Iterator[str]:
    for stage, members in _by_stage(nodes):
        if stage is not None:
            yield sheet.title(stage)
        for node in members:
            yield _node_line(node, states.get(node.id), timeline.spans.get(node.id, ()), sheet)


def _node_line(node: Node, state: NodeState | None, spans: Sequence[Span], sheet: _Sheet) -> str:
    status = state.status if state is not None else NodeStatus.IDLE
    if status is NodeStatus.RUNNING and spans and spans[-1].outcome == "waiting":
        status = NodeStatus.SUSPENDED  # its body is in memory for a moment longer, and at rest
    # Trouble is drawn last: a failed attempt of a millisecond must not vanish under the one that followed.
    # Waiting is drawn first, for the same reason.
    drawn = sorted(spans, key=lambda span: (span.outcome in _TROUBLED, span.outcome != "waiting"))
    bar = sheet.bar((column, _BARS[span.outcome]) for span in drawn for column in sheet.axis.cells(span))
    return sheet.line(NODE_MARKS[status], node.id, bar, sheet.notes[node.id])


def _note(state: NodeState | None, spans: Sequence[Span], stream: Headway | None) -> str:
    if not spans:
        return words_of(state.status if state is not None else NodeStatus.IDLE)
    last = [span for span in spans if span.attempt == spans[-1].attempt]
    parts = [duration(sum(span.end - span.start for span in last if span.outcome != "waiting"))]
    if spans[-1].outcome == "waiting":
        parts.append("waits")
    elif waited := sum(span.end - span.start for span in last if span.outcome == "waiting"):
        parts.append(f"waited {duration(waited)}")
    for outcome in _TROUBLED:
        number = len({span.attempt for span in spans if span.outcome == outcome})
        if number:
            parts.append(f"{number} {outcome}")
    return " · ".join((*parts, *(_items(stream) if stream is not None else ())))


def _items(stream: Headway) -> Iterator[str]:
    """Yield what a node has done item by item."""
    is_known = stream.total is not None and stream.total != stream.done
    yield f"{stream.done:,} of {stream.total:,}" if is_known else counted(stream.done, "item")
    if stream.items_per_second is not None:
        yield rate_text(stream.items_per_second)
    if stream.failed:
        yield f"✗ {stream.failed:,}"
    if stream.retrying:
        yield f"↻ {stream.retrying:,}"


def _groups(
    nodes: Sequence[Node], states: Mapping[NodeId, NodeState], timeline: Timeline, sheet: _Sheet
) -> Iterator[str]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(_group_of(node), []).append(node)
    for name, members in groups.items():
        yield _group_line(name, members, states, timeline, sheet)
    remarkable = _remarkable(nodes, states, timeline)
    for node in remarkable[:MOST_REMARKABLE]:
        yield _node_line(node, states.get(node.id), timeline.spans.get(node.id, ()), sheet)
    if len(remarkable) > MOST_REMARKABLE:
        yield sheet.pen.faint(f"  and {counted(len(remarkable) - MOST_REMARKABLE, 'more node')} with failed attempts")


def _group_of(node: Node) -> str:
    return node.stage or node.type.rpartition(".")[2] or "nodes"


def _remarkable(nodes: Sequence[Node], states: Mapping[NodeId, NodeState], timeline: Timeline) -> list[Node]:
    return [node for node in nodes if _is_remarkable(states.get(node.id), timeline.spans.get(node.id, ()))]


def _is_remarkable(state: NodeState | None, spans: Iterable[Span]) -> bool:
    is_open = state is not None and state.status in (NodeStatus.FAILED, NodeStatus.IN_DOUBT, NodeStatus.SUSPENDED)
    return is_open or any(span.outcome in _TROUBLED for span in spans)


def _group_line(
    name: str, members: Sequence[Node], states: Mapping[NodeId, NodeState], timeline: Timeline, sheet: _Sheet
) -> str:
    load = [0] * sheet.axis.width
    for node in members:
        for span in timeline.spans.get(node.id, ()):
            for column in sheet.axis.cells(span) if span.outcome != "waiting" else ():
                load[column] += 1
    most = max(load) or 1
    heights = ((column, math.ceil(height / most * len(_LEVELS))) for column, height in enumerate(load) if height)
    bar = sheet.bar((column, (_LEVELS[height - 1], "good")) for column, height in heights)
    done = sum(_has_status(states.get(node.id), NodeStatus.COMPLETED) for node in members)
    failed = any(_has_status(states.get(node.id), NodeStatus.FAILED) for node in members)
    status = NodeStatus.FAILED if failed else NodeStatus.COMPLETED if done == len(members) else NodeStatus.RUNNING
    return sheet.line(NODE_MARKS[status], name, bar, f"{done:,} of {counted(len(members), 'node')}")


def _has_status(state: NodeState | None, status: NodeStatus) -> bool:
    return state is not None and state.status is status


def _by_stage(nodes: Sequence[Node]) -> Iterator[tuple[str | None, list[Node]]]:
    """Keep the nodes of a stage together, where its first one stands; those of none come first."""
    stages: dict[str | None, list[Node]] = {None: []}
    for node in nodes:
        stages.setdefault(node.stage, []).append(node)
    yield from ((stage, members) for stage, members in stages.items() if members)


def _breaks(periods: Sequence[Period], pen: Pen) -> Iterator[str]:
    """Say what the breaks of the axis stand for."""
    pairs = list(itertools.pairwise(periods))
    if len(pairs) > MOST_BREAKS:
        yield f"{pen.warning('╎')} {pen.faint(counted(len(pairs) - MOST_BREAKS, 'earlier break'))}"
    for before, after in pairs[-MOST_BREAKS:]:
        told = f"{time_of_day(before.end)} {_ENDINGS[before.ending]}, {time_of_day(after.start)} resumed"
        yield f"{pen.warning('╎')} {pen.faint(f'{told} ({duration(after.start - before.end)} later)')}"


def _legend(timeline: Timeline, pen: Pen) -> Iterator[str]:
    """Explain the signs that are used, if any of them needs it."""
    used = {span.outcome for spans in timeline.spans.values() for span in spans}
    if used <= {"completed"}:
        return
    signs = ((bar, outcome) for outcome, bar in _BARS.items() if outcome in used)
    yield "   ".join(f"{painted(pen, *bar)} {pen.faint(outcome)}" for bar, outcome in signs)
