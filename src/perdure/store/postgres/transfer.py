"""Whole runs out of a PostgreSQL database and into it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

from perdure.errors import PerdureError
from perdure.ids import RunId, Seq
from perdure.store import branches, checkpoints, rows, waits
from perdure.store.archives import archive_row
from perdure.store.postgres.documents import encode_rows
from perdure.store.postgres.failures import Trouble, problem_of, translate, trouble_of
from perdure.store.postgres.lanes import Lane
from perdure.store.postgres.session import Session
from perdure.store.postgres.texts import to_stored
from perdure.store.records import Kind, Query, Record, Refused, by_kind, command_row, deletions_in, reading
from perdure.store.shapes import ArchivedRun

Rows = list[tuple[Any, ...]]

_STATEMENTS: Mapping[Kind, tuple[str, Callable[[tuple[str, ...], Sequence[Any]], Rows]]] = {
    Kind.RUN: ("keep_run", lambda _, runs: [(run.run_id, None, run.epoch, *rows.run_row(run)) for run in runs]),
    Kind.BRANCH: ("keep_branches", lambda key, kept: [(*key, *branches.branch_row(row)) for row in kept]),
    Kind.EVENT: ("keep_events", rows.event_rows),
    Kind.NODE: ("keep_nodes", rows.node_rows),
    Kind.STEP: ("keep_steps", lambda key, kept: [(*key, *rows.step_row(row)) for row in kept]),
    Kind.WAIT: ("keep_waits", lambda key, kept: [(*key, *waits.wait_row(row)) for row in kept]),
    Kind.SIGNAL: ("keep_signals", lambda key, kept: [(*key, *waits.signal_row(row)) for row in kept]),
    Kind.CHECKPOINT: ("keep_checkpoints", lambda key, kept: [(*key, *checkpoints.checkpoint_row(row)) for row in kept]),
    Kind.ITEM: ("keep_items", rows.item_rows),
    Kind.COMMAND: ("keep_commands", lambda _, kept: [command_row(row) for row in kept]),
    Kind.BLOB: ("keep_blobs", lambda key, kept: [(*key, use.digest, use.size) for use in kept]),
    Kind.TAG: ("keep_tags", lambda key, kept: [(*key, tag.name) for tag in kept]),
    Kind.LOG: ("append_logs", lambda _, lines: [rows.log_row(line) for line in lines]),
}
"""By kind: the statement that writes such records, and the rows that it takes."""


class _ArchivedMeanwhile(Exception):
    """A run with the same id has just left for the archive: nothing is to be written."""


async def read_records(
    lane: Lane, where: str, project_id: str, run_ids: Sequence[RunId]
) -> AsyncGenerator[list[Record], None]:
    """Yield all that is stored about these runs, one after the other, from one state of the database."""
    try:
        async with lane.session() as session, session.transaction("begin_snapshot"):
            for run_id in run_ids:
                async for page in _read(session, project_id, run_id):
                    yield page
    except (PerdureError, GeneratorExit, asyncio.CancelledError):
        raise
    except Exception as error:  # whatever the driver raises is judged here
        if not _is_drivers_fault(error):
            raise
        raise translate(error, where) from error


async def _read(session: Session, project_id: str, run_id: RunId) -> AsyncGenerator[list[Record], None]:
    steps = reading(run_id)
    answer: Rows | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(step, Query):
            answer = await session.rows(step.statement, project_id, *step.values)
        else:
            yield step


async def write_records(
    lane: Lane,
    where: str,
    project_id: str,
    pages: Iterator[Sequence[Record]],
    *,
    from_archive: ArchivedRun | None,
    instead_of: Seq | None,
) -> bool:
    """Write a whole run in one transaction. False if one with its id is there. Raises Refused."""
    try:
        async with lane.session() as session, session.transaction("begin_whole"):
            return await _write(session, project_id, pages, from_archive=from_archive, instead_of=instead_of)
    except _ArchivedMeanwhile:
        return False
    except (PerdureError, Refused, asyncio.CancelledError):
        raise
    except Exception as error:  # whatever the driver raises is judged here
        if not _is_drivers_fault(error):
            raise
        if trouble_of(error) is Trouble.REFUSED:
            raise Refused(problem_of(error)) from error
        raise translate(error, where) from error


async def archive_runs(session: Session, project_id: str, archived: Sequence[ArchivedRun]) -> set[RunId]:
    """Remove runs that are in a file, and record where they are."""
    runs = {run.run_id: run for run in archived}
    async with session.transaction("begin_whole"):
        removed = await _removed(session, project_id, {run_id: run.last_seq for run_id, run in runs.items()})
        document = encode_rows([archive_row(runs[run_id]) for run_id in runs if run_id in removed])
        await session.write("add_archives", to_stored(project_id), document)
    return removed


async def _removed(session: Session, project_id: str, runs: Mapping[RunId, Seq]) -> set[RunId]:
    """Remove those of these runs that have ended with this event and that nobody wants to go on. Return which they were."""
    found = await session.rows("lock_archivable", project_id, list(runs), list(runs.values()))
    locked = {RunId(run_id) for (run_id,) in found}
    wanted = {RunId(run_id) for (run_id,) in await session.rows("wanted_again", project_id, list(locked))}
    chosen = locked - wanted
    if chosen:
        await session.rows("remove_parts", project_id, list(chosen))
        await session.rows("remove_states", project_id, list(chosen))
    return chosen


async def _write(
    session: Session,
    project_id: str,
    pages: Iterator[Sequence[Record]],
    *,
    from_archive: ArchivedRun | None,
    instead_of: Seq | None,
) -> bool:
    project = to_stored(project_id)
    key: tuple[str, ...] = ()
    while (page := await asyncio.to_thread(next, pages, None)) is not None:
        for kind, records in by_kind(page):
            if kind is Kind.VERSION:
                continue
            if kind is Kind.RUN:
                key = (records[0].run_id,)
                if from_archive is not None:
                    place = (from_archive.file, from_archive.position)
                    await session.rows("forget_archive", project_id, *key, *place)
                if instead_of is not None and not await _removed(session, project_id, {RunId(key[0]): instead_of}):
                    return False
            statement, rows_of = _STATEMENTS[kind]
            try:
                document = encode_rows(rows_of(key, records))
            except (UnicodeError, ValueError) as error:
                raise Refused(f"{type(error).__name__}: {error}") from error
            written = await session.write(statement, project, document)
            if kind is Kind.RUN:
                if not written:
                    return False
                # A statement of its own: who has removed a run of this id while the last one waited is seen only now.
                if await session.rows("load_archive", project_id, *key):
                    raise _ArchivedMeanwhile
            for at in deletions_in(records):
                await session.rows("add_deletion", project_id, *key, at)
    return True


def _is_drivers_fault(error: Exception) -> bool:
    """Whether an error comes from the connection, and not from whoever gives or takes the pages."""
    return type(error).__module__.partition(".")[0] == "asyncpg" or isinstance(error, TimeoutError | ConnectionError)
