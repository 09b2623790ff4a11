"""Records as they are written in bundles: the columns of their rows, in the order of `rows.py`, as a JSON list.

A column that is added later stands behind those that are there, with a default for rows that lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from perdure.store import branches, checkpoints, rows, waits
from perdure.store.records import Kind, Record, Tag, command_of, command_row
from perdure.store.transitions import BlobUse

_TYPES: Mapping[str, Any] = {"t": str, "T": str | None, "n": int, "N": int | None}


class Form:
    """How the records of a kind are written and read. What is read has exactly the types of its columns: a letter for each, t for
    a text and n for a number, capital if it may be null. Those of `values` are stored values, in JSON. The last ones, so many as
    `added`, are missing in what was written before they were there, and are null then."""

    def __init__(
        self,
        columns: str,
        row_of: Callable[[Any], tuple[Any, ...]],
        record_of: Callable[[Any], Record],
        *,
        values: tuple[int, ...] = (),
        added: int = 0,
    ) -> None:
        self.row_of = row_of
        self._decoder = _decoder(columns)
        self._older = [(_decoder(columns[:-missing]), (None,) * missing) for missing in range(1, added + 1)]
        self._record_of = record_of
        self._values = values

    def read(self, content: bytes) -> Record:
        """Return the record that was written as this. Raises MsgspecError or ValueError if it is none."""
        row = self._row(content)
        for column in self._values:
            if row[column] is not None:
                _value.decode(row[column])
        return self._record_of(row)

    def _row(self, content: bytes) -> tuple[Any, ...]:
        for decoder, missing in self._older:
            with suppress(msgspec.ValidationError):
                return (*decoder.decode(content), *missing)
        return self._decoder.decode(content)


def _decoder(columns: str) -> msgspec.json.Decoder[tuple[Any, ...]]:
    row_type: Any = tuple.__class_getitem__(tuple(_TYPES[letter] for letter in columns))
    return msgspec.json.Decoder(row_type)


_value = msgspec.json.Decoder(msgspec.Raw)

FORMS: Mapping[Kind, Form] = {
    Kind.RUN: Form(
        "ttntnttnntttTTTtnNnNNT",
        lambda run: (run.project_id, run.run_id, run.epoch, *rows.run_row(run)),
        rows.run_of,
        added=1,
    ),
    Kind.VERSION: Form(
        "tntttn",
        lambda version: (
            version.workflow,
            version.version,
            version.graph_hash,
            version.graph.decode(),
            rows.to_json(version.source),
            version.created_at,
        ),
        rows.version_of,
    ),
    Kind.BRANCH: Form("nNNtttttnnn", branches.branch_row, branches.branch_of),
    Kind.EVENT: Form(
        "ntnnnt",
        lambda entry: _event_columns(*rows.event_rows((), (entry,))[0]),
        rows.event_of,
    ),
    Kind.NODE: Form(
        "nttnnnnnTTTtNNNNNTn",
        lambda node: rows.node_rows((), (node,))[0],
        rows.node_of_row,
        values=(10,),
    ),
    Kind.STEP: Form("nttntn", rows.step_row, rows.step_of, values=(4,)),
    Kind.WAIT: Form(
        "nttttntTTTNTtnNn",
        waits.wait_row,
        waits.wait_of,
        values=(11,),
    ),
    Kind.SIGNAL: Form("tttnn", waits.signal_row, waits.signal_of, values=(2,)),
    Kind.CHECKPOINT: Form("tnnnntn", checkpoints.checkpoint_row, checkpoints.checkpoint_of),
    Kind.ITEM: Form(
        "ntnnnnt",
        lambda item: rows.item_rows((), (item,))[0],
        rows.item_of,
        values=(6,),
    ),
    Kind.COMMAND: Form("ttttnN", command_row, command_of),
    Kind.BLOB: Form(
        "tn",
        lambda use: (use.digest, use.size),
        lambda row: BlobUse(digest=row[0], size=row[1]),
    ),
    Kind.TAG: Form("t", lambda tag: (tag.name,), lambda row: Tag(row[0])),
    Kind.LOG: Form("tntnnttt", rows.log_row, lambda row: rows.log_of((0, *row))[1]),
}


def _event_columns(
    seq: int, event_id: str, branch_id: int, epoch: int, event_type: str, at: int, node_id: str | None, payload: str
) -> tuple[Any, ...]:
    """Leave out what the payload tells."""
    return (seq, event_id, branch_id, epoch, at, payload)
