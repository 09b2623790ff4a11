"""Runs that have completed as rows, as far as it is of interest how long they took: one reading for every database."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.ids import NodeId, RunId
from perdure.journal.states import WaitKind
from perdure.journal.times import PastNode, PastRun, PastWait
from perdure.store.rows import Row

WAITS_PER_RUN = 1_000
"""How many of the waits of an earlier run are read: where there are more, they are alike."""


class _Done(msgspec.Struct, frozen=True):
    entries: int = 0


_stream = msgspec.json.Decoder(_Done)


def past_run_of(run_id: str, nodes: Iterable[Row], waits: Iterable[Row]) -> PastRun:
    """Read node_id, scheduled_at, started_at, ended_at, duration_ms, stream of nodes and node_id, kind, opened_at, settled_at of
    waits."""
    return PastRun(
        run_id=RunId(run_id),
        nodes=tuple(map(_node_of, nodes)),
        waits=tuple(
            PastWait(node_id=NodeId(row[0]), kind=WaitKind(row[1]), opened_at=row[2], settled_at=row[3])
            for row in waits
        ),
    )


def _node_of(row: Row) -> PastNode:
    return PastNode(
        node_id=NodeId(row[0]),
        scheduled_at=row[1],
        started_at=row[2],
        ended_at=row[3],
        duration_ms=row[4],
        items=None if row[5] is None else _stream.decode(row[5]).entries,
    )
