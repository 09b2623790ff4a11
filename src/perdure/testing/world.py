"""A small world for crash tests: one database, one host, one ledger, and engines that come and go in it.

    async with World(store, folder) as world:
        expected = await world.tell(reference)
        story = await world.tell(reference, CrashPlan(at=3, kind=CrashKind.AFTER))
        assert story.problems == [] and story.outcome == expected.outcome

A *story* is one run from its start to its end, however many engines it took. All runs of a world share its database, so that
thousands of stories need it to be opened once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.clock import Clock
from perdure.dispatch.base import Dispatch
from perdure.engine.attempts.keys import idempotency_key
from perdure.engine.engine import Engine
from perdure.engine.inspect import verify_run
from perdure.engine.owning.adoption import is_reopened
from perdure.engine.runs.run import Run
from perdure.engine.settings import EngineSettings
from perdure.engine.stored.verification import verify_dump
from perdure.errors import RunNotFound, StoreError
from perdure.ids import Chance, EngineId, NodeId, RunId, Seq, new_id
from perdure.journal.events import Encoded, Journal, Recorded
from perdure.journal.flow import item_generation
from perdure.journal.states import TERMINAL, NodeState, NodeStatus, RunState, RunStatus
from perdure.store.base import Store
from perdure.store.transitions import LeaseLost
from perdure.testing.audits import as_logged
from perdure.testing.crashes import CrashingStore, CrashPlan, RollBack
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.faults import FailingStore, Fault
from perdure.testing.graphs import Reference, never_rests
from perdure.testing.ledger import Effect, Ledger, check_effects
from perdure.testing.loop import VirtualClock
from perdure.testing.process import Dead, Host, Process

PATIENCE_SECONDS = 3_600.0
"""How long a story may take, by the loop's time. One that takes longer will never end."""

PERSON_SECONDS = 0.7
"""How long a person takes to do something about what has happened."""

SETTINGS = EngineSettings(heartbeat_in_thread=False, inline_max_bytes=1_024)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has come to: the same for every story of a deterministic workflow."""

    status: RunStatus
    outputs: dict[str, Encoded] | None
    failed_node: NodeId | None
    error: tuple[str, str] | None
    reason: str


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went."""

    run_id: RunId
    outcome: Outcome
    boundaries: tuple[int, ...]
    """How many commits each engine has begun, in the order of the engines."""
    fired: int
    """How many of the plans came to pass."""
    takeovers: int
    refused_offers: int
    """Transitions that the database refused because their lease was lost."""
    problems: list[str]
    """Everything that must not be."""


