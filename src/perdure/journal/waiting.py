"""What the nodes of a run wait for, and what has come of it: questions, signals, points in time.

A wait belongs to a node, not to an attempt: whoever runs the body again finds it by what it waits for. Settled waits are kept,
so that the body is given the same each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from perdure.errors import IllegalTransition
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.flow import is_item_of, positions_in
from perdure.journal.states import Question, SignalState, WaitKind, WaitState, WaitStatus

OPENING = frozenset((e.InteractionRequested, e.TimerSet, e.SignalAwaited))
SETTLING = frozenset((e.InteractionResponded, e.TimerFired, e.SignalTaken))


class Waits:
    """The waits of one run on its current branch, and the signals that it was sent."""

    def __init__(self, waits: Iterable[WaitState] = (), signals: Iterable[SignalState] = ()) -> None:
        self._waits = {wait.wait_id: wait for wait in waits}
        self._named: dict[tuple[NodeId, str, int], str] = {}
        self._settled: dict[NodeId, dict[str, None]] = {}
        self._open: dict[NodeId, dict[str, None]] = {}
        self._counts: dict[NodeId, int] = {}
        self._signals = {signal.signal_id: signal for signal in signals}
        self._untaken: dict[str, deque[str]] = {}
        self._changed: dict[str, None] = {}
        self._came: list[SignalState] = []
        if self._waits or self._signals:
            self._survey()

    def __iter__(self) -> Iterator[WaitState]:
        return iter(self._waits.values())

    @property
    def signals(self) -> Iterable[SignalState]:
        """Every signal that has come, taken or not."""
        return self._signals.values()

    @property
    def are_open(self) -> bool:
        """Whether a node waits for something."""
        return bool(self._open)

    def get(self, wait_id: str) -> WaitState | None:
        """Return a wait by its id."""
        return self._waits.get(wait_id)

    def named(self, node_id: NodeId, name: str, occurrence: int) -> WaitState | None:
        """Return the wait that a node's body knows by this name."""
        wait_id = self._named.get((node_id, name, occurrence))
        return None if wait_id is None else self._waits[wait_id]

    def of(self, node_id: NodeId) -> list[WaitState]:
        """Return what a node waits for, oldest first."""
        return [self._waits[wait_id] for wait_id in self._open.get(node_id, ())]

    def open(self) -> list[WaitState]:
        """Return everything that is waited for."""
        return [self._waits[wait_id] for waits in self._open.values() for wait_id in waits]

    def count(self, node_id: NodeId) -> int:
        """Return how many waits a node has had."""
        return self._counts.get(node_id, 0)

    def has_past(self, node_id: NodeId) -> bool:
        """Whether a node has waited for something for which it does not wait any more."""
        return self.count(node_id) > len(self._open.get(node_id, ()))

    def untaken(self, signal: str) -> SignalState | None:
        """Return the oldest signal of this name that nobody has taken."""
        waiting = self._untaken.get(signal)
        return self._signals[waiting[0]] if waiting else None

    def has_signal(self, signal_id: str) -> bool:
        return signal_id in self._signals

    def take_changes(self) -> tuple[tuple[WaitState, ...], tuple[SignalState, ...]]:
        """Return the waits that have changed and the signals that have come since the last call."""
        if not (self._changed or self._came):
            return (), ()
        changed, self._changed = self._changed, {}
        came, self._came = self._came, []
        return tuple(self._waits[wait_id] for wait_id in changed if wait_id in self._waits), tuple(came)

    # What happens

    def opened(self, event: e.WaitOpened, branch_id: BranchId, *, seq: Seq, at: int) -> None:
        """Note that a body waits."""
        wait = _opened(event, branch_id, seq, at)
        if wait.wait_id in self._waits or (wait.node_id, wait.name, wait.occurrence) in self._named:
            raise IllegalTransition(self._waits.get(wait.wait_id), event)
        self._named[wait.node_id, wait.name, wait.occurrence] = wait.wait_id
        self._open.setdefault(wait.node_id, {})[wait.wait_id] = None
        self._counts[wait.node_id] = self.count(wait.node_id) + 1
        self._put(wait)

    def settled(self, event: e.NodeEvent, *, seq: Seq, at: int) -> None:
        """Note what has come of a wait."""
        match event:
            case e.InteractionResponded(interaction_id=wait_id, answer=result, by=by):
                wait = self._settle(event, wait_id, seq, at, result=e.or_none(result), by=by)
            case e.TimerFired(timer_id=wait_id):
                wait = self._settle(event, wait_id, seq, at)
            case e.SignalTaken(wait_id=wait_id, signal_id=signal_id, value=result):
                wait = self._settle(event, wait_id, seq, at, result=e.or_none(result), signal_id=signal_id)
                if signal_id is not None:
                    self._take(wait, signal_id, event)
            case _:
                raise IllegalTransition(None, event)

    def received(self, event: e.SignalReceived, *, seq: Seq, at: int) -> None:
        """Note that a signal has come. The same one does not come twice."""
        if event.signal_id in self._signals:
            raise IllegalTransition(None, event)
        signal = SignalState(signal_id=event.signal_id, name=event.name, value=event.value, received_at=at, seq=seq)
        self._signals[signal.signal_id] = signal
        self._untaken.setdefault(signal.name, deque()).append(signal.signal_id)
        self._came.append(signal)

    def checkpointed(self, node_id: NodeId, *, seq: Seq) -> None:
        """Note that a node goes on from here if its body runs again, and does not come back to what has come before."""
        for wait_id in self._settled.pop(node_id, ()):
            wait = self._waits[wait_id]
            self._named.pop((wait.node_id, wait.name, wait.occurrence), None)
            self._put(replace(wait, status=WaitStatus.PAST, last_seq=seq))

    def withdraw(self, node_id: NodeId, *, seq: Seq, at: int) -> None:
        """Note that a node has ended, and waits for nothing any more."""
        for wait_id in self._open.pop(node_id, ()):
            wait = self._waits[wait_id]
            self._put(replace(wait, status=WaitStatus.WITHDRAWN, settled_at=at, last_seq=seq))

    def branch(self, event: e.BranchCreated) -> None:
        """Go on on a branch: nodes and items that begin again have waited for nothing, and the signals they took are there again.
        Those that are tried again wait once more for what they did not get, under other ids: somebody may have answered under
        the earlier ones when nobody listened any more."""
        dropped, retried = frozenset(event.dropped), frozenset(event.retried)
        chosen = {node_id: frozenset(positions_in(kept.chosen)) for node_id, kept in event.items.items()}
        self._waits = {
            wait_id: _on_branch(wait, event.branch_id, is_retried=wait.node_id in retried)
            for wait_id, wait in self._waits.items()
            if wait.node_id not in dropped and not is_item_of(wait.name, chosen.get(wait.node_id, ()))
        }
        self._changed = dict.fromkeys(self._waits)
        self._survey()

    def restore(self, then: Waits, event: e.BranchCreated) -> None:
        """Go on with what was waited for at an earlier place. What was open is asked and awaited again, under other ids: somebody
        may have answered since, under the earlier ones. Only sleepers sleep on. Signals stay that have come since."""
        dropped = frozenset(event.dropped)
        self._waits = {wait.wait_id: _reopened(wait, event.branch_id) for wait in then if wait.node_id not in dropped}
        self._changed = dict.fromkeys(self._waits)
        self._survey()

    def _survey(self) -> None:
        self._open.clear()
        self._named.clear()
        self._settled.clear()
        self._counts.clear()
        for wait in self._waits.values():
            self._counts[wait.node_id] = self.count(wait.node_id) + 1
            if wait.status is not WaitStatus.PAST:
                self._named[wait.node_id, wait.name, wait.occurrence] = wait.wait_id
            if wait.status is WaitStatus.OPEN:
                self._open.setdefault(wait.node_id, {})[wait.wait_id] = None
            elif wait.status is WaitStatus.SETTLED:
                self._settled.setdefault(wait.node_id, {})[wait.wait_id] = None
        taken = {wait.signal_id for wait in self._waits.values()}
        self._untaken.clear()
        for signal in self._signals.values():
            if signal.signal_id not in taken:
                self._untaken.setdefault(signal.name, deque()).append(signal.signal_id)

    def _settle(
        self,
        event: e.NodeEvent,
        wait_id: str,
        seq: Seq,
        at: int,
        *,
        result: e.Encoded | None = None,
        by: str = "",
        signal_id: str | None = None,
    ) -> WaitState:
        wait = self._waits.get(wait_id)
        if wait is None or wait.status is not WaitStatus.OPEN or wait.node_id != event.node_id:
            raise IllegalTransition(wait, event)
        settled = replace(
            wait,
            status=WaitStatus.SETTLED,
            result=result,
            by=by,
            signal_id=signal_id,
            settled_at=at,
            last_seq=seq,
        )
        del self._open[wait.node_id][wait_id]
        if not self._open[wait.node_id]:
            del self._open[wait.node_id]
        self._settled.setdefault(wait.node_id, {})[wait_id] = None
        self._put(settled)
        return settled

    def _take(self, wait: WaitState, signal_id: str, event: e.Event) -> None:
        waiting = self._untaken.get(wait.signal or "")
        if not waiting or waiting[0] != signal_id:
            raise IllegalTransition(wait, event)
        waiting.popleft()

    def _put(self, wait: WaitState) -> None:
        self._waits[wait.wait_id] = wait
        self._changed[wait.wait_id] = None


