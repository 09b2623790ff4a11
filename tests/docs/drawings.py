"""The two state machines as drawings, made from the law that the program obeys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from perdure.journal import events as e
from perdure.journal.states import ENDED, NODE_LAW, RUN_LAW, TERMINAL, NodeStatus, RunStatus

Law = Mapping[type[e.Event], Mapping[StrEnum, frozenset[StrEnum]]]

MOST_ARROWS = 5
"""What may happen in more states than this is told in a line below the drawing: so many arrows would hide the others."""


def draw_runs() -> str:
    """Return the states of a run as a Mermaid diagram."""
    return _drawn(RUN_LAW, RunStatus.CREATED, e.RunCreated.__name__, TERMINAL)


def draw_nodes() -> str:
    """Return the states of a node as a Mermaid diagram."""
    return _drawn(NODE_LAW, NodeStatus.IDLE, "", ENDED)


def wide_moves(law: Law) -> list[str]:
    """Return a line for each event that may happen in too many states to be drawn."""
    return [
        f"`{event.__name__}`: {', '.join(sorted(source.value for source, _ in moves))} → {target.value}"
        for event, found in law.items()
        for target in sorted({target for _, target in _moves(found)})
        if len(moves := [move for move in _moves(found) if move[1] is target]) > MOST_ARROWS
    ]


def _drawn(law: Law, first: StrEnum, birth: str, ends: frozenset[StrEnum]) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}" + (f": {birth}" if birth else "")]
    arrows: dict[tuple[str, str], list[str]] = {}
    for event, found in law.items():
        for source, target in sorted(_moves(found)):
            if sum(move[1] is target for move in _moves(found)) <= MOST_ARROWS:
                arrows.setdefault((source.value, target.value), []).append(event.__name__)
    lines += [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
    lines += [f"    {end.value} --> [*]" for end in sorted(ends)]
    return "\n".join(lines) + "\n"


def _moves(found: Mapping[StrEnum, frozenset[StrEnum]]) -> Iterator[tuple[StrEnum, StrEnum]]:
    """Yield where an event leads; what leaves everything as it is, is not a move."""
    for source, targets in found.items():
        yield from ((source, target) for target in targets if target is not source)
