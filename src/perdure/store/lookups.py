"""What both databases look up in the same way: a statement of the same name, the same values, rows of the same shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.ids import BranchId, CommandId, NodeId, RunId, Seq
from perdure.journal.states import CheckpointState, NodeState, RunState, WaitStatus
from perdure.store import aliases, archives, checkpoints, rows, segments, waits
from perdure.store.shapes import (
    NEWEST,
    AliasMove,
    AliasState,
    Archivable,
    ArchivedRun,
    Command,
    ItemRange,
    LogLine,
    LongLog,
    OpenWait,
    Segment,
    Wakings,
    Whereabouts,
    WorkflowVersion,
)
from perdure.store.transitions import ItemRow

Rows = list[tuple[Any, ...]]


class Lookups(ABC):
    """Those parts of `Store` that read with one statement."""

    @abstractmethod
    async def _rows(self, name: str, *values: Any, project_id: str | None = None) -> Rows:
        """Return what the statement called `name` finds in the project for these values."""

    # Workflows and aliases

    async def load_version(self, workflow: str, version: int) -> WorkflowVersion | None:
        found = await self._rows("load_version", workflow, version)
        return rows.version_of(found[0]) if found else None

    async def list_versions(self, workflow: str | None = None) -> Sequence[WorkflowVersion]:
        return [rows.version_of(row) for row in await self._rows("list_versions", workflow)]

    async def count_runs(self, workflow: str) -> Mapping[int, int]:
        return dict(await self._rows("count_runs", workflow))

    async def load_alias(self, workflow: str, alias: str) -> AliasState:
        return aliases.state_of(await self._rows("load_alias", workflow, alias))

    async def list_aliases(self, workflow: str | None = None) -> Sequence[AliasMove]:
        return [aliases.move_of(row) for row in await self._rows("list_aliases", workflow)]

    async def list_alias_moves(self, workflow: str, alias: str) -> Sequence[AliasMove]:
        return [aliases.move_of(row) for row in await self._rows("list_alias_moves", workflow, alias)]

    # Runs

    async def load_node(self, run_id: RunId, node_id: NodeId) -> NodeState | None:
        found = await self._rows("load_node", run_id, node_id)
        return rows.node_of_row(found[0]) if found else None

    async def load_state(self, run_id: RunId) -> RunState | None:
        found = await self._rows("load_state", run_id)
        return rows.run_of(found[0]) if found else None

    async def list_segments(self, run_id: RunId) -> Sequence[Segment]:
        return [segments.segment_of(row) for row in await self._rows("list_segments", run_id)]

    async def count_events(self, run_id: RunId, *, through: Seq) -> int:
        found = await self._rows("count_events", run_id, through)
        return found[0][0] if found else 0

    async def find_long_logs(self, *, longer_than: int, after: RunId, limit: int) -> Sequence[LongLog]:
        return [segments.long_log_of(row) for row in await self._rows("long_logs", longer_than, after, limit)]

    async def load_items(
        self, run_id: RunId, branch_id: BranchId, node_id: NodeId, *, after: tuple[int, int], in_order: bool, limit: int
    ) -> Sequence[ItemRow]:
        position, seq = after
        name, seen = ("load_items_by_position", (position,)) if in_order else ("load_items_by_seq", (seq, position))
        found = await self._rows(name, run_id, branch_id, node_id, *seen, limit)
        return [rows.item_of(row) for row in found]

    async def load_ranges(self, run_id: RunId) -> Sequence[ItemRange]:
        return [rows.range_of(row) for row in await self._rows("load_ranges", run_id)]

    async def load_deletion(self, run_id: RunId) -> int | None:
        found = await self._rows("load_deletion", run_id)
        return found[0][0] if found else None

    async def load_logs(self, run_id: RunId, *, after: int, limit: int) -> Sequence[tuple[int, LogLine]]:
        return [rows.log_of(row) for row in await self._rows("load_logs", run_id, after, limit)]

    # The archive

    async def find_archivable(
        self, *, ended_before: int, after: tuple[int, str] | None, limit: int
    ) -> Sequence[Archivable]:
        found = await self._rows("find_archivable", ended_before, *(after or archives.BEGINNING), limit)
        return [archives.archivable_of(row) for row in found]

    async def load_archive(self, run_id: RunId) -> ArchivedRun | None:
        found = await self._rows("load_archive", run_id)
        return archives.archive_of(found[0]) if found else None

    async def where_is(self, run_id: RunId) -> Whereabouts | None:
        found = await self._rows("where_is", run_id)
        return found[0][0] if found else None

    async def list_archives(
        self, *, id_prefix: str | None, before: tuple[int, str] | None, limit: int
    ) -> Sequence[ArchivedRun]:
        found = await self._rows("list_archives", id_prefix, *(before or (None, None)), limit)
        return [archives.archive_of(row) for row in found]

    async def archive_files(self) -> set[str]:
        return {file for (file,) in await self._rows("archive_files")}

    # Commands

    async def load_command(self, run_id: RunId, command_id: CommandId) -> Command | None:
        found = await self._rows("load_command", run_id, command_id)
        return rows.command_of(found[0]) if found else None

    async def latest_commands(
        self, run_id: RunId, *, before: tuple[int, str] = NEWEST, limit: int
    ) -> Sequence[Command]:
        return [rows.command_of(row) for row in await self._rows("latest_commands", run_id, *before, limit)]

    # Waits

    async def find_woken(self, *, now: int, limit: int) -> Wakings:
        return waits.wakings_of(await self._rows("find_woken", now, limit), limit=limit)

    async def list_waits(
        self,
        *,
        run_id: RunId | None = None,
        status: WaitStatus | None = WaitStatus.OPEN,
        questions_only: bool = False,
        after: tuple[int, str] | None = None,
        limit: int,
    ) -> Sequence[OpenWait]:
        name, values = waits.listing(
            run_id=run_id, status=status, questions_only=questions_only, after=after, limit=limit
        )
        return [waits.open_wait_of(row) for row in await self._rows(name, *values)]

    async def load_wait(self, wait_id: str) -> OpenWait | None:
        found = await self._rows("load_wait", wait_id)
        return waits.open_wait_of(found[0]) if found else None

    # Checkpoints

    async def list_checkpoints(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[CheckpointState]:
        return [checkpoints.checkpoint_of(row) for row in await self._rows("list_checkpoints", run_id, after, limit)]

    async def load_checkpoint(self, run_id: RunId, name: str) -> CheckpointState | None:
        found = await self._rows("load_checkpoint", run_id, name)
        return checkpoints.checkpoint_of(found[0]) if found else None

    async def last_checkpoint(self, run_id: RunId, *, periodic: bool = False) -> CheckpointState | None:
        found = await self._rows("last_checkpoint", run_id, periodic)
        return checkpoints.checkpoint_of(found[0]) if found else None
