"""What `load_run` and `dump_run` return, put together: rows of many kinds from one snapshot."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Any

from perdure.ids import BranchId, EngineId
from perdure.journal.projection import Given
from perdure.journal.times import PastRun
from perdure.store import branches, checkpoints, rows, segments, waits
from perdure.store.past import past_run_of
from perdure.store.postgres.session import Rows
from perdure.store.shapes import RunDump, StoredRun
from perdure.store.transitions import BlobUse

Kinds = dict[str, list[tuple[Any, ...]]]


def stored_run_of(found: Rows) -> StoredRun | None:
    """Read the rows of `load_run`."""
    kinds = _by_kind(found)
    return _stored_run(kinds) if kinds["run"] else None


def dump_of(found: Rows) -> RunDump | None:
    """Read the rows of `dump_run`."""
    kinds = _by_kind(found)
    if not kinds["run"]:
        return None
    stored = _stored_run(kinds)
    older = (segments.events_of(content) for _, content in sorted(kinds["segment"]))
    newer = (rows.event_of(row) for row in sorted(kinds["event"]))
    return RunDump(
        stored=stored,
        events=(*chain.from_iterable(older), *newer),
        all_nodes=tuple(rows.node_of_row(row) for row in sorted(kinds["node"], key=_place_of_node)),
        version=next((rows.version_of(row) for row in kinds["version"]), None),
        blobs=tuple(BlobUse(digest=digest, size=size) for digest, size in sorted(kinds["blob"])),
        items=tuple(rows.item_of(row) for row in sorted(kinds["item"], key=_place_of_item)),
        all_waits=tuple(waits.wait_of(row) for row in sorted(kinds["wait"], key=_place_of_wait)),
        checkpoints=tuple(
            checkpoints.checkpoint_of(row) for row in sorted(kinds["checkpoint"], key=_place_of_checkpoint)
        ),
        branches=tuple(branches.branch_of(row) for row in sorted(kinds["branch"], key=_place_of_branch)),
    )


def past_runs_of(found: Rows) -> list[PastRun]:
    """Read the rows of `past_runs`."""
    ends: list[tuple[int, str]] = []
    nodes: dict[str, Rows] = defaultdict(list)
    waits_of: dict[str, Rows] = defaultdict(list)
    for kind, run_id, *row in found:
        if kind == "run":
            ends.append((row[3], run_id))
        elif kind == "node":
            nodes[run_id].append(tuple(row))
        else:
            node_id, _, opened_at, settled_at, _, wait_kind = row
            waits_of[run_id].append((node_id, wait_kind, opened_at, settled_at))
    return [past_run_of(run_id, nodes[run_id], waits_of[run_id]) for _, run_id in sorted(ends, reverse=True)]


def _by_kind(found: Rows) -> Kinds:
    kinds: Kinds = defaultdict(list)
    for kind, row in found:
        kinds[kind].append(row)
    return kinds


def _stored_run(kinds: Kinds) -> StoredRun:
    row = kinds["run"][0]
    run, owner = rows.run_of(row), row[22]
    of_branch = (wait for wait in kinds["wait"] if wait[0] == run.branch_id)
    nodes = sorted((node for node in kinds["node"] if node[0] == run.branch_id), key=_place_of_node)
    return StoredRun(
        run=run,
        owner=None if owner is None else EngineId(owner),
        nodes=tuple(rows.node_of_row(node) for node in nodes),
        steps=tuple(rows.step_of(step) for step in sorted(kinds["step"], key=_place_of_step)),
        waits=tuple(waits.wait_of(wait) for wait in sorted(of_branch, key=_place_of_wait)),
        signals=tuple(waits.signal_of(signal) for signal in sorted(kinds["signal"], key=_place_of_signal)),
        commands=tuple(rows.command_of(command) for command in sorted(kinds["command"], key=_age_of_command)),
        given=_given(kinds, run.branch_id),
        last_branch=BranchId(max((row[0] for row in kinds["branch"]), default=run.branch_id)),
        tail=tuple(rows.mark_of(mark) for mark in sorted(kinds["mark"])),
    )


def _given(kinds: Kinds, branch_id: BranchId) -> Given:
    for row in kinds["branch"]:
        if row[0] == branch_id:
            return branches.branch_of(row).given
    return {}


def _place_of_node(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:2]


def _place_of_step(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:4]


def _place_of_item(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:3]


def _place_of_wait(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[15], row[0], row[1])


def _place_of_signal(row: tuple[Any, ...]) -> Any:
    return row[4]


def _place_of_branch(row: tuple[Any, ...]) -> Any:
    return row[0]


def _place_of_checkpoint(row: tuple[Any, ...]) -> Any:
    return row[3]


def _age_of_command(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[4], row[0])
