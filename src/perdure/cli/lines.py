"""Events in words: one line each, as they are printed in a pipe and by `perdure events`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perdure.cli.words import (
    counted,
    duration,
    error_line,
    fitted,
    item_names,
    plain,
    time_of_day,
    until,
    value_line,
    waking,
)
from perdure.engine.driving.waiting import DEADLINE
from perdure.ids import NodeId
from perdure.journal import events as e

RUN = "run"
"""What the lines about the run itself begin with."""

MOST_NAMES = 5
"""How many nodes are named in a line."""

MOST_VALUE = 60
"""How much of an answer, or of what a signal brings, is told in a line."""

_QUIET = (
    *(
        e.RunCreated,
        e.RunStarted,
        e.RunClaimed,
        e.RunRecovered,
        e.RunFailing,
        e.RunCancelling,
        e.NodeCheckpointed,
        e.StepCompleted,
    ),
    *(e.NodeSuspended, e.NodeResumed, e.TimerFired, e.SignalTaken, e.RunPausing),
    *(e.OutboxEnqueued, e.OutboxClosed, e.TriggerCursorAdvanced, e.AttemptResultDiscarded, e.BranchActivated),
)
"""What a person who watches a run does not need to be told, unless `is_news` makes an exception."""


def is_news(event: e.Event) -> bool:
    """Whether an event is worth a line to somebody who watches the run."""
    match event:
        case e.RunClaimed():
            return event.lost or event.epoch > 1
        case e.RunRecovered():
            return event.branch is not None
        case e.NodeScheduled():
            return event.due is not None
        case e.RunFailed():
            return event.node_id is None  # the node has said it
        case e.SignalTaken():
            return event.signal_id is None  # that the signal has come was said
        case e.CheckpointSaved():
            return not event.periodic
        case _:
            return not isinstance(event, _QUIET)


def line_of(entry: e.Recorded) -> str:
    """Return an event as `12:03:04 fetch started (attempt 2)`."""
    return f"{time_of_day(entry.at)} {sentence(entry)}"


def sentence(entry: e.Recorded) -> str:
    """Return what happened, without when."""
    event = entry.event
    subject = plain(_subject(event))
    return f"{subject} {_what(event, entry.at)}"


def _subject(event: e.AnyEvent) -> str:
    match event:
        case e.StageStarted(stage=stage) | e.StageCompleted(stage=stage):
            return f"stage {stage}"
        case e.NodeEvent():
            return event.node_id
        case _:
            return RUN


def _what(event: e.AnyEvent, at: int) -> str:
    match event:
        case e.NodeScheduled(due=int(due)):
            return f"waits {duration(due - at)} for attempt {event.attempt}"
        case e.NodeStarted() | e.NodeScheduled():
            return _past(event, "Node") + _attempt(event.attempt)
        case e.NodeCompleted():
            return f"completed in {duration(event.duration_ms * 1_000)}{_attempt(event.attempt)}"
        case e.NodeFailed(final=final):
            what = "failed" if final else f"failed at attempt {event.attempt}, to be tried again"
            return f"{what}: {error_line(event.error)}"
        case e.NodeSkipped(reason=reason) | e.NodeCancelled(reason=reason):
            return _past(event, "Node") + _because(reason)
        case e.AttemptLost():
            return f"lost attempt {event.attempt}{_because(event.reason)}"
        case e.AttemptResultDiscarded():
            return f"brought a late result of attempt {event.attempt}, which does not count"
        case e.OutboxEnqueued():
            return f"recorded {counted(items_in(event), 'item')}"
        case e.OutboxClosed():
            return f"ended its stream after {counted(event.entries, 'item')}"
        case e.ItemFailed():
            what = "failed" if event.final else f"failed at attempt {event.item_attempt}, to be tried again"
            return f"item {event.position} {what}: {error_line(event.error)}"
        case e.StepCompleted():
            return f"completed step {plain(event.name)}" + (f" #{event.occurrence + 1}" if event.occurrence else "")
        case e.NodeSuspended():
            return f"suspended{_because(event.reason)}"
        case e.NodeResumed():
            return "goes on"
        case e.WaitOpened() | e.InteractionResponded() | e.TimerFired() | e.SignalTaken():
            return _what_of_wait(event, at)
        case e.NodeEvent():
            return _past(event, "Node")
        case _:
            return _what_of_run(event, at)


def _what_of_wait(event: e.AnyWait | e.InteractionResponded | e.TimerFired | e.SignalTaken, at: int) -> str:
    match event:
        case e.InteractionRequested(suspends=True):
            return f"waits to be told to go on{_because(event.prompt)}"
        case e.InteractionRequested():
            return f"asks {plain(repr(event.prompt))}{_until(event.due, at)} ({plain(event.interaction_id)})"
        case e.InteractionResponded():
            return _answered(event)
        case e.TimerSet():
            return f"sleeps {duration(event.due - at)}{_until(event.due, at)}"
        case e.TimerFired():
            return "has slept"
        case e.SignalAwaited():
            return f"waits for signal {plain(repr(event.signal))}{_until(event.due, at)}"
        case e.SignalTaken(signal_id=None):
            return "has waited for a signal in vain: its time is over"
        case e.SignalTaken():
            return f"took signal {plain(event.signal_id or '')}"


def _answered(event: e.InteractionResponded) -> str:
    answer = e.or_none(event.answer)
    told = "" if answer is None else f": {fitted(value_line(answer), MOST_VALUE)}"
    if event.by == DEADLINE:
        return "was not answered in time" + (told and f"; its default counts{told}")
    return f"was answered{f' by {plain(event.by)}' if event.by else ''}{told}"


def _what_of_run(event: e.Event, at: int) -> str:
    match event:
        case e.RunCreated():
            return f"created from {plain(event.workflow)}, version {event.version}{_fork_of(event.forked_from)}"
        case e.RunClaimed(lost=True):
            return "taken over: the process that drove it is gone"
        case e.RunClaimed():
            return "taken up" if event.epoch > 1 else "claimed"
        case e.RunRecovered(branch=branch) if branch is not None:
            return f"repaired on branch {branch}{_because(event.reason)}"
        case e.RunRecovered():
            return f"recovered with {counted(event.lost_attempts, 'lost attempt')}{_because(event.reason)}"
        case e.RunCompleted():
            return f"completed in {duration(event.duration_ms * 1_000)}"
        case e.RunFailed() | e.RunFailing():
            return f"{_past(event, 'Run')}{_at(event.node_id)}: {error_line(event.error)}"
        case e.RunQuarantined():
            return f"quarantined{_because(event.reason)}"
        case e.RunSuspended():
            status = "awaits input" if event.awaiting_input else "suspended"
            return f"{status}{_because(event.reason)}{waking(event.reason, event.wake_at, now=at)}"
        case e.SignalReceived():
            return f"received signal {plain(repr(event.name))}: {fitted(value_line(event.value), MOST_VALUE)}"
        case e.StageStarted() | e.StageCompleted():
            return _past(event, "Stage")
        case e.JumpRequested():
            items = f"{item_names(event.items)} of " if event.items else ""
            return f"goes back to {items}{plain(event.node_id)}{_because(event.reason)}"
        case e.BranchCreated(restored=True):
            return (
                f"goes back to event {event.cut}, on branch {event.parent}{_because(event.reason)}{_begin_again(event)}"
            )
        case e.BranchCreated():
            return f"branched{_because(event.reason)}{_begin_again(event)}"
        case e.BranchActivated():
            follows = "" if event.version is None else f", with version {event.version}"
            return f"goes on on branch {event.branch_id}{follows}"
        case e.VersionResolved():
            return f"follows version {event.version}, as {plain(event.alias)} says"
        case e.CheckpointSaved():
            return f"saved checkpoint {plain(repr(event.name))} of all up to event {event.seq}"
        case _:
            return _past(event, "Run") + _because(str(getattr(event, "reason", "")))


def items_in(event: e.OutboxEnqueued) -> int:
    """Return how many items a batch holds."""
    return sum(count for _, count in event.ranges)


def _fork_of(origin: e.Origin | None) -> str:
    return "" if origin is None else f", a fork of run {plain(origin.run_id)} at event {origin.seq}"


def _begin_again(event: e.BranchCreated) -> str:
    begun = [node_id for node_id in event.dropped if node_id not in event.outputs]
    told = [f"; {_named(begun)} {'begins' if len(begun) == 1 else 'begin'} again"] if begun else []
    chosen = {node_id: kept.chosen for node_id, kept in event.items.items() if kept.chosen}
    retried = [node_id for node_id in event.retried if node_id not in chosen]
    told += [f"; {_named(retried)} tried again"] if retried else []
    told += [f"; {item_names(ranges)} of {plain(node_id)} again" for node_id, ranges in chosen.items()]
    told += [f"; what {plain(node_id)} has given is given" for node_id in event.outputs]
    return "".join(told)


def _named(nodes: Sequence[str]) -> str:
    named = ", ".join(map(plain, nodes[:MOST_NAMES]))
    return f"{named} and {counted(len(nodes) - MOST_NAMES, 'more node')}" if len(nodes) > MOST_NAMES else named


def _past(event: e.Event, prefix: str) -> str:
    """Return the name of an event as words: `NodeInDoubt` is `in doubt`."""
    words = re.sub(r"(?<!^)([A-Z])", r" \1", type(event).__name__.removeprefix(prefix))
    return words.lower()


def _attempt(number: int) -> str:
    return f" (attempt {number})" if number > 1 else ""


def _because(reason: str) -> str:
    return f": {plain(reason)}" if reason else ""


def _until(due: int | None, at: int) -> str:
    return "" if due is None else f", until {until(due, now=at)}"


def _at(node_id: NodeId | None) -> str:
    return f" at {plain(node_id)}" if node_id else ""
