"""Runs that leave a SQLite file for the archive, and the room that they leave behind.

The run itself goes in the very transaction that records where it is; so do its rows, if they are few. Those of a large run go in
portions, so that nobody who writes waits long: until then nothing leads to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw

from perdure.ids import RunId, Seq
from perdure.store.archives import archive_row
from perdure.store.shapes import ArchivedRun

FEW_EVENTS = 2_000
"""A run with no more events is removed at once."""
ALL = -1
SPARE_PAGES = 256
"""So many pages that nothing uses are kept for what comes."""
INCREMENTAL = 2

_PARTS = (
    "remove_events",
    "remove_segments",
    "remove_nodes",
    "remove_steps",
    "remove_items",
    "remove_logs",
    "remove_waits",
    "remove_commands",
    "remove_signals",
    "remove_checkpoints",
    "remove_blob_uses",
    "remove_deletion",
    "remove_tags",
    "remove_branches",
)


def archive_runs(
    connection: apsw.Connection, sql: Mapping[str, str], project: str, archived: Sequence[ArchivedRun]
) -> set[RunId]:
    """Remove runs that are in a file, inside a transaction without foreign keys, and record where they are."""
    done: set[RunId] = set()
    for run in archived:
        if not connection.execute(sql["is_archivable"], (project, run.run_id, run.last_seq)).get:
            continue
        connection.execute(sql["add_archive"], (project, *archive_row(run)))
        connection.execute(sql["remove_state"], (project, run.run_id))
        if run.last_seq <= FEW_EVENTS:
            _remove(connection, sql, project, run.run_id, ALL)
        done.add(run.run_id)
    return done


def make_way(connection: apsw.Connection, sql: Mapping[str, str], project: str, run_id: RunId, last_seq: Seq) -> bool:
    """Remove a run inside a transaction without foreign keys, for another one in its place. False if it has not ended so."""
    if not connection.execute(sql["is_archivable"], (project, run_id, last_seq)).get:
        return False
    connection.execute(sql["remove_state"], (project, run_id))
    _remove(connection, sql, project, run_id, ALL)
    return True


def remove_leftovers(connection: apsw.Connection, sql: Mapping[str, str], project: str, limit: int) -> None:
    """Remove so many rows of runs that are archived, inside a transaction without foreign keys."""
    for (run_id,) in connection.execute(sql["archives_left"], (project, 1)).fetchall():
        _remove(connection, sql, project, RunId(str(run_id)), limit)


def give_back(connection: apsw.Connection, pages: int) -> bool:
    """Cut so many unused pages off the file. False if there are hardly any, or if the file was made without that in mind."""
    if connection.pragma("auto_vacuum") != INCREMENTAL:
        return False
    unused = int(connection.pragma("freelist_count"))
    if unused <= SPARE_PAGES:
        return False
    connection.execute(f"PRAGMA incremental_vacuum({min(pages, unused - SPARE_PAGES)})").fetchall()
    return True


def _remove(connection: apsw.Connection, sql: Mapping[str, str], project: str, run_id: RunId, limit: int) -> None:
    left = limit
    for part in _PARTS:
        connection.execute(sql[part], (project, run_id, left))
        if limit != ALL:
            left -= connection.changes()
            if left <= 0:
                return
    connection.execute(sql["archive_removed"], (project, run_id))
