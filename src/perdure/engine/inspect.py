"""Looking at runs without driving them: what a run is, whether it is whole, and its log as it grows.

Everything here reads one store and needs no engine and none of the run's code. An engine is accepted where it knows more
than its store does: where large values are kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.clock import SystemClock, from_micros
from perdure.engine.attempts.values import Values
from perdure.engine.driving.waiting import ANSWER
from perdure.engine.engine import Engine
from perdure.engine.keeping.archives import find_archived
from perdure.engine.owning.leases import is_gone
from perdure.engine.runs.checkpoints import Checkpoint, checkpoint_of
from perdure.engine.stored.absence import look_for
from perdure.engine.stored.dumping import readable_graph, with_earlier
from perdure.engine.stored.following import last_events
from perdure.engine.stored.past import log_until, stored_at
from perdure.engine.stored.progress import (
    Outlook,
    Progress,
    headway_of,
    load_estimator,
    load_pace,
    outlook_of,
    progress_of,
    seconds,
)
from perdure.engine.stored.verification import verify_dump
from perdure.errors import BlobDamaged, BlobMissing, RunArchived, RunIdAmbiguous, RunNotFound, StoreDamaged
from perdure.graph.model import Graph, Node
from perdure.graph.ordering import nodes_in_order
from perdure.ids import EngineId, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.headway import Headway
from perdure.journal.pace import Pace
from perdure.journal.states import (
    MOVING,
    TERMINAL,
    CheckpointState,
    NodeState,
    NodeStatus,
    RunState,
    RunStatus,
    WaitKind,
    WaitState,
    WaitStatus,
)
from perdure.journal.verify import Violation
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, open_blobs
from perdure.store.codecs import process_codecs
from perdure.store.codecs.wire import INLINE_MAX_BYTES
from perdure.store.opening import default_blobs_url
from perdure.store.shapes import RunFilter, RunSummary, StoredRun
from perdure.store.transitions import BlobUse

EVENTS_PER_PAGE = 1_000
CANDIDATES = 10
"""How many runs are named when a prefix means several."""
NEWS_SECONDS = 2.0
UNKNOWN_TYPE = ""
"""The type of a node whose graph is gone."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error as other programs read it."""

    node_id: NodeId | None
    error_class: e.ErrorClass
    type: str
    message: str
    traceback: str


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a run as other programs read it."""

    id: NodeId
    type: str
    stage: str | None
    status: NodeStatus
    attempt: int
    started_at: str | None
    ended_at: str | None
    error: ErrorReport | None
    stream: Headway | None
    """Only of a node that gives its items one by one, once it has begun."""
    duration_seconds: float | None
    """How long its last attempt has worked, or does so far, without the time in which it waited for people and signals."""
    usual_seconds: float | None
    """How long that usually takes, if three or more earlier runs of the same version tell."""


class WaitReport(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a node waits for, as other programs read it. Values are in their stored form."""

    id: str
    """Of a question, under which it is answered."""
    node_id: NodeId
    kind: WaitKind
    prompt: str | None
    """What people are asked, or why the node was suspended."""
    schema: dict[str, Any] | None
    """What an answer has to be like, as JSON Schema."""
    choices: tuple[e.Encoded, ...]
    show: e.Encoded | None
    """What the person who answers should see."""
    signal: str | None
    since: str | None
    deadline: str | None
    """When time itself ends it."""
    answered: bool
    """Whether there is an answer that nobody who drives the run has taken up yet."""


