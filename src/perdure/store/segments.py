"""The older part of a long log, many events to a row: how they are put together and taken apart again."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.errors import StoreDamaged
from perdure.ids import Epoch, RunId, Seq
from perdure.journal.events import BranchCreated, Recorded, RunReopened
from perdure.store.rows import Row, event_of
from perdure.store.shapes import LongLog, Segment

_REOPENING = (RunReopened.__name__, BranchCreated.__name__)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[tuple[int, str, int, int, int, str, str, str | None]])


def segment_row(rows: Sequence[Row]) -> tuple[Any, ...]:
    """Put rows of the log into one: last_seq, first_seq, first_epoch, last_epoch, first_time, last_time, reopens, events

    They are seq, id, branch_id, epoch, event_time, payload, event_type, node_id, in order.
    """
    first, last = rows[0], rows[-1]
    times = [row[4] for row in rows]
    reopens = any(row[6] in _REOPENING for row in rows)
    return (last[0], first[0], first[3], last[3], min(times), max(times), reopens, zlib.compress(_encoder.encode(rows)))


def segment_of(row: Row) -> Segment:
    """Read first_seq, last_seq, first_epoch, last_epoch, first_time, last_time, reopens."""
    return Segment(
        first_seq=Seq(row[0]),
        last_seq=Seq(row[1]),
        first_epoch=Epoch(row[2]),
        last_epoch=Epoch(row[3]),
        first_time=row[4],
        last_time=row[5],
        reopens=bool(row[6]),
    )


def long_log_of(row: Row) -> LongLog:
    """Read run_id, last_seq, in_segments, is_audited."""
    return LongLog(run_id=RunId(row[0]), last_seq=Seq(row[1]), in_segments=row[2], is_audited=bool(row[3]))


def events_of(content: bytes) -> list[Recorded]:
    """Return the events of a segment."""
    try:
        return [event_of(row) for row in _decoder.decode(zlib.decompress(content))]
    except (zlib.error, msgspec.MsgspecError) as error:
        raise StoreDamaged(
            f"A part of a run's log that was made compact cannot be read: {error}. Restore the database from a backup."
        ) from error


def page_of(content: bytes, *, after: int, limit: int) -> list[Recorded]:
    """Return the next events of a segment after one of them, `limit` at most."""
    return [entry for entry in events_of(content) if entry.seq > after][:limit]


def are_next(rows: Sequence[Row], after: int) -> bool:
    """Whether rows of the log begin with the event after this one; if not, it may be in a segment."""
    return bool(rows) and rows[0][0] == after + 1
