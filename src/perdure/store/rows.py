"""Records as rows: one order of columns and one encoding for every database.

The columns are listed once, in the order in which `queries.sql` of each store names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.errors import CommandIdTaken, ValueNotStorable
from perdure.ids import BranchId, CommandId, EngineId, Epoch, EventId, NodeId, RunId, Seq, is_text
from perdure.journal.dump import Mark
from perdure.journal.events import (
    Encoded,
    ErrorRecord,
    Recorded,
    RunSettings,
    decode_event,
)
from perdure.journal.states import AuditState, NodeState, NodeStatus, RunState, RunStatus, StreamState
from perdure.store.shapes import Claimable, Command, EngineRow, ItemRange, LogLine, RunSummary, WorkflowVersion
from perdure.store.transitions import ItemRow, StepRow, Transition

Row = Sequence[Any]

_json = msgspec.json.Encoder()
_values = msgspec.json.Decoder(dict[str, Encoded])
_settings = msgspec.json.Decoder(RunSettings)
_error = msgspec.json.Decoder(ErrorRecord)
_stream = msgspec.json.Decoder(StreamState)
_audit = msgspec.json.Decoder(AuditState)
_tags = msgspec.json.Decoder(tuple[str, ...])
_texts = msgspec.json.Decoder(dict[str, str])
_anything = msgspec.json.Decoder(dict[str, Any])


def to_json(value: Any) -> str:
    return _json.encode(value).decode()


def _optional_json(value: Any) -> str | None:
    return None if value is None else _json.encode(value).decode()


def _raw(text: str | None) -> Encoded | None:
    return None if text is None else msgspec.Raw(text.encode())


def run_row(run: RunState) -> tuple[Any, ...]:
    """workflow, workflow_version, graph_hash, status, branch_id, last_seq, inputs, settings, source, outputs, error,
    failed_node, reason, recoveries, wake_at, created_at, started_at, ended_at, audit"""
    return (
        run.workflow,
        run.version,
        run.graph_hash,
        run.status,
        run.branch_id,
        run.last_seq,
        to_json(run.inputs),
        to_json(run.settings),
        to_json(run.source),
        *changing_columns(run),
        run.created_at,
        run.started_at,
        run.ended_at,
        audit_column(run),
    )


def changing_columns(run: RunState) -> tuple[Any, ...]:
    """outputs, error, failed_node, reason, recoveries, wake_at"""
    return (
        _optional_json(run.outputs),
        _optional_json(run.error),
        run.failed_node,
        run.reason,
        run.recoveries,
        run.wake_at,
    )


def audit_column(run: RunState) -> str | None:
    """Return what is kept of a run whose log is written on the side."""
    return _optional_json(run.audit)


def audit_of(text: str | None) -> AuditState | None:
    """Read `audit_column`."""
    return None if text is None else _audit.decode(text)


def run_of(row: Row) -> RunState:
    """Read the columns of `run_row`, preceded by project_id, run_id, lease_epoch."""
    return RunState(
        project_id=row[0],
        run_id=RunId(row[1]),
        epoch=Epoch(row[2]),
        workflow=row[3],
        version=row[4],
        graph_hash=row[5],
        status=RunStatus(row[6]),
        branch_id=BranchId(row[7]),
        last_seq=Seq(row[8]),
        inputs=_values.decode(row[9]),
        settings=_settings.decode(row[10]),
        source=_texts.decode(row[11]),
        outputs=None if row[12] is None else _values.decode(row[12]),
        error=None if row[13] is None else _error.decode(row[13]),
        failed_node=row[14],
        reason=row[15],
        recoveries=row[16],
        wake_at=row[17],
        created_at=row[18],
        started_at=row[19],
        ended_at=row[20],
        audit=audit_of(row[21]),
    )


def node_rows(key: tuple[str, ...], nodes: Sequence[NodeState]) -> list[tuple[Any, ...]]:
    """Return the key's columns, then branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs,
    error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq"""
    encode = _json.encode
    # Written out and put together like this, because this and `event_rows` are what writing a run costs the program.
    return [
        key  # noqa: RUF005 -- unpacking is slower
        + (
            node.branch_id,
            node.node_id,
            node.status,
            node.attempt,
            1 if node.attempt_ended else 0,
            node.generation,
            node.failures,
            node.lost,
            None if node.outputs is None else encode(node.outputs).decode(),
            None if node.error is None else encode(node.error).decode(),
            None if node.checkpoint is None else bytes(node.checkpoint).decode(),
            node.reason,
            node.due,
            node.scheduled_at,
            node.started_at,
            node.ended_at,
            node.duration_ms,
            None if node.stream is None else encode(node.stream).decode(),
            node.last_seq,
        )
        for node in nodes
    ]


def node_of_row(row: Row) -> NodeState:
    """Read the columns of `node_rows`, without a key."""
    return NodeState(
        branch_id=BranchId(row[0]),
        node_id=NodeId(row[1]),
        status=NodeStatus(row[2]),
        attempt=row[3],
        attempt_ended=bool(row[4]),
        generation=row[5],
        failures=row[6],
        lost=row[7],
        outputs=None if row[8] is None else _values.decode(row[8]),
        error=None if row[9] is None else _error.decode(row[9]),
        checkpoint=_raw(row[10]),
        reason=row[11],
        due=row[12],
        scheduled_at=row[13],
        started_at=row[14],
        ended_at=row[15],
        duration_ms=row[16],
        stream=None if row[17] is None else _stream.decode(row[17]),
        last_seq=Seq(row[18]),
    )


def event_rows(key: tuple[str, ...], entries: Sequence[Recorded]) -> list[tuple[Any, ...]]:
    """Return the key's columns, then seq, id, branch_id, epoch, event_type, event_time, node_id, payload"""
    encode = _json.encode
    return [
        key  # noqa: RUF005 -- unpacking is slower
        + (
            entry.seq,
            entry.id,
            entry.branch_id,
            entry.epoch,
            type(event := entry.event).__name__,
            entry.at,
            getattr(event, "node_id", None),
            encode(event).decode(),  # as `encode_event` does, without a call
        )
        for entry in entries
    ]


