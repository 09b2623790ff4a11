"""What nodes wait for, as rows: one order of columns and one encoding for every database, as in `rows.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.ids import BranchId, NodeId, RunId, Seq
from perdure.journal.states import Question, RunStatus, SignalState, WaitKind, WaitState, WaitStatus
from perdure.store.rows import Row, to_json
from perdure.store.shapes import OpenWait, Wakings

_BEFORE_ALL = (-(2**63), "")


_question = msgspec.json.Decoder(Question)


def wait_row(wait: WaitState) -> tuple[Any, ...]:
    """branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id, due, result, responded_by,
    opened_at, settled_at, last_seq"""
    return (
        wait.branch_id,
        wait.wait_id,
        wait.node_id,
        wait.kind,
        wait.name,
        wait.occurrence,
        wait.status,
        None if wait.question is None else to_json(wait.question),
        wait.signal,
        wait.signal_id,
        wait.due,
        None if wait.result is None else bytes(wait.result).decode(),
        wait.by,
        wait.opened_at,
        wait.settled_at,
        wait.last_seq,
    )


def wait_of(row: Row) -> WaitState:
    """Read the columns of `wait_row`."""
    return WaitState(
        branch_id=BranchId(row[0]),
        wait_id=row[1],
        node_id=NodeId(row[2]),
        kind=WaitKind(row[3]),
        name=row[4],
        occurrence=row[5],
        status=WaitStatus(row[6]),
        question=None if row[7] is None else _question.decode(row[7]),
        signal=row[8],
        signal_id=row[9],
        due=row[10],
        result=None if row[11] is None else msgspec.Raw(row[11].encode()),
        by=row[12],
        opened_at=row[13],
        settled_at=row[14],
        last_seq=Seq(row[15]),
    )


def open_wait_of(row: Row) -> OpenWait:
    """Read run_id, workflow, the columns of `wait_row`, and the status of the run."""
    return OpenWait(run_id=RunId(row[0]), workflow=row[1], wait=wait_of(row[2:]), run_status=RunStatus(row[-1]))


def signal_row(signal: SignalState) -> tuple[Any, ...]:
    """signal_id, name, value, received_at, seq"""
    return (signal.signal_id, signal.name, bytes(signal.value).decode(), signal.received_at, signal.seq)


def signal_of(row: Row) -> SignalState:
    """Read the columns of `signal_row`."""
    return SignalState(
        signal_id=row[0], name=row[1], value=msgspec.Raw(row[2].encode()), received_at=row[3], seq=Seq(row[4])
    )


def listing(
    *,
    run_id: RunId | None,
    status: WaitStatus | None,
    questions_only: bool,
    after: tuple[int, str] | None,
    limit: int,
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that answers `Store.list_waits`, and what it is given after the project."""
    page = after or _BEFORE_ALL
    if run_id is not None:
        return "list_run_waits", (*page, status, questions_only, run_id, limit)
    if status is not WaitStatus.OPEN:
        return "list_waits", (*page, status, questions_only, limit)
    return "list_open_questions" if questions_only else "list_open_waits", (*page, limit)


def wakings_of(found: Sequence[Row], *, limit: int) -> Wakings:
    """Read run_id and since when it is to be woken, once for each reason; a row without a run_id says when the next one is."""
    since: dict[RunId, int] = {}
    next_at: int | None = None
    for run_id, at in found:
        if run_id is None:
            next_at = at
        else:
            since[run_id] = min(at, since.get(run_id, at))
    return Wakings(runs=tuple(sorted(since, key=lambda run_id: (since[run_id], run_id))[:limit]), next_at=next_at)
