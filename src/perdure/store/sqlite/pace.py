"""How long a commit will take on this disk, learned from those before it."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.store.transitions import Transition

FEW_ROWS = 10
"""What so few rows cost is the commit itself."""
WEIGHT = 0.1
"""How much the latest one counts."""


class Pace:
    """How long commits take here, measured: a fixed part per commit, a part per row, and how much of that is writing it."""

    def __init__(self) -> None:
        self._per_commit = 0.000_5
        self._per_row = 0.000_010
        self._per_row_written = 0.000_004

    def to_commit(self, transitions: Sequence[Transition]) -> float:
        """Return how long it will take until the transitions are durable."""
        return self._per_commit + self._per_row * _size(transitions)

    def to_write(self, transitions: Sequence[Transition]) -> float:
        """Return how long it will take to write their rows, which are not durable by that."""
        return self._per_row_written * _size(transitions)

    def committed(self, transitions: Sequence[Transition], seconds: float) -> None:
        size = _size(transitions)
        if size <= FEW_ROWS:
            self._per_commit += (seconds - self._per_commit) * WEIGHT
        else:
            self._per_row += (max(seconds - self._per_commit, 0.0) / size - self._per_row) * WEIGHT

    def written(self, transitions: Sequence[Transition], seconds: float) -> None:
        if (size := _size(transitions)) > FEW_ROWS:
            self._per_row_written += (seconds / size - self._per_row_written) * WEIGHT


def _size(transitions: Sequence[Transition]) -> int:
    """Count rows. Those of streams are long, and count by the page."""
    return sum(
        1 + len(transition.events) + len(transition.nodes) + sum(1 + len(row.items) // 4096 for row in transition.items)
        for transition in transitions
    )
