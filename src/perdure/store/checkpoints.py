"""Checkpoints as rows: one order of columns and one encoding for every database, as in `rows.py`."""

from __future__ import annotations

from typing import Any

from perdure.ids import BranchId, Seq
from perdure.journal.states import CheckpointState
from perdure.store.rows import Row


def checkpoint_row(saved: CheckpointState) -> tuple[Any, ...]:
    """name, branch_id, seq, event_seq, periodic, asked_as, saved_at"""
    return (
        saved.name,
        saved.branch_id,
        saved.seq,
        saved.event_seq,
        saved.periodic,
        saved.asked_as,
        saved.saved_at,
    )


def checkpoint_of(row: Row) -> CheckpointState:
    """Read the columns of `checkpoint_row`."""
    return CheckpointState(
        name=row[0],
        branch_id=BranchId(row[1]),
        seq=Seq(row[2]),
        event_seq=Seq(row[3]),
        periodic=row[4],
        asked_as=row[5],
        saved_at=row[6],
    )
