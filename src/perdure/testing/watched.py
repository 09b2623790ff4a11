"""A run that a test watches: what it has come to, what it did, and claims about it that explain themselves when they fail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from perdure.engine.runs.run import Run
from perdure.graph.declare import NodeType
from perdure.graph.forms import graph_from_json
from perdure.graph.model import FED
from perdure.ids import NodeId, RunId
from perdure.journal.events import ErrorRecord, Event, ItemFailed, Recorded
from perdure.journal.states import NodeState, NodeStatus, RunState, RunStatus, WaitKind, WaitState, WaitStatus
from perdure.store.base import Store
from perdure.testing.ledger import Effect, Ledger

R = TypeVar("R")

Asked = str | re.Pattern[str] | NodeType[..., Any]
Which = str | NodeType[..., Any]
"""A node by its id, or all nodes of a type."""

_WORDS = {WaitKind.ASK: "asks", WaitKind.SUSPEND: "waits to be resumed:", WaitKind.SIGNAL: "waits for the signal"}


class Executions(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a node, or of all nodes of a type together."""

    times: int
    """How often the body began: for each attempt, for each item, and again each time it was unwound while it waited."""
    attempts: int
    items: int
    """How many items are recorded, of nodes that work item by item."""
    failures: int
    """Attempts that failed, each attempt at an item counted by itself."""
    statuses: tuple[NodeStatus, ...]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    run: RunState
    nodes: Mapping[NodeId, NodeState]
    types: Mapping[NodeId, str]
    """The type of each node of the graph, in the order of the graph."""
    events: tuple[Recorded, ...]
    waits: tuple[WaitState, ...]
    """What it waits for."""
    effects: Sequence[Effect]
    output: Any = None


async def look(run: Run[Any], store: Store, ledger: Ledger) -> Seen:
    """Return a run as it is at this moment."""
    dump = await store.dump_run(run.run_id)
    assert dump is not None
    assert dump.version is not None
    state = dump.stored.run
    return Seen(
        run=state,
        nodes={node.node_id: node for node in dump.stored.nodes},
        types={NodeId(node.id): node.type for node in graph_from_json(dump.version.graph).nodes},
        events=dump.events,
        waits=tuple(wait for wait in dump.stored.waits if wait.status is WaitStatus.OPEN),
        effects=ledger.effects(run.run_id),
        output=await run.result() if state.status is RunStatus.COMPLETED else None,
    )


