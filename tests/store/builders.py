"""Runs as an engine would drive them: events are decided, folded by the journal, and handed over as transitions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

import msgspec

from perdure.ids import ROOT_BRANCH, BranchId, CommandId, EngineId, Epoch, EventId, NodeId, RunId, Seq, new_id
from perdure.journal import events as e
from perdure.journal.evolve import create_run
from perdure.journal.projection import Projection
from perdure.journal.states import SignalState, WaitState
from perdure.journal.steps import leaves_behind
from perdure.store.base import Store
from perdure.store.shapes import EngineRow, StoredRun
from perdure.store.transitions import (
    BlobUse,
    Busy,
    Claim,
    Committed,
    ItemDrop,
    ItemRow,
    Keep,
    LeaseChange,
    Outcome,
    Release,
    StepRow,
    Transition,
)

WORKFLOW = "letters"
GRAPH = b'{"name":"letters","nodes":[]}'
GRAPH_HASH = "5f0c"
ENGINE = EngineId("engine-a")

_moments = itertools.count(1_700_000_000_000_000, 1_000)


def encoded(value: object) -> e.Encoded:
    return msgspec.Raw(msgspec.json.encode(value))


def error(message: str = "no luck") -> e.ErrorRecord:
    return e.ErrorRecord(error_class=e.ErrorClass.BUG, type="ValueError", message=message)


def engine_row(engine_id: EngineId = ENGINE) -> EngineRow:
    return EngineRow(engine_id=engine_id, host="host/1", pid=17, process_start="42", name="test")


async def save_workflow(store: Store, workflow: str = WORKFLOW) -> None:
    """Save the version that every run of these tests refers to."""
    await store.save_version(workflow, GRAPH_HASH, GRAPH, {"module": "tests"}, at=1)


async def settle(store: Store, transitions: Sequence[Transition]) -> list[Outcome]:
    """Commit as an engine does: one whose run somebody else holds at the moment is offered again."""
    outcomes: dict[RunId, Outcome] = {}
    offered = transitions
    async with asyncio.timeout(30):
        while True:
            answers = await store.commit(offered)
            outcomes |= {transition.run_id: outcome for transition, outcome in zip(offered, answers, strict=True)}
            offered = [transition for transition in offered if isinstance(outcomes[transition.run_id], Busy)]
            if not offered:
                return [outcomes[transition.run_id] for transition in transitions]
            await asyncio.sleep(0.01)


class Draft:
    """A run that events are added to. `transition` hands over what came since the last call.

    What was handed over counts as committed: `base_seq` and `epoch` go on. To go on otherwise, start from what is stored.
    """

    def __init__(self, projection: Projection, *, base_seq: Seq, epoch: Epoch) -> None:
        self.projection = projection
        self.base_seq = base_seq
        self.epoch = epoch
        self._recorded: list[e.Recorded] = []

    @classmethod
    def create(
        cls,
        run_id: str | None = None,
        *,
        workflow: str = WORKFLOW,
        version: int = 1,
        inputs: dict[str, e.Encoded] | None = None,
        at: int | None = None,
    ) -> Draft:
        """Begin a run."""
        at = next(_moments) if at is None else at
        created = e.RunCreated(
            workflow=workflow, version=version, graph_hash=GRAPH_HASH, inputs=inputs or {}, source={"module": "tests"}
        )
        run = create_run(RunId(run_id or new_id()), created, at=at, branch_id=ROOT_BRANCH, epoch=Epoch(0))
        draft = cls(Projection(run), base_seq=Seq(0), epoch=Epoch(0))
        draft._write(created, Seq(1), at)
        return draft

    @classmethod
    def continued(cls, stored: StoredRun) -> Draft:
        """Go on with a run as it is stored."""
        steps = {(step.node_id, step.name, step.occurrence): step.result for step in stored.steps}
        projection = Projection(stored.run, stored.nodes, steps)
        return cls(projection, base_seq=stored.run.last_seq, epoch=stored.run.epoch)

    @property
    def run_id(self) -> RunId:
        return self.projection.run.run_id

    def add(self, *events: e.AnyEvent) -> Draft:
        for event in events:
            at = next(_moments)
            self._write(event, self.projection.apply(event, at=at), at)
        return self

    def claim(self, engine_id: EngineId = ENGINE, *, lost: bool = False) -> Draft:
        epoch = Epoch(self.projection.run.epoch + 1)
        return self.add(e.RunClaimed(engine_id=engine_id, epoch=epoch, lost=lost))

    def start(self, engine_id: EngineId = ENGINE) -> Draft:
        return self.claim(engine_id).add(e.RunStarted())

    def begin_node(self, name: str, attempt: int = 1) -> Draft:
        node_id = NodeId(name)
        return self.add(
            e.NodeScheduled(node_id=node_id, attempt=attempt), e.NodeStarted(node_id=node_id, attempt=attempt)
        )

    def complete_node(self, name: str, output: object = None, attempt: int = 1) -> Draft:
        outputs = {"output": encoded(output)}
        return self.add(e.NodeCompleted(node_id=NodeId(name), attempt=attempt, outputs=outputs, duration_ms=3))

    def next_node(self, number: int) -> Draft:
        """The step of a chain: one node completes, the next is scheduled and started. Three events, two nodes."""
        return self.complete_node(f"step{number}", {"value": number}).begin_node(f"step{number + 1}")

    def step(self, name: str, step: str, result: object, occurrence: int = 0) -> Draft:
        return self.add(
            e.StepCompleted(node_id=NodeId(name), attempt=1, name=step, occurrence=occurrence, result=encoded(result))
        )

    def checkpoint(self, name: str, state: object = None, *, suspends: bool = False) -> Draft:
        return self.add(e.NodeCheckpointed(node_id=NodeId(name), attempt=1, state=encoded(state), suspends=suspends))

    def batch(self, name: str, position: int, *values: object, branch_id: BranchId = ROOT_BRANCH) -> ItemRow:
        """Record that a node has given these values, and return the row that goes with the next transition."""
        self.add(e.NodeCheckpointed(node_id=NodeId(name), attempt=1, state=encoded(position)))
        return ItemRow(
            node_id=NodeId(name),
            branch_id=branch_id,
            position=position,
            count=len(values),
            items=encoded(values),
            seq=self.projection.run.last_seq,
        )

    def end(self, output: object = "done") -> Draft:
        return self.add(e.RunCompleted(outputs={"output": encoded(output)}, duration_ms=5))

    def transition(
        self,
        lease: LeaseChange | None = None,
        *,
        commands: Iterable[CommandId] = (),
        blobs: Iterable[BlobUse] = (),
        items: Iterable[ItemRow] = (),
        drops: Iterable[ItemDrop] = (),
        waits: Iterable[WaitState] = (),
        signals: Iterable[SignalState] = (),
    ) -> Transition:
        """Hand over what was added."""
        recorded, self._recorded = tuple(self._recorded), []
        run = self.projection.run
        changed = dict.fromkeys(entry.event.node_id for entry in recorded if isinstance(entry.event, e.NodeEvent))
        handed_over = Transition(
            run_id=run.run_id,
            epoch=self.epoch,
            base_seq=self.base_seq,
            run=run,
            events=recorded,
            nodes=tuple(self.projection.nodes[node_id] for node_id in changed),
            steps=_step_rows(recorded),
            past_steps=self.projection.steps.take_past(),
            items=tuple(items),
            drops=tuple(drops),
            waits=tuple(waits),
            signals=tuple(signals),
            blobs=tuple(blobs),
            commands=tuple(commands),
            lease=lease or _lease_of(recorded),
        )
        self.base_seq, self.epoch = run.last_seq, run.epoch
        return handed_over

    def _write(self, event: e.AnyEvent, seq: Seq, at: int) -> None:
        run = self.projection.run
        self._recorded.append(
            e.Recorded(seq=seq, id=EventId(new_id()), branch_id=run.branch_id, epoch=run.epoch, at=at, event=event)
        )


def _lease_of(recorded: Iterable[e.Recorded]) -> LeaseChange:
    """What an engine would do: claim with RunClaimed, let go of a run that has ended or rests."""
    lease: LeaseChange = Keep()
    for entry in recorded:
        match entry.event:
            case e.RunClaimed(engine_id=engine_id):
                lease = Claim(engine_id=engine_id)
            case e.RunCompleted() | e.RunFailed() | e.RunCancelled() | e.RunPaused() | e.RunSuspended():
                lease = Release()
            case _:
                pass
    return lease


def _step_rows(recorded: Sequence[e.Recorded]) -> tuple[StepRow, ...]:
    """What an engine would write: the steps to which their nodes may come back."""
    last = {entry.event.node_id: entry.seq for entry in recorded if leaves_behind(entry.event)}
    taken = [entry for entry in recorded if isinstance(entry.event, e.StepCompleted)]
    return tuple(_step_row(entry) for entry in taken if entry.seq > last.get(_step_row(entry).node_id, 0))


def _step_row(entry: e.Recorded) -> StepRow:
    event = entry.event
    assert isinstance(event, e.StepCompleted)
    return StepRow(
        node_id=event.node_id,
        branch_id=BranchId(entry.branch_id),
        name=event.name,
        occurrence=event.occurrence,
        result=event.result,
        seq=entry.seq,
    )


def started(run_id: str | None = None, *, engine_id: EngineId = ENGINE, at: int | None = None) -> Draft:
    """A run that is created, claimed and started, with its first node running."""
    return Draft.create(run_id, at=at).start(engine_id).begin_node("step0")


async def commit(store: Store, *transitions: Transition) -> list[Outcome]:
    return await settle(store, transitions)


async def begin(store: Store, run_id: str | None = None) -> Draft:
    """A run that lives in the store, with its first node running."""
    draft = started(run_id)
    assert await commit(store, draft.transition()) == [Committed()]
    return draft


async def loaded(store: Store, draft: Draft) -> StoredRun:
    stored = await store.load_run(draft.run_id)
    assert stored is not None
    return stored
