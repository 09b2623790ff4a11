"""How long a commit will take on this disk, learned from those before it."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.store.transitions import Transition

FEW_ROWS = 10
"""What so few rows cost is the commit itself."""
WEIGHT = 0.1
"""How much the latest one counts."""
PAGE_BYTES = 4_096


class Pace:
    """How long commits take here, measured: a fixed part per commit, a part per row, and how much of that is writing it."""

    def __init__(self) -> None:
        self._per_commit = 0.000_5
        self._per_row = 0.000_010
        self._per_row_written = 0.000_004

    def to_commit(self, rows: int) -> float:
        """Return how long it will take until so many rows are durable."""
        return self._per_commit + self._per_row * rows

    def to_write(self, rows: int) -> float:
        """Return how long it will take to write so many rows, which are not durable by that."""
        return self._per_row_written * rows

    def committed(self, rows: int, seconds: float) -> None:
        if rows <= FEW_ROWS:
            self._per_commit += (seconds - self._per_commit) * WEIGHT
        else:
            self._per_row += (max(seconds - self._per_commit, 0.0) / rows - self._per_row) * WEIGHT

    def written(self, rows: int, seconds: float) -> None:
        if rows > FEW_ROWS:
            self._per_row_written += (seconds / rows - self._per_row_written) * WEIGHT


def rows_of(transitions: Sequence[Transition]) -> int:
    """Count rows. Those of streams are long, and count by the page."""
    rows = len(transitions)
    for transition in transitions:
        rows += len(transition.events) + len(transition.nodes)
        for items in transition.items:
            rows += 1 + len(items.items) // PAGE_BYTES
    return rows
