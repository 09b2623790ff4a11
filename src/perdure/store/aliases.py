"""Aliases of workflows as rows: one order of columns and one encoding for every database, as in `rows.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.store.rows import Row, to_json
from perdure.store.shapes import AliasMove, AliasState, Kept

_targets: msgspec.json.Decoder[dict[int, int]] = msgspec.json.Decoder(dict[int, int])
_KEPT: tuple[Kept, ...] = ("missing", "newest", "aliased", "used")


def move_row(move: AliasMove) -> tuple[Any, ...]:
    """workflow, alias, revision, targets, restores, moved_at"""
    targets = {str(version): weight for version, weight in sorted(move.targets.items())}
    return move.workflow, move.alias, move.revision, to_json(targets), move.restores, move.moved_at


def move_of(row: Row) -> AliasMove:
    """Read the columns of `move_row`."""
    return AliasMove(
        workflow=row[0],
        alias=row[1],
        revision=row[2],
        targets=_targets.decode(row[3]),
        restores=row[4],
        moved_at=row[5],
    )


def state_of(found: Sequence[Row]) -> AliasState:
    """Read the newest version and then the columns of `move_row`, which are empty if there is no move. Where nothing is found,
    nothing could be asked for."""
    newest, *columns = found[0] if found else (None, None)
    return AliasState(move=None if columns[0] is None else move_of(columns), newest=newest)


def kept_of(row: Row) -> Kept | None:
    """Read why a version cannot be deleted: is_there, is_newest, is_aliased, is_used."""
    is_there, *reasons = row
    return next((kept for kept, holds in zip(_KEPT, (not is_there, *reasons), strict=True) if holds), None)
