"""Checks of what nodes wait for: nobody waits in vain, and nothing comes before its time or twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.graph.model import FED
from perdure.journal import events as e
from perdure.journal.dump import Dump, Violation, violation
from perdure.journal.lineage import lines
from perdure.journal.states import WAITING, NodeStatus, RunStatus, WaitKind, WaitStatus


def waits_are_right(dump: Dump) -> Iterator[Violation]:
    """Yield what is wrong with waits: by the log alone, and by how the run rests."""
    for line in lines(dump.events):
        yield from _come_in_time(line)
    yield from waits_stand_right(dump)


def waits_stand_right(dump: Dump) -> Iterator[Violation]:
    """Yield what is wrong with waits by how the run rests."""
    taken = [wait.signal_id for wait in dump.waits if wait.signal_id is not None]
    if len(taken) != len(set(taken)):
        yield violation("I22", "one signal was taken by two waits")
    yield from _rest_with_a_reason(dump)


def _come_in_time(line: Sequence[e.Recorded]) -> Iterator[Violation]:
    dues: dict[str, int] = {}
    settled: set[str] = set()
    for entry in line:
        match entry.event:
            case e.TimerSet(timer_id=wait_id, due=due):
                dues[wait_id] = due
            case e.TimerFired(timer_id=wait_id):
                if entry.at < dues.get(wait_id, entry.at):
                    yield violation("I24", f"timer {wait_id!r} fired at {entry.seq}, before it was due")
                if wait_id in settled:
                    yield violation("I24", f"timer {wait_id!r} fired twice")
                settled.add(wait_id)
            case e.InteractionResponded(interaction_id=wait_id) | e.SignalTaken(wait_id=wait_id):
                if wait_id in settled:
                    yield violation("I22", f"{wait_id!r} was answered twice")
                settled.add(wait_id)
            case _:
                pass


def _rest_with_a_reason(dump: Dump) -> Iterator[Violation]:
    open_waits = [wait for wait in dump.waits if wait.status is WaitStatus.OPEN]
    status = dump.run.status
    asked = [wait for wait in open_waits if wait.kind is WaitKind.ASK]
    if status is RunStatus.AWAITING_INPUT and not asked:
        yield violation("I22", "the run is awaiting input, and nothing is asked")
    statuses = [node.status for node in dump.current_nodes]
    if status in WAITING and NodeStatus.RUNNING in statuses:
        yield violation("I17", f"the run is {status.value}, and a node of it runs")
    has_reason = open_waits or NodeStatus.IN_DOUBT in statuses or NodeStatus.SCHEDULED in statuses
    if status in WAITING and not has_reason and not _waits_for_items(dump):
        yield violation("I17", f"the run is {status.value}, and waits for nothing")
    dues = [wait.due for wait in open_waits if wait.due is not None]
    if status in WAITING and dues and (dump.run.wake_at is None or dump.run.wake_at > min(dues)):
        yield violation("I17", f"the run is to be woken at {dump.run.wake_at}, and something is due at {min(dues)}")
    for node in dump.current_nodes:
        if status in WAITING and node.status is NodeStatus.SUSPENDED and node.due is not None:
            yield violation("I17", f"the run is {status.value}, and {node.node_id!r} has something to go on for")
    ended = {node.node_id for node in dump.current_nodes if node.ended_at is not None and node.status in _OVER}
    for wait in open_waits:
        if wait.node_id in ended:
            yield violation("I22", f"{wait.wait_id!r} is open, and its node has ended")


_OVER = frozenset((NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.CANCELLED, NodeStatus.SKIPPED))


def _waits_for_items(dump: Dump) -> bool:
    if dump.plan is None:
        return True
    inputs = (node_id for node_id, plan in dump.plan.nodes.items() if plan.node.type in FED)
    waiting = {
        node.node_id
        for node in dump.current_nodes
        if node.status is NodeStatus.SUSPENDED and not (node.stream is not None and node.stream.is_closed)
    }
    return any(node_id in waiting for node_id in inputs)
