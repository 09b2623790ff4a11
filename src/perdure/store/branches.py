"""Lines of history as rows: one order of columns and one encoding for every database, as in `rows.py`."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.ids import BranchId, NodeId, Seq
from perdure.journal.events import Encoded
from perdure.journal.states import BranchState
from perdure.store.rows import Row

_names = msgspec.json.Decoder(tuple[NodeId, ...])
_given = msgspec.json.Decoder(dict[NodeId, dict[str, Encoded]])
_json = msgspec.json.Encoder()


def branch_row(branch: BranchState) -> tuple[Any, ...]:
    """branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at, created_seq, restored"""
    return (
        branch.branch_id,
        branch.parent,
        branch.cut,
        _json.encode(branch.dropped).decode(),
        _json.encode(branch.retried).decode(),
        _json.encode(branch.given).decode(),
        branch.reason,
        branch.asked_as,
        branch.created_at,
        branch.seq,
        int(branch.restored),
    )


def branch_of(row: Row) -> BranchState:
    """Read the columns of `branch_row`."""
    return BranchState(
        branch_id=BranchId(row[0]),
        parent=None if row[1] is None else BranchId(row[1]),
        cut=None if row[2] is None else Seq(row[2]),
        dropped=_names.decode(row[3]),
        retried=_names.decode(row[4]),
        given=_given.decode(row[5]),
        reason=row[6],
        asked_as=row[7],
        created_at=row[8],
        seq=Seq(row[9]),
        restored=bool(row[10]),
    )
