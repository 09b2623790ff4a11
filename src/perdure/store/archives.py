"""Archived runs as rows: one order of columns for every database, as in `rows.py`."""

from __future__ import annotations

from typing import Any

from perdure.ids import RunId, Seq
from perdure.journal.states import RunStatus
from perdure.store.rows import Row
from perdure.store.shapes import Archivable, ArchivedRun

BEGINNING = (-(2**63), "")
"""Where a listing begins that goes on in time."""


def archive_row(archived: ArchivedRun) -> tuple[Any, ...]:
    """run_id, workflow, workflow_version, status, created_at, ended_at, last_seq, archived_at, file, position, size, digest"""
    return (
        archived.run_id,
        archived.workflow,
        archived.version,
        archived.status,
        archived.created_at,
        archived.ended_at,
        archived.last_seq,
        archived.archived_at,
        archived.file,
        archived.position,
        archived.size,
        archived.digest,
    )


def archive_of(row: Row) -> ArchivedRun:
    """Read the columns of `archive_row`."""
    return ArchivedRun(
        run_id=RunId(row[0]),
        workflow=row[1],
        version=row[2],
        status=RunStatus(row[3]),
        created_at=row[4],
        ended_at=row[5],
        last_seq=Seq(row[6]),
        archived_at=row[7],
        file=row[8],
        position=row[9],
        size=row[10],
        digest=row[11],
    )


def archivable_of(row: Row) -> Archivable:
    """Read run_id, created_at, last_seq."""
    return Archivable(run_id=RunId(row[0]), created_at=row[1], last_seq=Seq(row[2]))
