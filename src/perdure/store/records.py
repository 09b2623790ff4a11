"""Everything that a store holds about a run, as records of a few kinds: what a run consists of when it leaves its database.

A store gives them in pages, from one snapshot, and takes them in the same way. The kinds come in the order of `Kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from perdure.ids import RunId
from perdure.journal.events import Recorded, RunDeleted
from perdure.journal.followed import Followed, versions_followed
from perdure.journal.states import BranchState, CheckpointState, NodeState, RunState, SignalState, WaitState
from perdure.store import branches, checkpoints, rows, segments, waits
from perdure.store.shapes import Command, LogLine, WorkflowVersion
from perdure.store.transitions import BlobUse, ItemRow, StepRow

RECORDS_PER_PAGE = 500
_LOG = "load_events"
_FIRST_BRANCH = 1
_EVENTS_THAT_TELL = 2
"""A branch is activated when it has been created, and the doctor says then by which version the run goes on."""


class Kind(IntEnum):
    """What a record is. Numbers are part of the format of bundles: none is ever used again."""

    RUN = 1
    VERSION = 2
    BRANCH = 3
    EVENT = 4
    NODE = 5
    STEP = 6
    WAIT = 7
    SIGNAL = 8
    CHECKPOINT = 9
    ITEM = 10
    COMMAND = 11
    BLOB = 12
    LOG = 13
    TAG = 14


class Refused(Exception):
    """The database will not have these records: nothing of the run was written."""


class Tag(msgspec.Struct, frozen=True):
    """A word by which people find the run again."""

    name: str


class KeptCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command with the event at which it was taken up; None if it waits."""

    command: Command
    taken_seq: int | None = None


Record = (
    RunState
    | WorkflowVersion
    | BranchState
    | Recorded
    | NodeState
    | StepRow
    | WaitState
    | SignalState
    | CheckpointState
    | ItemRow
    | KeptCommand
    | BlobUse
    | LogLine
    | Tag
)

KINDS: dict[type[Any], Kind] = {
    RunState: Kind.RUN,
    WorkflowVersion: Kind.VERSION,
    BranchState: Kind.BRANCH,
    Recorded: Kind.EVENT,
    NodeState: Kind.NODE,
    StepRow: Kind.STEP,
    WaitState: Kind.WAIT,
    SignalState: Kind.SIGNAL,
    CheckpointState: Kind.CHECKPOINT,
    ItemRow: Kind.ITEM,
    KeptCommand: Kind.COMMAND,
    BlobUse: Kind.BLOB,
    LogLine: Kind.LOG,
    Tag: Kind.TAG,
}


class Query(msgspec.Struct, frozen=True):
    """A statement to execute, with what it is given after the project."""

    statement: str
    values: tuple[Any, ...]


Answer = Sequence[tuple[Any, ...]] | None
Reading = Generator[Query | list[Record], Answer, None]
"""What reading a run takes: it yields a query, to which the rows are sent, or a page of records."""


class _Listing(msgspec.Struct, frozen=True):
    """How the records of one kind are read: the statement, where its first page begins, and what a row says."""

    statement: str
    start: tuple[Any, ...]
    key_of: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    record_of: Callable[[tuple[Any, ...]], Record]


def command_row(kept: KeptCommand) -> tuple[Any, ...]:
    """command_id, run_id, kind, payload, created_at, taken_seq"""
    run_id, command_id, *rest = rows.command_row(kept.command)
    return (command_id, run_id, *rest, kept.taken_seq)


def command_of(row: tuple[Any, ...]) -> KeptCommand:
    """Read the columns of `command_row`."""
    return KeptCommand(command=rows.command_of(row[:5]), taken_seq=row[5])