def _opened(event: e.WaitOpened, branch_id: BranchId, seq: Seq, at: int) -> WaitState:
    match event:
        case e.InteractionRequested():
            wait_id, kind, due = event.interaction_id, WaitKind.SUSPEND if event.suspends else WaitKind.ASK, event.due
        case e.TimerSet():
            wait_id, kind, due = event.timer_id, WaitKind.SLEEP, event.due
        case e.SignalAwaited():
            wait_id, kind, due = event.wait_id, WaitKind.SIGNAL, event.due
        case _:
            raise IllegalTransition(None, event)
    return WaitState(
        wait_id=wait_id,
        node_id=event.node_id,
        branch_id=branch_id,
        kind=kind,
        name=event.name,
        occurrence=event.occurrence,
        question=_question(event) if isinstance(event, e.InteractionRequested) else None,
        signal=event.signal if isinstance(event, e.SignalAwaited) else None,
        due=due,
        opened_at=at,
        last_seq=seq,
    )


def _question(event: e.InteractionRequested) -> Question:
    return Question(
        prompt=event.prompt, schema=event.schema, choices=event.choices, show=event.show, default=event.default
    )


def _on_branch(wait: WaitState, branch_id: BranchId, *, is_retried: bool) -> WaitState:
    is_past = is_retried and wait.status is WaitStatus.WITHDRAWN
    return replace(wait, branch_id=branch_id, status=WaitStatus.PAST if is_past else wait.status)


def _reopened(wait: WaitState, branch_id: BranchId) -> WaitState:
    is_past = wait.status is WaitStatus.OPEN and wait.kind is not WaitKind.SLEEP
    return replace(wait, branch_id=branch_id, status=WaitStatus.PAST if is_past else wait.status)
