"""Transitions as the JSON documents that the commit statements take apart again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from perdure.store import rows
from perdure.store.base import Claim, Keep, Release, Transition
from perdure.store.postgres.texts import needs_care, to_stored

_encoder = msgspec.json.Encoder()


def is_plain(transition: Transition) -> bool:
    """Whether the transition only goes on with a run, or lets it go: `advance_run` can write it."""
    if transition.base_seq == 0 or not isinstance(transition.lease, Keep | Release):
        return False
    return not (transition.steps or transition.blobs or transition.commands)


def advance_values(project_id: str, transition: Transition) -> tuple[Any, ...]:
    """Return what `advance_run` takes."""
    run = transition.run
    return (
        project_id,
        to_stored(transition.run_id),
        transition.epoch,
        transition.base_seq,
        run.last_seq,
        isinstance(transition.lease, Release),
        run.status.value,
        run.branch_id,
        *to_stored(rows.changing_columns(run)),
        run.started_at,
        run.ended_at,
        _document((transition,), _events),
        _document((transition,), _nodes),
    )


def group_values(project_id: str, transitions: Sequence[Transition]) -> tuple[Any, ...]:
    """Return what `commit_group` takes."""
    tables = (_moves, _births, _events, _nodes, _steps, _blobs, _commands)
    return (project_id, *(_document(transitions, table) for table in tables))


def encode_rows(table: list[tuple[Any, ...]]) -> str:
    """Return rows as a document, with texts in the form in which they are stored."""
    encoded = _encoder.encode(table)
    if needs_care(encoded):
        encoded = _encoder.encode(to_stored(table))
    return encoded.decode()


def _document(transitions: Sequence[Transition], table: Callable[[Transition], Iterator[tuple[Any, ...]]]) -> str:
    return encode_rows([row for transition in transitions for row in table(transition)])


def _moves(transition: Transition) -> Iterator[tuple[Any, ...]]:
    if transition.base_seq == 0:
        return
    lease, run = transition.lease, transition.run
    claim = lease if isinstance(lease, Claim) else None
    yield (
        transition.run_id,
        transition.epoch,
        transition.base_seq,
        claim.engine_id if claim else None,
        claim.dead if claim else None,
        claim.lets_go if claim else isinstance(lease, Release),
        run.epoch,
        run.status.value,
        run.branch_id,
        run.last_seq,
        *rows.changing_columns(run),
        run.started_at,
        run.ended_at,
    )


def _births(transition: Transition) -> Iterator[tuple[Any, ...]]:
    if transition.base_seq != 0:
        return
    lease = transition.lease
    owner = lease.engine_id if isinstance(lease, Claim) and not lease.lets_go else None
    yield (transition.run_id, owner, transition.run.epoch, *rows.run_row(transition.run))


def _events(transition: Transition) -> Iterator[tuple[Any, ...]]:
    return ((transition.run_id, *rows.event_row(entry)) for entry in transition.events)


def _nodes(transition: Transition) -> Iterator[tuple[Any, ...]]:
    return ((transition.run_id, *rows.node_row(node)) for node in transition.nodes)


def _steps(transition: Transition) -> Iterator[tuple[Any, ...]]:
    return ((transition.run_id, *rows.step_row(step)) for step in transition.steps)


def _blobs(transition: Transition) -> Iterator[tuple[Any, ...]]:
    return ((transition.run_id, blob.digest, blob.size) for blob in transition.blobs)


def _commands(transition: Transition) -> Iterator[tuple[Any, ...]]:
    return ((transition.run_id, command_id, transition.run.last_seq) for command_id in transition.commands)
