"""How long a commit will take on this disk, learned from those before it."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.store.transitions import Transition


class Pace:
    """How long commits take here, measured: a fixed part per commit and a part per row."""

    def __init__(self) -> None:
        self._per_commit = 0.0005
        self._per_row = 0.00001

    def expected(self, transitions: Sequence[Transition]) -> float:
        return self._per_commit + self._per_row * _size(transitions)

    def took(self, transitions: Sequence[Transition], seconds: float) -> None:
        size = _size(transitions)
        if size <= 10:
            self._per_commit += (seconds - self._per_commit) * 0.1
        else:
            self._per_row += (max(seconds - self._per_commit, 0.0) / size - self._per_row) * 0.1


def _size(transitions: Sequence[Transition]) -> int:
    """Count rows. Those of streams are long, and count by the page."""
    return sum(
        1 + len(transition.events) + len(transition.nodes) + sum(1 + len(row.items) // 4096 for row in transition.items)
        for transition in transitions
    )
