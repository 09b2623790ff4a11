"""A deterministic simulation: several engines on one SQLite file, in virtual time, with everything going wrong that can.

One seed is one history. It draws the workload, the order in which ready tasks run, how long each call to the database takes,
which calls fail and how, which processes die when, and which lose their lease while they go on working. The same seed gives
the same history, event for event: `Trace.digest` says so.

When the chaos ends, every run must end as it would have without it, and every invariant must hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from perdure.dispatch.context import Context
from perdure.engine.engine import Engine
from perdure.engine.inspect import verify_run
from perdure.engine.settings import EngineSettings
from perdure.errors import PerdureError, StoreLocked, StoreUnavailable
from perdure.graph.declare import Backoff, Workflow, node, workflow
from perdure.ids import RunId
from perdure.journal.events import encode_event
from perdure.journal.states import TERMINAL, RunStatus
from perdure.store.base import Store
from perdure.store.shapes import RunDump
from perdure.store.sqlite.store import open_sqlite
from perdure.store.transitions import LeaseLost
from perdure.testing.crashes import CrashingStore
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.graphs import random_parents
from perdure.testing.ledger import Ledger, check_effects, effect
from perdure.testing.loop import VirtualClock, run_virtual
from perdure.testing.process import Dead, Host, Process
from perdure.testing.proxy import StoreProxy

CALM_SECONDS = 4_000.0
"""How long runs may take to end once nothing goes wrong any more. One that takes longer will never end."""

SETTINGS = EngineSettings(heartbeat_in_thread=False, inline_max_bytes=200, patience_seconds=10.0, grace_seconds=2.0)


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation has come to."""

    seed: int
    digest: str
    """Equal for equal histories: every event of every run with its place, time, epoch and id, and every effect."""
    runs: int
    events: int
    kills: int
    lost_leases: int
    faults: int
    stale_writes: int
    """Transitions that were refused because another engine had the run."""
    quarantined: int
    problems: list[str]


def simulate(seed: int, folder: Path) -> Trace:
    """Play the history that belongs to `seed`. Everything it leaves behind is in `folder`."""
    return run_virtual(_Simulation(seed, folder).play(), seed=seed)


# The workload


@node(retries=8, backoff=Backoff(first=Backoff().first / 2))
async def toil(ctx: Context, parts: list[int], salt: int, seconds: float, failures: int) -> int:
    """Take some time, fail a few times, and give the same result whenever it succeeds."""
    effect(ctx)
    done: list[int] = ctx.restored or []
    for part in parts[len(done) :]:
        await asyncio.sleep(seconds)
        done = [*done, part * 31 % 1_000_003]
        if salt % 3 == 0:
            await ctx.checkpoint(done)
    if ctx.attempt <= failures:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return (sum(done) + salt) % 1_000_003


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run that clients will ask for."""

    run_id: RunId
    workflow: Workflow[..., Any]
    x: int
    expected: list[int]
    nodes: frozenset[str]
    is_cancelled: bool


def _drawn_plan(draw: random.Random, seed: int, number: int) -> _Plan:
    size = draw.randint(2, 9)
    parents = random_parents(draw, size, most=3)
    seconds = [draw.choice((0.0, 0.5, 4.0, 25.0)) for _ in range(size)]
    failures = [draw.choice((0, 0, 0, 1, 2)) for _ in range(size)]
    x = draw.randint(1, 1_000)

    @workflow(name=f"toil_{seed}_{number}")
    def toiling(x: int) -> list[int]:
        values: list[int] = []
        for index, chosen in enumerate(parents):
            given = [values[parent] for parent in chosen] or [x]
            values.append(toil.named(f"n{index}")(given, index, seconds[index], failures[index]))
        return values

    expected: list[int] = []
    for index, chosen in enumerate(parents):
        given = [expected[parent] for parent in chosen] or [x]
        expected.append((sum(part * 31 % 1_000_003 for part in given) + index) % 1_000_003)
    return _Plan(
        run_id=RunId(f"run-{number}"),
        workflow=toiling,
        x=x,
        expected=expected,
        nodes=frozenset(f"n{index}" for index in range(size)),
        is_cancelled=draw.random() < 0.15,
    )


# The chaos


class _SeededChance:
    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._count = 0

    def new_id(self) -> str:
        self._count += 1
        return f"{self._count:08x}-{self._draw.getrandbits(64):016x}"

    def uniform(self, low: float, high: float) -> float:
        return self._draw.uniform(low, high)


class _Weather:
    """What goes wrong between the engines and the database, while it lasts."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.is_calm = False
        self.slowest_seconds = draw.choice((0.0, 0.05, 0.5))
        self.fault_rate = draw.choice((0.0, 0.01, 0.05))
        self.faults = 0