class WatchedRun(Generic[R]):
    """A run of a test, as it stood when the test last did something."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def __repr__(self) -> str:
        return f"<run {self.run_id} of {self.seen.run.workflow}: {self.status.value}>"

    def __str__(self) -> str:
        return table(self.seen)

    @property
    def run_id(self) -> RunId:
        return self.seen.run.run_id

    @property
    def status(self) -> RunStatus:
        return self.seen.run.status

    @property
    def output(self) -> R:
        """What the workflow returned. Fails if it has not completed."""
        __tracebackhide__ = True
        self.assert_completed()
        return cast("R", self.seen.output)

    @property
    def error(self) -> ErrorRecord | None:
        """Why the run failed, if it did: `type`, `message` and `traceback`."""
        return self.seen.run.error

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that is recorded, in order: see `perdure.journal.events`."""
        return tuple(entry.event for entry in self.seen.events)

    def executions(self, node: Which) -> Executions:
        """Return what became of a node, named by its id, or of all nodes of a type."""
        __tracebackhide__ = True
        chosen = self._nodes(node)
        states = [self.seen.nodes[node_id] for node_id in chosen if node_id in self.seen.nodes]
        return Executions(
            times=sum(effect.node_id in chosen for effect in self.seen.effects),
            attempts=sum(state.attempt for state in states),
            items=sum(state.stream.entries for state in states if state.stream is not None),
            failures=sum(_failures(self.seen, state) for state in states),
            statuses=tuple(_status(self.seen, node_id) for node_id in chosen),
        )

    def assert_completed(self) -> None:
        __tracebackhide__ = True
        self._require(self.status is RunStatus.COMPLETED, "the run has not completed")

    def assert_failed(self, error: str | type[BaseException] | None = None) -> None:
        """Claim that the run has failed, and with this error: its type, the type's name, or a text in its message."""
        __tracebackhide__ = True
        self._require(self.status is RunStatus.FAILED and self.error is not None, "the run has not failed")
        if error is not None and self.error is not None:
            name = error.__name__ if isinstance(error, type) else error
            is_it = name == self.error.type.rpartition(".")[2] or (
                isinstance(error, str) and error in self.error.message
            )
            self._require(is_it, f"the run has not failed with {name!r}, but with {self.error.type}")

    def assert_ran(self, node: Which, *, times: int | None = None) -> None:
        """Claim that the body of a node began, so often if that is said; `times=0` for never."""
        __tracebackhide__ = True
        ran = self.executions(node).times
        if times is None:
            self._require(ran > 0, f"{_name(node)} did not run")
        else:
            self._require(ran == times, f"{_name(node)} ran {_times(ran)}, not {_times(times)}")

    def assert_skipped(self, node: Which) -> None:
        """Claim that the node was skipped."""
        __tracebackhide__ = True
        statuses = set(self.executions(node).statuses)
        self._require(statuses == {NodeStatus.SKIPPED}, f"{_name(node)} was not skipped")

    def assert_waiting_for(self, what: Asked) -> None:
        """Claim that the run waits for this: a question or a pattern in it, a signal, the reason of `ctx.suspend`, or a node."""
        __tracebackhide__ = True
        named = what.pattern if isinstance(what, re.Pattern) else _name(what)
        self._require(any(self._is_for(wait, what) for wait in self.seen.waits), f"the run does not wait for {named}")

    def _is_for(self, wait: WaitState, what: Asked) -> bool:
        texts = [text for text in (_prompt(wait), wait.signal) if text is not None]
        match what:
            case re.Pattern():
                return any(what.search(text) for text in texts)
            case NodeType():
                return self.seen.types.get(wait.node_id) == what.name
            case str():
                return what in (*texts, wait.node_id)

    def _nodes(self, node: Which) -> list[NodeId]:
        __tracebackhide__ = True
        if isinstance(node, NodeType):
            found = [node_id for node_id, name in self.seen.types.items() if name == node.name]
        else:
            found = [node_id for node_id in self.seen.types if node_id == node]
        self._require(bool(found), f"the workflow has no node {_name(node)}")
        return found

    def _require(self, holds: bool, claim: str) -> None:
        __tracebackhide__ = True
        if not holds:
            raise AssertionError(f"{claim}\n\n{table(self.seen)}")


def table(seen: Seen) -> str:
    """Draw what became of a run and of each of its nodes."""
    rows = [("node", "status", "attempts", "ran", "items", "")]
    rows += [_row(seen, node_id) for node_id, name in seen.types.items() if name not in FED]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join((*map(str.ljust, row[:5], widths), row[5])).rstrip() for row in rows]
    return "\n".join((_headline(seen), *(f"  {line}" for line in lines)))


def _headline(seen: Seen) -> str:
    run = seen.run
    because = ""
    if run.error is not None:
        because = f" at {run.failed_node}: {_error(run.error)}"
    elif run.reason:
        because = f": {run.reason}"
    return f"run {run.run_id} of {run.workflow} is {run.status.value}{because}"


def _row(seen: Seen, node_id: NodeId) -> tuple[str, str, str, str, str, str]:
    node = seen.nodes.get(node_id)
    ran = sum(effect.node_id == node_id for effect in seen.effects)
    status = _status(seen, node_id).value
    if node is None:
        return node_id, status, "", "", "", ""
    items = "" if node.stream is None else str(node.stream.entries)
    return node_id, status, str(node.attempt), str(ran), items, "; ".join(_notes(seen, node))


def _notes(seen: Seen, node: NodeState) -> Iterator[str]:
    if node.error is not None:
        yield _error(node.error)
    for wait in seen.waits:
        if wait.node_id == node.node_id and wait.kind in _WORDS:
            yield f"{_WORDS[wait.kind]} {wait.signal or _prompt(wait)!r}"


def _status(seen: Seen, node_id: NodeId) -> NodeStatus:
    node = seen.nodes.get(node_id)
    return NodeStatus.IDLE if node is None else node.status


def _failures(seen: Seen, node: NodeState) -> int:
    failed = (entry.event for entry in seen.events if isinstance(entry.event, ItemFailed))
    return node.failures + sum(event.node_id == node.node_id for event in failed)


def _prompt(wait: WaitState) -> str | None:
    return None if wait.question is None else wait.question.prompt


def _error(error: ErrorRecord) -> str:
    return f"{error.type}: {error.message}".splitlines()[0]


def _name(node: Asked) -> str:
    return repr(node.label if isinstance(node, NodeType) else node)


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")
