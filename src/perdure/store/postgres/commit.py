"""Writing a group of transitions: one statement, and what to do when it does not simply succeed.

the statement answers      the runs it names are written; the others are looked up. One that was written before, so that only the
                           answer got lost, is Committed; one whose run still is where the engine saw it was changed by somebody
                           else since the statement began, and is tried once more, or is held by somebody else: Busy. All others
                           are LeaseLost or RunExists.
it cannot be written       by a constraint, or because a value has no form in the database: nothing was written. The group is
                           halved until the one that is to blame stands alone: Rejected.
others were in the way     nothing was written. Again, then each by itself, so that one holds up no other; those that stay locked
                           out are Busy.
no answer                  the same group is written again on another connection. That is the lookup: if the first try did
                           happen, its events are found, or the mark that it left in the run's row; if it did not, this one
                           does; if it is still on its way, one of the two is left out and finds the run moved on the next
                           time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.clock import Clock
from perdure.errors import PerdureError
from perdure.ids import RunId
from perdure.store.audits import is_last_written
from perdure.store.postgres.documents import (
    WRITING_NOTHING,
    audited_values,
    group_values,
    is_step,
    is_step_on,
    step_items_values,
    step_on_values,
    step_values,
)
from perdure.store.postgres.failures import Trouble, problem_of, translate, trouble_of
from perdure.store.postgres.lanes import Caller, Lane
from perdure.store.postgres.session import Rows, Session
from perdure.store.postgres.texts import from_stored, to_stored
from perdure.store.transitions import Busy, Claim, Committed, LeaseLost, Outcome, Rejected, RunExists, Transition

PATIENCE_SECONDS = 10.0
"""How long a commit whose answer was lost looks for the database before it gives up."""
TRIES_TOGETHER = 3
TRIES_ALONE = 8
"""How often a group, or a transition by itself, is tried when others were in the way. Never again at once after it has waited
for a lock in vain: all other commits of this process wait as well."""
MOST_LOCKED_OUT = 3
"""When more of a group cannot be written each by itself, it is not single runs that are locked."""

_HELD = (
    "The row of run {run_id!r} in the database {where} stays locked by another session. "
    "pg_stat_activity shows who holds it; end that session or wait for it."
)


_COMMITTED: Outcome = Committed()


class _Refused(Exception):
    """The database will not have this group."""


class _LockedOut(Exception):
    """Others were in the way each time."""


async def ready_to_write(session: Session) -> None:
    """Have the server know what every commit needs, by writing nothing, so that the first one does not wait for that."""
    if session.keeps_statements:
        for name, values in WRITING_NOTHING.items():
            await session.write(name, *values)


class GroupWriter:
    """Writes groups, one at a time, on a connection that nothing else uses."""

    def __init__(self, lane: Lane, caller: Caller, project_id: str, where: str, clock: Clock) -> None:
        self._lane = lane
        self._caller = caller
        self._project_id = str(to_stored(project_id))
        self._where = where
        self._clock = clock
        self._held: set[RunId] = set()
        """Runs whose row somebody else held when it was last tried: `commit_group` does not wait for them."""

    async def write(self, group: Sequence[Transition]) -> list[Outcome]:
        """Write each transition whole or not at all, and answer for each in order."""
        outcomes = await (self._settle(group) if len(group) == 1 else self._settle_by_kind(group))
        if self._held:
            self._held.difference_update(
                transition.run_id
                for transition, outcome in zip(group, outcomes, strict=True)
                if not isinstance(outcome, Busy)
            )
        return outcomes

    async def _settle_by_kind(self, group: Sequence[Transition]) -> list[Outcome]:
        """Write those apart whose events are written on the side: their statement does not touch the log."""
        audited = [transition for transition in group if transition.run.audit is not None]
        if not audited or len(audited) == len(group):
            return await self._settle(group)
        logged = [transition for transition in group if transition.run.audit is None]
        outcomes = {
            transition.run_id: outcome
            for part in (logged, audited)
            for transition, outcome in zip(part, await self._settle(part), strict=True)
        }
        return [outcomes[transition.run_id] for transition in group]

    async def _settle(self, group: Sequence[Transition]) -> list[Outcome]:
        try:
            return await self._insist(group)
        except _Refused as refusal:
            if len(group) == 1:
                return [Rejected(problem=str(refusal))]
            middle = len(group) // 2
            return [*await self._settle(group[:middle]), *await self._settle(group[middle:])]
        except _LockedOut as locked_out:
            if len(group) == 1:
                return [self._busy(group[0], str(locked_out))]
            return await self._settle_apart(group)

    async def _settle_apart(self, group: Sequence[Transition]) -> list[Outcome]:
        """Write each by itself, until so many are locked out that it is not single runs that are locked."""
        outcomes: list[Outcome] = []
        problems: list[str] = []
        for transition in group:
            if len(problems) > MOST_LOCKED_OUT:
                outcomes.append(self._busy(transition, problems[0]))
                continue
            (outcome,) = await self._settle((transition,))
            if isinstance(outcome, Busy):
                problems.append(outcome.problem)
            outcomes.append(outcome)
        return outcomes

    async def _insist(self, group: Sequence[Transition]) -> list[Outcome]:
        """Write the group until there is an answer."""
        name, values = self._statement(group)
        tries = TRIES_ALONE if len(group) == 1 else TRIES_TOGETHER
        failures = busy = 0
        give_up_at = float("inf")
        while True:
            try:
                # By hand, because every commit passes here: a loan would be three coroutines more.
                session = self._lane.take_at_once() or await self._lane.take()
                try:
                    found = await session.write(name, *values)
                    is_whole = len(found) == len(group)
                    outcomes = [_COMMITTED] * len(group) if is_whole else await self._judge_all(session, group, found)
                except BaseException as error:
                    self._lane.give_back(session, error)
                    raise
                self._lane.give_back(session)
                return outcomes
            except PerdureError:
                raise
            except Exception as error:  # Whatever the driver raises is judged here, and leaves as an error of ours.
                trouble = trouble_of(error)
                failures += 1
                busy += trouble is Trouble.BUSY
                if trouble is Trouble.REFUSED:
                    raise _Refused(problem_of(error)) from error
                if trouble is Trouble.BLOCKED or busy >= tries:
                    raise _LockedOut(str(translate(error, self._where))) from error
                if trouble is Trouble.LOST:
                    give_up_at = min(give_up_at, self._clock.monotonic() + PATIENCE_SECONDS)
                if trouble is Trouble.FATAL or self._clock.monotonic() > give_up_at:
                    raise translate(error, self._where) from error
            await self._caller.pause(failures)

    def _statement(self, group: Sequence[Transition]) -> tuple[str, tuple[Any, ...]]:
        try:
            if len(group) == 1 and is_step(group[0]) and group[0].run_id not in self._held:
                if is_step_on(group[0]):
                    return "step_on", step_on_values(self._project_id, group[0])
                if group[0].items:
                    return "step_items", step_items_values(self._project_id, group[0])
                return "step_run", step_values(self._project_id, group[0])
            if group[0].run.audit is not None:
                return "commit_audited", audited_values(self._project_id, group)
            return "commit_group", group_values(self._project_id, group)
        except Exception as error:  # A value of whatever kind that has no form in a document; nothing was sent.
            raise _Refused(problem_of(error)) from error

    async def _judge_all(
        self, session: Session, group: Sequence[Transition], found: Rows, *, again: bool = True
    ) -> list[Outcome]:
        """Return what became of a group of which the statement has written some."""
        written = {from_stored(row[0]) for row in found}
        refused = [transition for transition in group if transition.run_id not in written]
        outcomes = await self._look_up(session, refused) if refused else {}
        busy = [transition for transition in refused if isinstance(outcomes[transition.run_id], Busy)]
        if busy and again:  # a row that somebody has changed at the same time is there for the next statement
            name, values = self._statement(busy)
            second = await self._judge_all(session, busy, await session.write(name, *values), again=False)
            outcomes |= zip((transition.run_id for transition in busy), second, strict=True)
        return [outcomes.get(transition.run_id, _COMMITTED) for transition in group]

    async def _look_up(self, session: Session, refused: Sequence[Transition]) -> dict[RunId, Outcome]:
        """Return what became of the transitions that the statement did not write."""
        claims = [transition.lease if isinstance(transition.lease, Claim) else None for transition in refused]
        values = (
            [transition.run_id for transition in refused],
            [transition.epoch for transition in refused],
            [transition.base_seq for transition in refused],
            [claim is not None for claim in claims],
            [claim.dead if claim else None for claim in claims],
        )
        name = "look_up" if refused[0].run.audit is None else "look_up_audited"
        found = await session.write(name, self._project_id, *map(to_stored, values))
        facts = {from_stored(run_id): tuple(rest) for run_id, *rest in found}
        return {transition.run_id: self._judge(transition, *facts[transition.run_id]) for transition in refused}

    def _judge(self, transition: Transition, audit: str | None, is_there: bool, event_id: str | None = None) -> Outcome:
        if transition.events and (transition.events[0].id == event_id or is_last_written(transition, audit)):
            return _COMMITTED
        if is_there:
            return self._busy(transition, _HELD.format(run_id=transition.run_id, where=self._where))
        return RunExists() if transition.base_seq == 0 else LeaseLost()

    def _busy(self, transition: Transition, problem: str) -> Busy:
        self._held.add(transition.run_id)
        return Busy(problem)