def event_of(row: Row) -> Recorded:
    """Read seq, id, branch_id, epoch, event_time, payload."""
    return Recorded(
        seq=Seq(row[0]),
        id=EventId(row[1]),
        branch_id=BranchId(row[2]),
        epoch=Epoch(row[3]),
        at=row[4],
        event=decode_event(row[5]),
    )


def mark_of(row: Row) -> Mark:
    """Read seq, branch_id, epoch, event_type."""
    return Mark(seq=Seq(row[0]), branch_id=BranchId(row[1]), epoch=Epoch(row[2]), type=row[3])


def step_row(step: StepRow) -> tuple[Any, ...]:
    """branch_id, node_id, name, occurrence, result, seq"""
    return (step.branch_id, step.node_id, step.name, step.occurrence, bytes(step.result).decode(), step.seq)


def past_step_rows(key: tuple[str, ...], transition: Transition) -> list[tuple[Any, ...]]:
    """Return the key's columns, then branch_id, node_id"""
    return [(*key, transition.run.branch_id, node_id) for node_id in transition.past_steps]


def step_of(row: Row) -> StepRow:
    return StepRow(
        branch_id=BranchId(row[0]),
        node_id=NodeId(row[1]),
        name=row[2],
        occurrence=row[3],
        result=msgspec.Raw(row[4].encode()),
        seq=Seq(row[5]),
    )


def item_rows(key: tuple[str, ...], items: Sequence[ItemRow]) -> list[tuple[Any, ...]]:
    """Return the key's columns, then branch_id, node_id, position, count, is_plain, seq, items"""
    return [
        (
            *key,
            row.branch_id,
            row.node_id,
            row.position,
            row.count,
            int(row.is_plain),
            row.seq,
            bytes(row.items).decode(),
        )
        for row in items
    ]


def drop_rows(key: tuple[str, ...], transition: Transition) -> list[tuple[Any, ...]]:
    """Return the key's columns, then branch_id, node_id, position. Refuses to drop what is added by the same transition."""
    dropped: dict[tuple[BranchId, NodeId], int] = {}
    for drop in transition.drops:
        stream = (drop.branch_id, drop.node_id)
        dropped[stream] = min(drop.first, dropped.get(stream, drop.first))
    for row in transition.items:
        first = dropped.get((row.branch_id, row.node_id))
        if first is not None and row.position + row.count > first:
            raise ValueError(f"entries of node {row.node_id!r} are dropped and added by one transition")
    return [(*key, *stream, first) for stream, first in dropped.items()]


