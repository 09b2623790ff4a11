"""The door into a SQLite file: groups of transitions, one transaction each.

They are committed on the loop itself while that is fast, because a thread hop costs as much as the fsync. Of a larger group the
rows are written on the loop, because two threads that both need Python only hinder each other, and made durable in the writer
thread, which needs none for that. What would hold up the loop even so, or meets another process's write lock, goes to the thread
whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from perdure.clock import Clock
from perdure.errors import StoreError, StoreLocked
from perdure.store.audits import is_last_written
from perdure.store.sqlite.bindings import fencing, row_writes
from perdure.store.sqlite.file import SqliteFile
from perdure.store.sqlite.pace import Pace, rows_of
from perdure.store.transitions import Committed, Keep, LeaseLost, Outcome, Rejected, RunExists, Transition

T = TypeVar("T")

COMMIT_BUDGET_SECONDS = 0.004
"""A group that is expected to take longer until it is durable is not committed on the loop."""
WRITE_BUDGET_SECONDS = 0.010
"""One whose rows are expected to take longer is not written on the loop either: in a thread that takes longer still."""
LOOK_EVERY_SECONDS = 1.0
"""How often to look whether the file is still there, beside the moments that must not be missed."""


class GroupWriter:
    """Writes groups of transitions, each whole or not at all."""

    def __init__(self, file: SqliteFile, project_id: str, clock: Clock, *, boot_id: str) -> None:
        self._file = file
        self._project = project_id
        self._clock = clock
        self._boot_id = boot_id
        self._pace = Pace()
        self._look_again_at = 0.0

    async def write(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        """Write the group and answer for each of it, as `Store.commit` says."""
        rows = rows_of(transitions)
        if self._file.is_inline:
            return self._commit(transitions, rows)
        if not self._file.is_writing:
            try:
                if self._pace.to_commit(rows) <= COMMIT_BUDGET_SECONDS:
                    return self._file.impatiently(lambda: self._commit(transitions, rows))
                if self._pace.to_write(rows) <= WRITE_BUDGET_SECONDS:
                    return await self._commit_in_halves(transitions, rows)
            except StoreLocked:
                pass  # the thread can wait for whoever holds the file
        return await self._file.write(lambda: self._commit(transitions, rows))

    async def transact(self, work: Callable[[], T]) -> T:
        """Run `work`, which writes a row or two, in a transaction of its own: on the loop while that is fast, as groups are."""
        await self._file.take_turn()
        if not self._file.is_writing and self._pace.to_commit(1) <= COMMIT_BUDGET_SECONDS:
            started = time.perf_counter()
            try:
                return self._file.transact_at_once(work)
            except StoreLocked:
                pass  # as in `write`
            finally:
                self._pace.committed(1, time.perf_counter() - started)
        return await self._file.transact(work)

    async def _commit_in_halves(self, transitions: Sequence[Transition], rows: int) -> Sequence[Outcome]:
        """Write the rows on the loop, and have them made durable in the thread."""
        self._look_at_file(transitions)
        try:
            outcomes, seconds = await self._file.transact_in_halves(lambda: self._write_group(transitions, rows))
        except StoreError:
            raise
        except Exception:  # as in `_commit`, which finds out which of them it was
            return await self._file.write(lambda: self._commit(transitions, rows))
        self._pace.committed(rows, seconds)
        return outcomes

    def _commit(self, transitions: Sequence[Transition], rows: int) -> list[Outcome]:
        """Write the group in one transaction. If one of it cannot be written, halve it until that one stands alone."""
        started = time.perf_counter()
        self._look_at_file(transitions)
        try:
            outcomes = self._file.in_transaction(lambda: self._write_group(transitions, rows))
        except StoreError:
            raise
        except Exception as error:  # a constraint, or a value of whatever kind that has no form in the database
            if len(transitions) == 1:
                return [Rejected(f"{type(error).__name__}: {error}")]
            middle = len(transitions) // 2
            halves = (transitions[:middle], transitions[middle:])
            return [outcome for half in halves for outcome in self._commit(half, rows_of(half))]
        self._pace.committed(rows, time.perf_counter() - started)
        return outcomes

    def _look_at_file(self, transitions: Sequence[Transition]) -> None:
        """See that the file is still there, now and then, and always when a run is taken or let go."""
        now = time.perf_counter()
        if now > self._look_again_at or any(type(transition.lease) is not Keep for transition in transitions):
            self._look_again_at = now + LOOK_EVERY_SECONDS
            self._file.require_same()

    def _write_group(self, transitions: Sequence[Transition], rows: int) -> list[Outcome]:
        started = time.perf_counter()
        moved = self._fence(transitions)
        written = [transition for transition in transitions if transition.run_id in moved]
        for name, bindings in row_writes(self._project, written):
            self._file.execute_each(name, bindings)
        self._pace.written(rows, time.perf_counter() - started)
        return [Committed() if transition.run_id in moved else self._refusal(transition) for transition in transitions]

    def _fence(self, transitions: Sequence[Transition]) -> set[str]:
        """Lock and number the runs' rows; return the runs of which the rest may be written."""
        statements: dict[str, list[tuple[Any, ...]]] = {}
        now = self._clock.host_seconds()
        for transition in transitions:
            name, binding = fencing(self._project, transition, boot_id=self._boot_id, now=now)
            statements.setdefault(name, []).append(binding)
        return {
            run_id for name, bindings in statements.items() for (run_id,) in self._file.execute_each(name, bindings)
        }

    def _refusal(self, transition: Transition) -> Outcome:
        """Say why a transition was not written, unless it was written before its answer got lost."""
        if transition.events and self._is_written(transition):
            return Committed()
        return RunExists() if transition.base_seq == 0 else LeaseLost()

    def _is_written(self, transition: Transition) -> bool:
        first, key = transition.events[0], (self._project, transition.run_id)
        if transition.run.audit is None:
            return self._file.execute("event_id_at", (*key, first.seq)) == [(first.id,)]
        return any(is_last_written(transition, stored) for (stored,) in self._file.execute("audit_of_run", key))