_LISTINGS = (
    _Listing("page_branches", (0,), lambda row: (row[0],), branches.branch_of),
    _Listing(_LOG, (0,), lambda row: (row[0],), rows.event_of),
    _Listing("page_nodes", (0, ""), lambda row: (row[0], row[1]), rows.node_of_row),
    _Listing("page_steps", (0, "", "", 0), lambda row: tuple(row[:4]), rows.step_of),
    _Listing("page_waits", (0, ""), lambda row: (row[0], row[1]), waits.wait_of),
    _Listing("page_signals", (0,), lambda row: (row[4],), waits.signal_of),
    _Listing("list_checkpoints", (0,), lambda row: (row[3],), checkpoints.checkpoint_of),
    _Listing("page_items", (0, "", -1), lambda row: tuple(row[:3]), rows.item_of),
    _Listing("page_commands", ("",), lambda row: (row[0],), command_of),
    _Listing("page_blobs", ("",), lambda row: (row[0],), lambda row: BlobUse(digest=row[0], size=row[1])),
    _Listing("load_logs", (0,), lambda row: (row[0],), lambda row: rows.log_of(row)[1]),
    _Listing("page_tags", ("",), lambda row: (row[0],), lambda row: Tag(row[0])),
)


def reading(run_id: RunId) -> Reading:
    """Read all that is stored about a run, page by page, beginning with its own row; nothing if there is no such run."""
    found = yield Query("load_state", (run_id,))
    if not found:
        return
    run = rows.run_of(found[0])
    yield [run]
    for earlier in (yield from _followed_before(run)):
        for version in (yield Query("load_version", (run.workflow, earlier.version))) or ():
            saved = rows.version_of(version)
            if saved.graph_hash == earlier.graph_hash:
                yield [saved]
    for version in (yield Query("load_version", (run.workflow, run.version))) or ():
        yield [rows.version_of(version)]
    for listing in _LISTINGS:
        after = listing.start
        if listing.statement == _LOG:
            while older := (yield Query("next_segment", (run_id, *after))):
                events = segments.events_of(older[0][0])
                yield [*events]
                after = (events[-1].seq,)
        while page := (yield Query(listing.statement, (run_id, *after, RECORDS_PER_PAGE))):
            yield [listing.record_of(row) for row in page]
            if len(page) < RECORDS_PER_PAGE:
                break
            after = listing.key_of(page[-1])


def _followed_before(run: RunState) -> Generator[Query, Answer, list[Followed]]:
    """Return the versions that a run has followed on one of its branches beside the one that it follows."""
    if run.audit is not None or run.branch_id == _FIRST_BRANCH:  # it cannot have taken another one
        return []
    log = _Log(run.run_id)
    told = yield from log.after(0)
    after = _FIRST_BRANCH
    while page := (yield Query("page_branches", (run.run_id, after, RECORDS_PER_PAGE))):
        for row in page:
            told += yield from log.after(branches.branch_of(row).seq)
        after = page[-1][0]
    return [found for found in versions_followed(told) if found.version != run.version]


class _Log:
    """Reads events of a run here and there, those of the older part of a long log many at once."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id
        self._segment: list[Recorded] = []

    def after(self, seq: int) -> Generator[Query, Answer, list[Recorded]]:
        """Return the events that follow one, as many as may tell which version is followed from there on."""
        if not self._segment or not self._segment[0].seq <= seq + 1 <= self._segment[-1].seq:
            older = yield Query("next_segment", (self._run_id, seq))
            self._segment = segments.events_of(older[0][0]) if older else []
        found = [entry for entry in self._segment if seq < entry.seq <= seq + _EVENTS_THAT_TELL]
        if len(found) < _EVENTS_THAT_TELL:
            rest = _EVENTS_THAT_TELL - len(found)
            newer = yield Query(_LOG, (self._run_id, seq + len(found), rest))
            found += map(rows.event_of, newer or ())
        return found


def deletions_in(records: Sequence[Record]) -> list[int]:
    """Return when the values of a run were deleted, if one of these says so."""
    return [entry.at for entry in records if isinstance(entry, Recorded) and isinstance(entry.event, RunDeleted)]


def by_kind(page: Sequence[Record]) -> Iterator[tuple[Kind, list[Any]]]:
    """Yield the records of a page, those of one kind together, in the order in which they come."""
    together: list[Any] = []
    for record in page:
        if together and type(record) is not type(together[-1]):
            yield KINDS[type(together[-1])], together
            together = []
        together.append(record)
    if together:
        yield KINDS[type(together[-1])], together