class World:
    """Where stories take place. With the defaults everything in it is deterministic, given a deterministic store."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        settings: EngineSettings = SETTINGS,
        clock: Callable[[], Clock] = VirtualClock,
        dispatch: Callable[[], Dispatch] = InlineDispatch,
        chance: Callable[[], Chance | None] = lambda: None,
        roll_back: RollBack | None = None,
        sync_ledger: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
        journal: Journal = "log",
    ) -> None:
        self._store = store
        self._journal: Journal = journal
        self._recorded: dict[RunId, dict[Seq, Recorded]] = {}
        """What was committed of each run, event by event, whatever its log holds."""
        self.host = Host()
        self.ledger = Ledger(_made(folder / "ledger"), sync=sync_ledger)
        self._blobs = (folder / "blobs").as_uri()
        self._settings = settings
        self._clock = clock
        self._dispatch = dispatch
        self._chance = chance
        self._roll_back = roll_back
        self._patience_seconds = patience_seconds
        self._stack = AsyncExitStack()
        self._observer: Engine
        self.store: Store
        """The database, undisturbed."""

    async def __aenter__(self) -> World:
        self._stack.enter_context(self.ledger.open())
        self._context = copy_context()
        door = self.door(Process("observer"))
        self.store = door.as_store
        self._observer = await self._stack.enter_async_context(self.engine(door, recover=False))
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    def door(
        self, process: Process, plan: CrashPlan | None = None, *, fault: Fault | None = None, **options: Any
    ) -> CrashingStore:
        """Return the store as a process of this world sees it."""
        store = self._store if fault is None else FailingStore(self._store, fault).as_store
        return CrashingStore(
            store,
            plan,
            process=process,
            host=self.host,
            roll_back=self._roll_back,
            recorded=self._recorded,
            **options,
        )

    def engine(self, door: CrashingStore, *, recover: bool = True, **options: Any) -> Engine:
        """Return an engine of this world, not yet started."""
        dispatch = self._dispatch()
        # A process that is killed does not close what it has opened.
        self._stack.push_async_callback(dispatch.close)
        return Engine(
            door.as_store,
            blobs=self._blobs,
            settings=self._settings,
            dispatch=dispatch,
            clock=self._clock(),
            chance=self._chance(),
            recover=recover,
            journal=self._journal,
            **options,
        )

    async def tell(self, reference: Reference, *plans: CrashPlan) -> Story:
        """Run a workflow to its end: each engine as its plan says, and a last one undisturbed."""
        (story,) = await self.tell_all([reference], *plans)
        return story

    async def tell_all(self, references: Sequence[Reference], *plans: CrashPlan) -> list[Story]:
        """As `tell`, with all these runs side by side in each engine."""
        telling = _Telling(self, references, self._context)
        async with asyncio.timeout(self._patience_seconds):
            await telling.through(plans)
        return [await telling.story(run_id) for run_id in telling.runs]

    async def violations(self, run_id: RunId) -> list[str]:
        """Return what is wrong with the rows and the log of a run, by every invariant."""
        return [f"{found.invariant}: {found.problem}" for found in await verify_run(self._observer, run_id)]

    async def judge(self, reference: Reference, run_id: RunId) -> tuple[Outcome, list[str]]:
        """Return what a run has come to, and everything that is wrong with it: its rows, its log and its effects."""
        problems = await self.violations(run_id)
        dump = await self.store.dump_run(run_id)
        assert dump is not None
        run = dump.stored.run
        if run.audit is not None:
            dump = as_logged(dump, [entry for _, entry in sorted(self._recorded[run_id].items())])
            problems += [f"{found.invariant}: {found.problem}" for found in verify_dump(dump, lost_blobs=())]
        effects = self.ledger.effects(run_id)
        if reference.records_starts:
            problems += check_effects(effects, dump.events, certain=reference.expected, possible=reference.possible)
        if run.status is not reference.status:
            problems.append(f"the run is {run.status.value}, not {reference.status.value}")
        return _outcome_of(run), problems


class _SeenAtDeath(msgspec.Struct, frozen=True, kw_only=True):
    """What was durable of a run when a process died, and how long its ledger was."""

    effects: int
    completed_keys: frozenset[str]
    """The idempotency keys of nodes that were completed: one that begins again on a branch has another one."""
    recorded: frozenset[tuple[str, int | None]]
    """Items of mapped nodes, by the keys of these and their positions."""


class _Telling:
    """Some stories while they happen."""

    def __init__(self, world: World, references: Sequence[Reference], context: Context) -> None:
        self.runs = {RunId(f"{reference.name}-{new_id()}"): reference for reference in references}
        self._world = world
        self._context = context
        self._doors: list[CrashingStore] = []
        self._rescues: list[asyncio.Task[RunState]] = []
        self._deaths: list[dict[RunId, _SeenAtDeath]] = []

    async def through(self, plans: Sequence[CrashPlan]) -> None:
        for number, plan in enumerate((*plans, None)):
            process = Process(f"process {number}")
            door = self._world.door(process, plan, take_over=self._take_over)
            self._doors.append(door)
            try:
                await process.run(self._world.engine(door), self._drive_all)
            except Dead:
                self._deaths.append({run_id: await self._seen_at_death(run_id) for run_id in self.runs})
            else:
                break
        for rescue in self._rescues:
            await rescue

    async def story(self, run_id: RunId) -> Story:
        outcome, problems = await self._world.judge(self.runs[run_id], run_id)
        offers = [offer for door in self._doors for offer in door.offers if offer.run_id == run_id]
        return Story(
            run_id=run_id,
            outcome=outcome,
            boundaries=tuple(door.boundaries for door in self._doors),
            fired=sum(door.has_fired for door in self._doors),
            takeovers=sum(door.takeovers for door in self._doors),
            refused_offers=sum(isinstance(offer.outcome, LeaseLost) for offer in offers),
            problems=[
                *problems,
                *self._repetitions(run_id),
                *(found for door in self._doors for found in door.problems),
            ],
        )

    async def _drive_all(self, engine: Engine) -> None:
        async with asyncio.TaskGroup() as clients:
            for run_id, reference in self.runs.items():
                clients.create_task(drive(engine, reference, run_id))

    async def _take_over(self, run_id: RunId, owner: EngineId) -> bool:
        claimed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def rescue(engine: Engine) -> RunState:
            claimed.set_result(await engine.adopt(run_id, owner) is not None)
            return await (await engine.get(run_id)).wait()

        # Started apart from the process that is taken over: it must not die with it.
        rescued = asyncio.get_running_loop().create_task(self._rescued(rescue), context=self._context.copy())
        self._rescues.append(rescued)
        return await claimed

    async def _rescued(self, rescue: Callable[[Engine], Awaitable[RunState]]) -> RunState:
        process = Process("rescuer")
        return await process.run(self._world.engine(self._world.door(process), recover=False), rescue)

    async def _seen_at_death(self, run_id: RunId) -> _SeenAtDeath:
        dump = await self._world.store.dump_run(run_id)
        nodes = () if dump is None else dump.all_nodes
        streams = [(node, node.stream) for node in nodes if node.stream is not None]
        ranges = await self._world.store.load_ranges(run_id)
        completed = [node for node in nodes if node.status is NodeStatus.COMPLETED]
        return _SeenAtDeath(
            effects=len(self._world.ledger.effects(run_id)),
            completed_keys=frozenset(key for node in completed for key in _keys_of(run_id, node)),
            recorded=frozenset(
                (_key(run_id, node, item_generation(node, position)), position)
                for node, stream in streams
                for found in ranges
                if (found.node_id, found.branch_id) == (node.node_id, stream.branch_id)
                for position in range(found.position, found.position + found.count)
            ),
        )

    def _repetitions(self, run_id: RunId) -> Iterator[str]:
        effects = self._world.ledger.effects(run_id)
        yield from self._lost_calls(run_id, effects)
        for seen in self._deaths:
            after = effects[seen[run_id].effects :]
            for done in after:
                if _node_key(done) in seen[run_id].completed_keys:
                    yield f"node {done.node_id!r} was durably completed, and ran again"
            for done in after:
                if (_node_key(done), done.item) in seen[run_id].recorded:
                    yield f"item {done.item} of {done.node_id!r} was recorded, and ran again"

    def _lost_calls(self, run_id: RunId, effects: Sequence[Effect]) -> Iterator[str]:
        """A crash costs no more calls for items than their node makes at once."""
        flow = self.runs[run_id].workflow
        policies = {str(node.id): flow.types[node.type].policy for node in flow.graph.nodes}
        begin = 0
        for seen in self._deaths:
            at_death = seen[run_id]
            called = {
                (_node_key(done), done.item): done.node_id
                for done in effects[begin : at_death.effects]
                if done.item is not None
            }
            begin = at_death.effects
            lost = Counter(
                (node_id, call[0])
                for call, node_id in called.items()
                if call not in at_death.recorded and call[0] not in at_death.completed_keys
            )
            for (node_id, _), count in lost.items():
                if count > policies[node_id].concurrency and not policies[node_id].pure:
                    yield f"{count} calls of {node_id!r} were lost, though it makes {policies[node_id].concurrency} at once"


async def drive(engine: Engine, reference: Reference, run_id: RunId) -> RunState:
    """Do what a client does that may have been cut off before: look for the run, start it if it is not there, and wait."""
    try:
        run = await engine.get(run_id)
    except RunNotFound:
        run = await engine.start(reference.workflow, run_id=run_id, inputs=reference.inputs)
    while True:
        if reference.person is None:
            state = await run.wait()
        else:
            state = await attend(engine, run, reference.person, reference.rests, thinking_seconds=PERSON_SECONDS)
        if reference.repairs is None or state.status not in TERMINAL:
            return state
        if not await reference.repairs(run):
            stored = await run.load()  # an earlier wish may have been fulfilled meanwhile
            if stored.run.status in TERMINAL and not is_reopened(stored):
                return stored.run


async def attend(
    engine: Engine,
    run: Run[Any],
    person: Callable[[Run[Any]], Awaitable[object]],
    rests: Callable[[RunState], bool] = never_rests,
    *,
    thinking_seconds: float = 0.0,
) -> RunState:
    """Have a person look after a run whenever something happens to it, until it has ended, or rests and nothing is left to do."""
    with engine.hub.watching(run.run_id) as changed:
        while True:
            changed.clear()
            state = await run.state()
            if state.status in TERMINAL:
                return state
            has_acted = False
            with suppress(StoreError):
                has_acted = bool(await person(run))
            if has_acted:
                continue
            if rests(state):  # and the person has seen it so
                stored = await run.load()
                if rests(stored.run) and not stored.commands:
                    return stored.run
            await engine.news(changed)
            await asyncio.sleep(thinking_seconds)


def _key(run_id: RunId, node: NodeState, generation: int) -> str:
    return idempotency_key(run_id, replace(node, generation=generation))


def _keys_of(run_id: RunId, node: NodeState) -> Iterator[str]:
    """Yield the keys under which a node has worked: of one of which some items were chosen, the others have an earlier one."""
    chosen = () if node.stream is None else node.stream.chosen
    base = node.stream.base if node.stream is not None and chosen else node.generation
    for generation in {node.generation, base, *(generation for _, _, generation in chosen)}:
        yield _key(run_id, node, generation)


def _node_key(done: Effect) -> str:
    """Return the key of the node for which something was done, also if it was for an item."""
    return "/".join(done.key.split("/")[:3])


def _outcome_of(run: RunState) -> Outcome:
    return Outcome(
        status=run.status,
        outputs=run.outputs,
        failed_node=run.failed_node,
        error=None if run.error is None else (run.error.type, run.error.message),
        reason=run.reason,
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