class ToldReport(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run was told, and that nobody who drives it has taken up yet."""

    kind: str
    """What it was told to do: `pause`, `cancel`, `send` and so on."""
    at: str | None
    reason: str


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run as other programs read it. Values are in their stored form: large ones are references."""

    run_id: RunId
    workflow: str
    version: int
    status: RunStatus
    inputs: dict[str, e.Encoded]
    outputs: dict[str, e.Encoded] | None
    error: ErrorReport | None
    branch: int
    progress: Progress
    nodes: tuple[NodeReport, ...]
    reason: str
    """Why it is in this status, if there is something to say."""
    wake_at: str | None
    """When time itself moves a run that rests."""
    waits: tuple[WaitReport, ...]
    """What it waits for, oldest first."""
    checkpoint: Checkpoint | None
    """The last one that was saved."""
    deleted_at: str | None = None
    """When its values were deleted, if they were."""
    tags: tuple[str, ...] = ()
    journal: e.Journal = "log"
    """With `audit` its log is written on the side, and may have gaps."""
    told: tuple[ToldReport, ...] = ()
    """What it was told, and that nobody has taken up yet, oldest first."""
    interrupted: bool = False
    """Whether it would move if an engine drove it, and none does."""


async def find_run(store: Store, text: str) -> RunId:
    """Return the run whose id is `text`, or the only one whose id begins with it."""
    which = RunFilter(id_prefix=text)
    while True:
        found = [run.run_id for run in await store.list_runs(which, before=None, limit=CANDIDATES)]
        if len(found) == 1:
            return found[0]
        if text and await store.load_run(RunId(text)) is not None:
            return RunId(text)
        if found:
            raise RunIdAmbiguous(text, found)
        if (archived := await find_archived(store, text)) is not None:
            raise RunArchived(archived.run_id)
        if not await store.list_runs(which, before=None, limit=1):
            raise RunNotFound(text)
        # It has come back from the archive between the two looks.


async def load_run(store: Store, run_id: RunId) -> StoredRun:
    """Return the run as the store holds it."""
    return await look_for(store, run_id, lambda: store.load_run(run_id))


async def load_graph(store: Store, run: RunState | RunSummary) -> Graph | None:
    """Return the graph that the run was started from; None if its version is gone or damaged."""
    version = await store.load_version(run.workflow, run.version)
    return None if version is None else readable_graph(version.graph)


async def living_engines(store: Store) -> frozenset[EngineId]:
    """Return the engines that live, as far as can be told from here. A run that none of them owns is not driven."""
    return frozenset(row.engine_id for row in await store.list_engines() if row.is_alive and not is_gone(row))


async def events_of(store: Store, run_id: RunId, *, after: int = 0) -> AsyncIterator[e.Recorded]:
    """Yield the events that the log holds, in order."""
    while page := await store.load_events(run_id, after=Seq(after), limit=EVENTS_PER_PAGE):
        for entry in page:
            yield entry
        after = page[-1].seq


async def follow_events(
    store: Store, run_id: RunId, *, after: int = 0, on_wait: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[e.Recorded]:
    """Yield the run's events in order, each once, until it has ended. The run must exist.

    `on_wait` is awaited whenever there is nothing more to yield for the moment.
    """
    while (run := await store.load_state(run_id)) is not None:
        is_audited, has_ended = run.audit is not None, run.status in TERMINAL
        if is_audited and has_ended:
            await last_events(store, run, SystemClock(), after=after)
        async for entry in events_of(store, run_id, after=after):
            yield entry
            after = entry.seq
        if has_ended and (is_audited or after >= run.last_seq):
            return
        if on_wait is not None:
            await on_wait()
        await store.wait_for_news(NEWS_SECONDS)


async def whole_values(store: Store, values: Mapping[str, e.Encoded]) -> dict[str, e.Encoded]:
    """Return stored values with all their parts inside that are kept in blobs."""
    blobs = open_blobs(default_blobs_url(store.url))
    try:
        reader = Values(process_codecs(), blobs, inline_max_bytes=INLINE_MAX_BYTES)
        return {name: await reader.inlined(value) for name, value in values.items()}
    finally:
        await blobs.close()


async def report_run(store: Store, run_id: RunId) -> RunReport:
    """Return what there is to know about a run."""
    stored = await load_run(store, run_id)
    graph = await load_graph(store, stored.run)
    last = await store.last_checkpoint(run_id)
    estimator, pace = await load_estimator(store, stored.run, graph), await load_pace(store, stored)
    is_driven = stored.run.status in MOVING and stored.owner in await living_engines(store)
    now = SystemClock().now_micros()
    streams = headway_of(stored, graph, pace, now=now if is_driven else None)
    outlook = outlook_of(stored, graph, estimator, streams, pace, now=now, is_driven=is_driven)
    report = report_of(stored, graph, streams, last, outlook)
    return msgspec.structs.replace(
        report,
        interrupted=stored.run.status in MOVING and not is_driven,
        deleted_at=iso_time(await store.load_deletion(run_id)),
        tags=tuple(await store.load_tags(run_id)),
    )


async def report_then(store: Store, run_id: RunId, seq: Seq) -> RunReport:
    """Return what there was to know about a run after an event."""
    stored = await stored_at(store, run_id, seq)
    graph = await load_graph(store, stored.run)
    pace = Pace(await log_until(store, run_id, seq))
    return report_of(stored, graph, headway_of(stored, graph, pace, now=None), None, Outlook())


def report_of(
    stored: StoredRun,
    graph: Graph | None,
    streams: Mapping[NodeId, Headway],
    last: CheckpointState | None,
    outlook: Outlook,
) -> RunReport:
    """Describe a run. Its nodes come in topological order, those that nothing happened to included."""
    run = stored.run
    states = {node.node_id: node for node in stored.nodes}
    nodes = nodes_in_order(graph) if graph is not None else _nodes_without_graph(stored.nodes)
    return RunReport(
        run_id=run.run_id,
        workflow=run.workflow,
        version=run.version,
        status=run.status,
        inputs=run.inputs,
        outputs=run.outputs,
        error=_error_report(run.error, run.failed_node),
        branch=run.branch_id,
        progress=progress_of(stored, graph, outlook.estimate),
        nodes=tuple(_node_report(node, states.get(node.id), streams.get(node.id), outlook) for node in nodes),
        reason=run.reason,
        wake_at=iso_time(run.wake_at),
        waits=tuple(wait_report(wait, is_answered=is_answered(stored, wait)) for wait in open_waits(stored)),
        checkpoint=None if last is None else checkpoint_of(last),
        journal=run.settings.journal,
        told=tuple(
            ToldReport(
                kind=command.kind, at=iso_time(command.created_at), reason=str(command.payload.get("reason", ""))
            )
            for command in stored.commands
        ),
    )


def open_waits(stored: StoredRun) -> list[WaitState]:
    """Return what the run waits for, oldest first; nothing if it has ended."""
    found = (wait for wait in stored.waits if wait.status is WaitStatus.OPEN and stored.run.status not in TERMINAL)
    return sorted(found, key=lambda wait: (wait.opened_at, wait.last_seq))


def is_answered(stored: StoredRun, wait: WaitState) -> bool:
    """Whether there is an answer to a question that is to be taken up by whoever drives the run next."""
    return any(command.kind == ANSWER and command.payload.get("wait_id") == wait.wait_id for command in stored.commands)


def wait_report(wait: WaitState, *, is_answered: bool) -> WaitReport:
    """Describe something that a node waits for."""
    question = wait.question
    return WaitReport(
        id=wait.wait_id,
        node_id=wait.node_id,
        kind=wait.kind,
        prompt=None if question is None else question.prompt,
        schema=None if question is None or wait.kind is not WaitKind.ASK else question.schema,
        choices=() if question is None else question.choices,
        show=None if question is None else e.or_none(question.show),
        signal=wait.signal,
        since=iso_time(wait.opened_at),
        deadline=iso_time(wait.due),
        answered=is_answered,
    )


def iso_time(micros: int | None) -> str | None:
    """Return a moment in ISO 8601, in UTC."""
    return None if micros is None else from_micros(micros).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def verify_run(where: Engine | Store, run_id: str) -> list[Violation]:
    """Return everything that is wrong with a stored run, nothing if it is whole. Runs no code of the run's nodes."""
    if isinstance(where, Engine):
        return await _verify(where.store, where.values.blobs, RunId(run_id))
    blobs = open_blobs(default_blobs_url(where.url))
    try:
        return await _verify(where, blobs, RunId(run_id))
    finally:
        await blobs.close()


async def _verify(store: Store, blobs: BlobStore, run_id: RunId) -> list[Violation]:
    try:
        stored = await look_for(store, run_id, lambda: store.dump_run(run_id))
    except (msgspec.MsgspecError, ValueError, StoreDamaged) as error:
        return [Violation(invariant="I4", problem=f"a row of the run cannot be read: {error}")]
    return verify_dump(await with_earlier(stored, store), lost_blobs=await _lost_blobs(blobs, stored.blobs))


async def _lost_blobs(blobs: BlobStore, used: Sequence[BlobUse]) -> list[str]:
    lost: list[str] = []
    for use in used:
        try:
            await blobs.check(use.digest, use.size)
        except (BlobMissing, BlobDamaged):
            lost.append(use.digest)
    return lost


def _nodes_without_graph(states: Sequence[NodeState]) -> list[Node]:
    by_time = sorted(states, key=lambda state: state.scheduled_at or 0)
    return [Node(id=state.node_id, type=UNKNOWN_TYPE) for state in by_time]


def _node_report(node: Node, state: NodeState | None, stream: Headway | None, outlook: Outlook) -> NodeReport:
    took, usual = outlook.took.get(node.id), outlook.usual.get(node.id)
    return NodeReport(
        id=node.id,
        type=node.type,
        stage=node.stage,
        status=NodeStatus.IDLE if state is None else state.status,
        attempt=0 if state is None else state.attempt,
        started_at=None if state is None else iso_time(state.started_at),
        ended_at=None if state is None else iso_time(state.ended_at),
        error=None if state is None else _error_report(state.error, node.id),
        stream=stream,
        duration_seconds=None if took is None else seconds(took),
        usual_seconds=None if usual is None else seconds(usual),
    )


def _error_report(error: e.ErrorRecord | None, node_id: NodeId | None) -> ErrorReport | None:
    if error is None:
        return None
    return ErrorReport(
        node_id=node_id,
        error_class=error.error_class,
        type=error.type,
        message=error.message,
        traceback=error.traceback,
    )
