"""Writing a group of transitions: one statement, and what to do when it does not simply succeed.

the statement answers      the runs it names are written; of each other one, the log is asked whether it was written before
                           and only the answer got lost. Then it is Committed, else LeaseLost or RunExists.
a constraint is violated   nothing was written. The group is halved until the one that is to blame stands alone: Rejected.
others were in the way     nothing was written. Again, then each by itself, so that a locked run holds up no other.
no answer                  the same group is written again on another connection. That is the lookup: if the first try did
                           happen, its events are found; if it did not, this one does; if it is still on its way, one of the
                           two waits for the other and finds the run moved on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perdure.clock import Clock
from perdure.errors import PerdureError, StoreUnavailable
from perdure.ids import EventId, RunId
from perdure.store.base import Committed, LeaseLost, Outcome, Rejected, RunExists, Transition
from perdure.store.postgres.documents import advance_values, group_values, is_plain
from perdure.store.postgres.failures import Trouble, problem_of, translate, trouble_of
from perdure.store.postgres.lanes import Caller, Lane
from perdure.store.postgres.session import Session
from perdure.store.postgres.texts import from_stored, to_stored

PATIENCE_SECONDS = 10.0
"""How long a commit whose answer was lost looks for the database before it gives up."""
TRIES_TOGETHER = 3
TRIES_ALONE = 8
"""How often a group, or a transition by itself, is tried when others were in the way. Never again after it has waited for a
lock in vain: all other commits of this process wait as well."""
MOST_LOCKED_OUT = 3
"""When more of a group cannot be written each by itself, it is not single runs that are locked."""


class _Refused(Exception):
    """The database will not have this group."""


class _Busy(Exception):
    """Others were in the way each time."""


class GroupWriter:
    """Writes groups, one at a time, on a connection that nothing else uses."""

    def __init__(self, lane: Lane, caller: Caller, project_id: str, where: str, clock: Clock) -> None:
        self._lane = lane
        self._caller = caller
        self._project_id = str(to_stored(project_id))
        self._where = where
        self._clock = clock

    async def write(self, group: Sequence[Transition]) -> list[Outcome]:
        """Write each transition whole or not at all, and answer for each in order."""
        try:
            return await self._settle(group)
        except _Busy as busy:
            raise StoreUnavailable(str(busy)) from busy.__cause__

    async def _settle(self, group: Sequence[Transition]) -> list[Outcome]:
        try:
            return await self._insist(group)
        except _Refused as refusal:
            if len(group) == 1:
                return [Rejected(problem=str(refusal))]
            middle = len(group) // 2
            return [*await self._settle(group[:middle]), *await self._settle(group[middle:])]
        except _Busy:
            if len(group) == 1:
                raise
            return await self._settle_apart(group)

    async def _settle_apart(self, group: Sequence[Transition]) -> list[Outcome]:
        """Write each by itself. One that stays locked out is reported only after all others had their turn."""
        outcomes: list[Outcome] = []
        locked_out: list[_Busy] = []
        for transition in group:
            try:
                outcomes += await self._settle((transition,))
            except _Busy as busy:
                locked_out.append(busy)
                if len(locked_out) > MOST_LOCKED_OUT:
                    break
        if locked_out:
            raise locked_out[0]
        return outcomes

    async def _insist(self, group: Sequence[Transition]) -> list[Outcome]:
        """Write the group until there is an answer."""
        tries = TRIES_ALONE if len(group) == 1 else TRIES_TOGETHER
        failures: Counter[Trouble] = Counter()
        give_up_at = float("inf")
        while True:
            try:
                return await self._caller.once(self._lane, lambda session: self._write_on(session, group))
            except PerdureError:
                raise
            except Exception as error:  # Whatever the driver raises is judged here, and leaves as an error of ours.
                trouble = trouble_of(error)
                failures[trouble] += 1
                if trouble is Trouble.REFUSED:
                    raise _Refused(problem_of(error)) from error
                if trouble is Trouble.BLOCKED or failures[Trouble.BUSY] >= tries:
                    raise _Busy(str(translate(error, self._where))) from error
                if trouble is Trouble.LOST:
                    give_up_at = min(give_up_at, self._clock.monotonic() + PATIENCE_SECONDS)
                if trouble is Trouble.FATAL or self._clock.monotonic() > give_up_at:
                    raise translate(error, self._where) from error
            await self._caller.pause(failures.total())

    async def _write_on(self, session: Session, group: Sequence[Transition]) -> list[Outcome]:
        if len(group) == 1 and is_plain(group[0]):
            found = await session.write("advance_run", *advance_values(self._project_id, group[0]))
            if found:
                return [Committed()]
            written: set[str] = set()
        else:
            found = await session.write("commit_group", *group_values(self._project_id, group))
            written = {from_stored(row[0]) for row in found}
            if len(written) == len(group):
                return [Committed() for _ in group]
        refused = [transition for transition in group if transition.run_id not in written]
        earlier = await self._first_events(session, refused)
        return [
            Committed() if transition.run_id in written else _judge(transition, earlier.get(transition.run_id))
            for transition in group
        ]

    async def _first_events(self, session: Session, refused: Sequence[Transition]) -> dict[RunId, EventId]:
        """Return the ids of the events that stand where the refused transitions' first ones would."""
        run_ids = [transition.run_id for transition in refused]
        places = [transition.base_seq + 1 for transition in refused]
        found = await session.write("event_ids_at", self._project_id, to_stored(run_ids), places)
        return {RunId(from_stored(run_id)): EventId(event_id) for run_id, event_id in found}


def _judge(transition: Transition, earlier: EventId | None) -> Outcome:
    """Say what became of a transition that the statement did not write."""
    if transition.events and transition.events[0].id == earlier:
        return Committed()
    return RunExists() if transition.base_seq == 0 else LeaseLost()
