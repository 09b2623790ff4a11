"""A log in lines, with the batches of streams folded: of a million items there are thousands, between two events that matter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from perdure.cli.lines import items_in, line_of
from perdure.cli.words import counted, plain, time_of_day
from perdure.ids import NodeId
from perdure.journal import events as e

MOST_FAILURES = 3
"""How many failed items of a node are told one by one before something else happens."""

_STEP_OF_ITEM = re.compile(r"\d+/")
"""How the name of a step begins that was made in the call for one item."""


class _Stretch(msgspec.Struct):
    """What one node has done while nothing else happened than that streams flowed."""

    last: e.Recorded
    items: int = 0
    batches: int = 0
    steps: int = 0
    checkpoints: int = 0
    failures: int = 0


class Folding:
    """Turns events into numbered lines. A line that stands for several events has the number and the time of the last one."""

    def __init__(self) -> None:
        self._stretches: dict[NodeId, _Stretch] = {}
        self._failures: Counter[NodeId] = Counter()

    def add(self, entry: e.Recorded) -> Iterator[str]:
        """Take in the next event, and yield what can be printed by then."""
        if not self._is_held_back(entry):
            yield from self.flush()
            yield f"{entry.seq:>5} {line_of(entry)}"

    def flush(self) -> Iterator[str]:
        """Yield what was held back."""
        stretches = sorted(self._stretches.values(), key=lambda stretch: stretch.last.seq)
        self._stretches.clear()
        for stretch in stretches:
            yield f"{stretch.last.seq:>5} {_line(stretch)}"

    def _is_held_back(self, entry: e.Recorded) -> bool:
        match entry.event:
            case e.OutboxEnqueued() as batch:
                stretch = self._stretch(batch.node_id, entry)
                stretch.items += items_in(batch)
                stretch.batches += 1
            case e.ItemFailed(node_id=node_id):
                self._failures[node_id] += 1
                if self._failures[node_id] <= MOST_FAILURES:
                    return False
                self._stretch(node_id, entry).failures += 1
            case e.StepCompleted(node_id=node_id, name=name) if _STEP_OF_ITEM.match(name):
                self._stretch(node_id, entry).steps += 1
            case e.NodeCheckpointed(node_id=node_id) if node_id in self._stretches:
                self._stretch(node_id, entry).checkpoints += 1
            case _:
                self._failures.clear()
                return False
        return True

    def _stretch(self, node_id: NodeId, entry: e.Recorded) -> _Stretch:
        stretch = self._stretches.setdefault(node_id, _Stretch(last=entry))
        stretch.last = entry
        return stretch


def _line(stretch: _Stretch) -> str:
    event = stretch.last.event
    assert isinstance(event, e.NodeEvent), "only what nodes do is folded"
    parts: list[str] = []
    if stretch.batches:
        batches = f" in {stretch.batches:,} batches" if stretch.batches > 1 else ""
        parts.append(f"recorded {counted(stretch.items, 'item')}{batches}")
    if stretch.steps:
        parts.append(f"completed {counted(stretch.steps, 'step')}")
    if stretch.checkpoints:
        parts.append(f"took {counted(stretch.checkpoints, 'checkpoint')}")
    if stretch.failures:
        parts.append(f"{counted(stretch.failures, 'more failure')} of items")
    return f"{time_of_day(stretch.last.at)} {plain(event.node_id)} {', '.join(parts)}"