class _UnsteadyStore(StoreProxy):
    """Calls take their time, and some of them fail before or after they were done."""

    def __init__(self, inner: Store, weather: _Weather) -> None:
        super().__init__(inner)
        self._weather = weather
        self.is_cut_off = False
        """The heartbeat does not get through."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        weather = self._weather
        if weather.is_calm or name in ("wait_for_news", "close"):
            return await call()
        draw = weather.draw
        if weather.slowest_seconds:
            await asyncio.sleep(draw.uniform(0, weather.slowest_seconds))
        if self.is_cut_off and name == "renew_engine":
            raise StoreUnavailable("the heartbeat does not get through")
        if draw.random() < weather.fault_rate:
            weather.faults += 1
            if draw.random() < 0.5:
                await call()
            raise draw.choice((StoreUnavailable, StoreLocked))(f"{name} fails")
        answer = await call()
        if weather.slowest_seconds:
            await asyncio.sleep(draw.uniform(0, weather.slowest_seconds))
        return answer


class _Slot:
    """A place where an engine runs; when its process dies, another one is started after a while."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.starts = 0
        self.engine: Engine | None = None
        self.door: CrashingStore | None = None
        self.store: _UnsteadyStore | None = None


class _Simulation:
    def __init__(self, seed: int, folder: Path) -> None:
        self._seed = seed
        self._folder = folder
        self._draw = random.Random(seed)
        self._host = Host()
        self._weather = _Weather(self._draw)
        self._plans = [_drawn_plan(self._draw, seed, number) for number in range(self._draw.randint(1, 3))]
        self._slots = [_Slot(number) for number in range(self._draw.randint(1, 3))]
        self._doors: list[CrashingStore] = []
        self._kills = 0
        self._lost_leases = 0
        self._quarantined = 0
        ledger = folder / "ledger"
        ledger.mkdir()
        self._ledger = Ledger(ledger, sync=False)

    async def play(self) -> Trace:
        self._is_over = asyncio.Event()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._ledger.open())
            observer = await self._open()
            stack.push_async_callback(observer.close)
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(self._keep_running(slot))
                clients = [group.create_task(self._client(plan)) for plan in self._plans]
                async with asyncio.TaskGroup() as chaos:
                    chaos.create_task(self._kill_now_and_then())
                    chaos.create_task(self._cut_off_now_and_then())
                self._weather.is_calm = True
                await asyncio.wait(clients, timeout=CALM_SECONDS)
                for client in clients:
                    client.cancel()
                self._is_over.set()
            return await self._trace(observer)

    # Engines

    async def _keep_running(self, slot: _Slot) -> None:
        while not self._is_over.is_set():
            await self._live_once(slot)
            if not self._weather.is_calm:
                await asyncio.sleep(self._draw.expovariate(1))

    async def _live_once(self, slot: _Slot) -> None:
        slot.starts += 1
        process = Process(f"engine {slot.number}.{slot.starts}")
        raw = await self._open()
        slot.store = _UnsteadyStore(raw, self._weather)
        slot.door = CrashingStore(slot.store.as_store, process=process, host=self._host)
        self._doors.append(slot.door)
        engine = Engine(
            slot.door.as_store,
            workflows=[plan.workflow for plan in self._plans],
            settings=SETTINGS,
            dispatch=InlineDispatch(),
            clock=VirtualClock(wall_offset_seconds=self._draw.choice((0.0, 0.0, 3_600.0, -3_600.0))),
            chance=_SeededChance(self._draw.getrandbits(32)),
        )
        try:
            await process.run(engine, lambda engine: self._serve(slot, engine))
        except (Dead, PerdureError):
            pass  # it was killed, or could not even begin
        finally:
            slot.engine = None
            await raw.close()

    async def _serve(self, slot: _Slot, engine: Engine) -> None:
        slot.engine = engine
        await self._is_over.wait()

    async def _open(self) -> Store:
        url = f"sqlite:///{self._folder / 'perdure.db'}?synchronous=normal"
        return await open_sqlite(url, clock=VirtualClock(), inline=True)

    # What goes wrong

    async def _kill_now_and_then(self) -> None:
        pause_seconds = self._draw.choice((0.5, 2.0, 8.0))
        for _ in range(self._draw.choice((0, 3, 8, 20))):
            await asyncio.sleep(self._draw.expovariate(1 / pause_seconds))
            living = [slot for slot in self._slots if slot.engine is not None]
            if living:
                door = self._draw.choice(living).door
                assert door is not None
                door.kill()
                self._kills += 1

    async def _cut_off_now_and_then(self) -> None:
        for _ in range(self._draw.randint(0, 2)):
            await asyncio.sleep(self._draw.uniform(0, 5))
            store = self._draw.choice(self._slots).store
            if store is not None:
                store.is_cut_off = True
                await asyncio.sleep(2 * SETTINGS.lease_seconds)
                store.is_cut_off = False
                self._lost_leases += 1

    # Who asks for runs

    async def _client(self, plan: _Plan) -> None:
        """Ask for a run, perhaps several times, perhaps for its end, and wait for it, whatever becomes of the engines."""
        await asyncio.sleep(self._draw.uniform(0, 5))
        is_cancelled = False
        while True:
            engine = await self._some_engine()
            try:
                run = await engine.start(plan.workflow, run_id=plan.run_id, x=plan.x)
                if plan.is_cancelled and not is_cancelled:
                    await asyncio.sleep(self._draw.uniform(0, 10))
                    await run.cancel("the client has changed its mind", command_id=f"cancel-{plan.run_id}")
                    is_cancelled = True
                status = (await run.wait()).status
                if status in TERMINAL:
                    return
                if status is RunStatus.QUARANTINED:
                    self._quarantined += 1
                    await run.resume(reason="once more")
            except (Dead, PerdureError):
                pass
            await asyncio.sleep(1)

    async def _some_engine(self) -> Engine:
        while True:
            living = [slot.engine for slot in self._slots if slot.engine is not None]
            if living:
                return self._draw.choice(living)
            await asyncio.sleep(0.5)

    # How it ended

    async def _trace(self, observer: Store) -> Trace:
        digest = hashlib.sha256()
        events = 0
        problems: list[str] = []
        for plan in self._plans:
            dump = await observer.dump_run(plan.run_id)
            if dump is None:
                problems.append(f"{plan.run_id}: was acknowledged, and is not there")
                continue
            for entry in dump.events:
                events += 1
                line = (plan.run_id, entry.seq, entry.id, entry.epoch, entry.at, encode_event(entry.event))
                digest.update(repr(line).encode())
            for done in self._ledger.effects(plan.run_id):
                digest.update(repr(done).encode())
            problems += [f"{plan.run_id}: {problem}" for problem in await self._problems(plan, dump, observer)]
        return Trace(
            seed=self._seed,
            digest=digest.hexdigest(),
            runs=len(self._plans),
            events=events,
            kills=self._kills,
            lost_leases=self._lost_leases,
            faults=self._weather.faults,
            stale_writes=sum(isinstance(offer.outcome, LeaseLost) for door in self._doors for offer in door.offers),
            quarantined=self._quarantined,
            problems=problems,
        )

    async def _problems(self, plan: _Plan, dump: RunDump, observer: Store) -> Sequence[str]:
        found = [f"{one.invariant}: {one.problem}" for one in await verify_run(observer, plan.run_id)]
        run = dump.stored.run
        effects = self._ledger.effects(plan.run_id)
        match run.status:
            case RunStatus.COMPLETED:
                found += check_effects(effects, dump.events, certain=plan.nodes, possible=())
                output = msgspec.json.decode(bytes((run.outputs or {})["output"]))
                if output != plan.expected:
                    found.append(f"the result is {output} instead of {plan.expected}")
            case RunStatus.CANCELLED if plan.is_cancelled:
                found += check_effects(effects, dump.events, certain=(), possible=plan.nodes)
            case _:
                found.append(f"the run is {run.status.value}")
        return found
