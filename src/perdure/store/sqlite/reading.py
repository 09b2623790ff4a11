"""What takes several statements to read, from one state of the file: whoever calls this does so inside of `SqliteFile.read`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.ids import ROOT_BRANCH, BranchId, EngineId, RunId, Seq
from perdure.journal.dump import Mark
from perdure.journal.events import Recorded
from perdure.journal.projection import Given
from perdure.journal.states import RunState
from perdure.journal.times import PastRun
from perdure.store import branches, checkpoints, rows, segments, waits
from perdure.store.past import WAITS_PER_RUN, past_run_of
from perdure.store.shapes import COMMANDS_PER_RUN, TAIL_EVENTS, Command, RunDump, StoredRun
from perdure.store.sqlite.file import Rows, SqliteFile
from perdure.store.transitions import BlobUse

_ALL = -1
"""As a limit: none."""


class Reading:
    """Reads the runs of one project."""

    def __init__(self, file: SqliteFile, project_id: str) -> None:
        self._file = file
        self._project = project_id

    def stored_run(self, run_id: RunId, *, most_commands: int) -> StoredRun | None:
        found = self._select("load_run", run_id)
        if not found:
            return None
        run = rows.run_of(found[0])
        branch = (run_id, run.branch_id)
        return StoredRun(
            run=run,
            owner=found[0][22],
            nodes=tuple(rows.node_of_row(node) for node in self._select("load_nodes", *branch)),
            steps=tuple(rows.step_of(step) for step in self._select("load_steps", *branch)),
            waits=tuple(waits.wait_of(wait) for wait in self._select("load_waits", *branch)),
            signals=tuple(waits.signal_of(signal) for signal in self._select("load_signals", run_id)),
            commands=tuple(rows.command_of(row) for row in self._select("load_commands", run_id, most_commands)),
            given={} if run.branch_id == ROOT_BRANCH else self._given(run),
            last_branch=BranchId(self._select("last_branch", run_id)[0][0]),
            tail=() if run.audit is not None else self._tail(run_id),
        )

    def dump(self, run_id: RunId) -> RunDump | None:
        stored = self.stored_run(run_id, most_commands=_ALL)
        if stored is None:
            return None
        version = self._select("load_version", stored.run.workflow, stored.run.version)
        return RunDump(
            stored=stored,
            events=tuple(self._whole_log(run_id)),
            all_nodes=tuple(rows.node_of_row(row) for row in self._select("load_nodes", run_id, None)),
            version=rows.version_of(version[0]) if version else None,
            blobs=tuple(BlobUse(digest=row[0], size=row[1]) for row in self._select("load_blob_uses", run_id)),
            items=tuple(rows.item_of(row) for row in self._select("dump_items", run_id)),
            all_waits=tuple(waits.wait_of(row) for row in self._select("load_waits", run_id, None)),
            checkpoints=tuple(map(checkpoints.checkpoint_of, self._select("list_checkpoints", run_id, 0, _ALL))),
            branches=tuple(map(branches.branch_of, self._select("list_branches", run_id, None))),
        )

    def events(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[Recorded]:
        found = self._select("load_events", run_id, after, limit)
        if not segments.are_next(found, after) and (older := self._select("next_segment", run_id, after)):
            return segments.page_of(older[0][0], after=after, limit=limit)
        return [rows.event_of(row) for row in found]

    def past_runs(self, workflow: str, version: int, *, limit: int) -> Sequence[PastRun]:
        found: list[PastRun] = []
        for run_id, branch_id in self._select("past_runs", workflow, version, limit):
            nodes = self._select("past_nodes", run_id, branch_id)
            found.append(past_run_of(run_id, nodes, self._select("past_waits", run_id, branch_id, WAITS_PER_RUN)))
        return found

    def pending_commands(self, owner: EngineId) -> Sequence[Command]:
        found: list[Command] = []
        for (run_id,) in self._select("addressed_runs", owner):
            found += map(rows.command_of, self._select("load_commands", run_id, COMMANDS_PER_RUN))
        return sorted(found, key=lambda command: (command.created_at, command.command_id))

    def _tail(self, run_id: RunId) -> tuple[Mark, ...]:
        return tuple(rows.mark_of(row) for row in reversed(self._select("load_tail", run_id, TAIL_EVENTS)))

    def _given(self, run: RunState) -> Given:
        found = self._select("list_branches", run.run_id, run.branch_id)
        return branches.branch_of(found[0]).given if found else {}

    def _whole_log(self, run_id: RunId) -> Iterator[Recorded]:
        for (content,) in self._select("dump_segments", run_id):
            yield from segments.events_of(content)
        yield from map(rows.event_of, self._select("load_events", run_id, 0, _ALL))

    def _select(self, name: str, *values: Any) -> Rows:
        return self._file.select(name, (self._project, *values))