def item_of(row: Row) -> ItemRow:
    """Read the columns of `item_rows`, without a key."""
    return ItemRow(
        branch_id=BranchId(row[0]),
        node_id=NodeId(row[1]),
        position=row[2],
        count=row[3],
        is_plain=bool(row[4]),
        seq=Seq(row[5]),
        items=msgspec.Raw(row[6].encode()),
    )


def range_of(row: Row) -> ItemRange:
    """Read branch_id, node_id, position, count, seq."""
    return ItemRange(branch_id=BranchId(row[0]), node_id=NodeId(row[1]), position=row[2], count=row[3], seq=Seq(row[4]))


def command_row(command: Command) -> tuple[Any, ...]:
    """run_id, command_id, kind, payload, created_at"""
    try:
        payload = to_json(command.payload)
        is_storable = all(map(is_text, (command.run_id, command.command_id, command.kind)))
    except UnicodeEncodeError:
        payload, is_storable = "", False
    if not is_storable:
        raise ValueNotStorable(
            f"Command {command.kind!r} for run {command.run_id!r}",
            "",
            "str",
            "a text in it holds half a surrogate pair",
            "Use whole characters only.",
        )
    return (command.run_id, command.command_id, command.kind, payload, command.created_at)


def require_same_command(command: Command, row: Row) -> None:
    """Refuse a command whose id stands for another one; `row` is as for `command_of`."""
    stored = command_of(row)
    if (stored.kind, stored.payload) != (command.kind, _anything.decode(_json.encode(command.payload))):
        raise CommandIdTaken(command.run_id, command.command_id, stored.kind)


def command_of(row: Row) -> Command:
    """Read command_id, run_id, kind, payload, created_at."""
    return Command(
        command_id=CommandId(row[0]),
        run_id=RunId(row[1]),
        kind=row[2],
        payload=_anything.decode(row[3]),
        created_at=row[4],
    )


def summary_of(row: Row) -> RunSummary:
    """Read run_id, workflow, workflow_version, status, created_at, started_at, ended_at, owner, reason, wake_at, deleted_at,
    tags."""
    return RunSummary(
        run_id=RunId(row[0]),
        workflow=row[1],
        version=row[2],
        status=RunStatus(row[3]),
        created_at=row[4],
        started_at=row[5],
        ended_at=row[6],
        owner=None if row[7] is None else EngineId(row[7]),
        reason=row[8],
        wake_at=row[9],
        deleted_at=row[10],
        tags=() if row[11] is None else _tags.decode(row[11]),
    )


def version_of(row: Row) -> WorkflowVersion:
    """Read workflow, version, graph_hash, graph, source, created_at."""
    return WorkflowVersion(
        workflow=row[0],
        version=row[1],
        graph_hash=row[2],
        graph=row[3].encode(),
        source=_texts.decode(row[4]),
        created_at=row[5],
    )


def saved_version(
    workflow: str, version: int, graph_hash: str, graph: bytes, source: Mapping[str, str], at: int
) -> WorkflowVersion:
    """Return what was just saved under this number, without reading it again."""
    return WorkflowVersion(
        workflow=workflow, version=version, graph_hash=graph_hash, graph=graph, source=dict(source), created_at=at
    )


def engine_of(row: Row) -> EngineRow:
    return EngineRow(
        engine_id=EngineId(row[0]), name=row[1], host=row[2], pid=row[3], process_start=row[4], is_alive=bool(row[5])
    )


def claimable_of(row: Row) -> Claimable:
    return Claimable(run_id=RunId(row[0]), owner=row[1], created_at=row[2])


def log_row(line: LogLine) -> tuple[Any, ...]:
    """run_id, branch_id, node_id, attempt, logged_at, level, message, fields"""
    return (
        line.run_id,
        line.branch_id,
        line.node_id,
        line.attempt,
        line.at,
        line.level,
        _shown(line.message),
        to_json({_shown(name): _plain(value) for name, value in line.fields.items()}),
    )


def log_of(row: Row) -> tuple[int, LogLine]:
    """Read log_id and the columns of `log_row`."""
    return row[0], LogLine(
        run_id=RunId(row[1]),
        branch_id=BranchId(row[2]),
        node_id=NodeId(row[3]),
        attempt=row[4],
        at=row[5],
        level=row[6],
        message=row[7],
        fields=_anything.decode(row[8]),
    )


def _plain(value: object) -> Any:
    """A log line is text for people: what is not plain is shown as Python shows it."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and value.bit_length() < 64:
        return value
    return _shown(value)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
