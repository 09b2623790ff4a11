"""Random histories of commands, crashes and results, against a model that fits on a page. Model = SQLite = PostgreSQL."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from perdure import Backoff, Context, Engine, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import RunIdTaken
from perdure.ids import RunId
from perdure.journal.states import TERMINAL, RunStatus
from perdure.store.base import Store
from perdure.testing.crashes import CrashingStore
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.loop import VirtualClock, VirtualLoop
from perdure.testing.process import Dead, Host, Process
from perdure.testing.world import SETTINGS
from tests.crash.backends import opened_store
from tests.servers import Databases

T = TypeVar("T")

RUN_IDS = ("one", "two", "three")
MAX_RECOVERIES = 5
SETTLING_SECONDS = 3.0
RECOVERING_SECONDS = 25.0
"""Runs that were lost several times are taken up one after the other: of three, the last one follows after two trials."""
UPSTREAM = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}

_gates: dict[tuple[str, str, int], asyncio.Future[None]] = {}
"""What each running body waits for, by run, node and attempt."""


@node(retries=1, backoff=Backoff(first=Backoff().first * 0, jitter=False))
async def gated(ctx: Context, parts: list[int]) -> int:
    """Do what the test says when it says so."""
    key = (ctx.run_id, ctx.node_id, ctx.attempt)
    assert key not in _gates, f"{key} runs twice"
    _gates[key] = asyncio.get_running_loop().create_future()
    try:
        await _gates[key]
    finally:
        del _gates[key]
    return sum(parts) + 1


@workflow
def gated_diamond(x: int) -> int:
    top = gated.named("a")([x])
    return gated.named("d")([gated.named("b")([top]), gated.named("c")([top])])


@dataclass
class NodeModel:
    status: str = "idle"
    attempt: int = 0
    failures: int = 0


@dataclass
class RunModel:
    """What a run should be."""

    x: int
    status: RunStatus = RunStatus.RUNNING
    recoveries: int = 0
    nodes: dict[str, NodeModel] = field(default_factory=lambda: {name: NodeModel() for name in UPSTREAM})

    def begin_ready(self) -> None:
        for name, upstream in UPSTREAM.items():
            ready = all(self.nodes[source].status == "completed" for source in upstream)
            if self.nodes[name].status == "idle" and ready:
                self.nodes[name] = NodeModel(status="running", attempt=1)

    def complete(self, name: str) -> None:
        self.nodes[name].status = "completed"
        self.recoveries = 0
        self.begin_ready()
        if name == "d":
            self.status = RunStatus.COMPLETED

    def fail(self, name: str) -> None:
        failed = self.nodes[name]
        failed.failures += 1
        if failed.failures == 1:
            failed.attempt += 1
            return
        failed.status = "failed"
        self.end(RunStatus.FAILED)

    def end(self, status: RunStatus) -> None:
        for one in self.nodes.values():
            if one.status in ("running", "scheduled"):
                one.status = "cancelled"
        self.status = status

    def lose_attempts(self) -> None:
        for one in self.nodes.values():
            if one.status == "running":
                one.status = "scheduled"
                one.attempt += 1

    def start_scheduled(self) -> None:
        for one in self.nodes.values():
            if one.status == "scheduled":
                one.status = "running"

    def attempts(self) -> dict[str, tuple[str, int]]:
        return {name: (one.status, one.attempt) for name, one in self.nodes.items() if one.status != "idle"}

    def running(self) -> set[tuple[str, int]]:
        return {(name, one.attempt) for name, one in self.nodes.items() if one.status == "running"}


class Histories(RuleBasedStateMachine):
    """One database, at most one engine at a time, three runs."""

    urls: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        _gates.clear()
        self.loop = VirtualLoop()
        self.folder = tempfile.TemporaryDirectory()
        self.stack = AsyncExitStack()
        self.host = Host()
        self.model: dict[str, RunModel] = {}
        self.commands = 0
        self.engine: Engine | None = None
        self.url_scope = type(self).urls(Path(self.folder.name))
        url = self.url_scope.__enter__()
        self.raw: Store = self.do(self.stack.enter_async_context(opened_store(url)))
        self.observer = self.door(process_in(self.loop, "observer"))
        self.start_engine()

    def teardown(self) -> None:
        if self.engine is not None:
            self.kill_engine()
        self.do(self.stack.aclose())
        self.loop.close()
        self.url_scope.__exit__(None, None, None)
        self.folder.cleanup()

    # Running things

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def settle(self) -> None:
        """Let everything happen that can happen by itself."""
        self.do(asyncio.sleep(SETTLING_SECONDS))

    def door(self, process: Process) -> CrashingStore:
        return CrashingStore(self.raw, process=process, host=self.host)

    def start_engine(self) -> None:
        self.process = process_in(self.loop, "engine")
        self.current_door = self.door(self.process)
        self.engine = Engine(
            self.current_door.as_store,
            workflows=[gated_diamond],
            blobs=Path(self.folder.name, "blobs").as_uri(),
            settings=SETTINGS,
            clock=VirtualClock(),
            dispatch=InlineDispatch(),
        )
        self.leaving = self.loop.create_future()

        async def stay(_: Engine) -> None:
            await self.leaving

        self.living = self.loop.create_task(self.process.run(self.engine, stay))
        self.do(asyncio.sleep(RECOVERING_SECONDS))

    def kill_engine(self) -> None:
        self.current_door.kill()
        with pytest.raises(Dead):
            self.loop.run_until_complete(self.living)
        self.engine = None

    # What may happen

    @precondition(lambda self: self.engine is not None)
    @rule(run_id=st.sampled_from(RUN_IDS), x=st.integers(1, 2))
    def start(self, run_id: str, x: int) -> None:
        assert self.engine is not None
        known = self.model.get(run_id)
        started = self.engine.start(gated_diamond, run_id=run_id, x=x)
        if known is not None and known.x != x:
            with pytest.raises(RunIdTaken):
                self.do(started)
        else:
            self.do(started)
        if known is None:
            self.model[run_id] = RunModel(x=x)
            self.model[run_id].begin_ready()
        self.settle()

    @precondition(lambda self: self.engine is not None and self.model)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.command(data, "cancel")

    @precondition(lambda self: self.engine is not None and self.model)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.command(data, "resume")

    def command(self, data: st.DataObject, kind: str) -> None:
        assert self.engine is not None
        run_id = data.draw(st.sampled_from(sorted(self.model)))
        repetitions = data.draw(st.integers(1, 2))
        self.commands += 1
        run = self.do(self.engine.get(run_id))
        for _ in range(repetitions):
            self.do(getattr(run, kind)(command_id=f"command-{self.commands}"))
        modelled = self.model[run_id]
        if kind == "cancel" and modelled.status not in TERMINAL:
            modelled.end(RunStatus.CANCELLED)
        elif kind == "resume" and modelled.status is RunStatus.QUARANTINED:
            modelled.status = RunStatus.RUNNING
            modelled.recoveries = 0
            modelled.start_scheduled()
        self.settle()

    @precondition(lambda self: _gates)
    @rule(data=st.data())
    def body_returns(self, data: st.DataObject) -> None:
        run_id, node_id, attempt = data.draw(st.sampled_from(sorted(_gates)))
        _gates[run_id, node_id, attempt].set_result(None)
        self.model[run_id].complete(node_id)
        self.settle()

    @precondition(lambda self: _gates)
    @rule(data=st.data())
    def body_raises(self, data: st.DataObject) -> None:
        run_id, node_id, attempt = data.draw(st.sampled_from(sorted(_gates)))
        _gates[run_id, node_id, attempt].set_exception(ConnectionError("no luck"))
        self.model[run_id].fail(node_id)
        self.settle()

    @precondition(lambda self: self.engine is not None)
    @rule()
    def crash(self) -> None:
        self.kill_engine()
        for modelled in self.model.values():
            if modelled.status is RunStatus.RUNNING:
                modelled.recoveries += 1

    @precondition(lambda self: self.engine is not None)
    @rule()
    def stop(self) -> None:
        assert self.engine is not None
        self.leaving.set_result(None)
        self.loop.run_until_complete(self.living)
        self.engine = None
        for modelled in self.model.values():
            if modelled.status is RunStatus.RUNNING:
                modelled.lose_attempts()

    @precondition(lambda self: self.engine is None)
    @rule()
    def restart(self) -> None:
        for modelled in self.model.values():
            if modelled.status is RunStatus.RUNNING:
                modelled.lose_attempts()
                if modelled.recoveries > MAX_RECOVERIES:
                    modelled.status = RunStatus.QUARANTINED
                else:
                    modelled.start_scheduled()
        self.start_engine()

    @rule(seconds=st.sampled_from((1, 40)))
    def time_passes(self, seconds: int) -> None:
        self.do(asyncio.sleep(seconds))

    # What must hold

    @invariant()
    def agrees_with_the_model(self) -> None:
        if self.engine is None:
            return
        running = {(run_id, *attempt) for run_id, modelled in self.model.items() for attempt in modelled.running()}
        assert set(_gates) == running
        for run_id, modelled in self.model.items():
            stored = self.do(self.observer.as_store.load_run(RunId(run_id)))
            assert stored is not None
            assert stored.run.status is modelled.status
            assert stored.run.recoveries == modelled.recoveries or stored.run.status is RunStatus.CANCELLED
            assert {one.node_id: (one.status.value, one.attempt) for one in stored.nodes} == modelled.attempts()
            if modelled.status is RunStatus.COMPLETED:
                assert bytes(stored.run.outputs["output"]) == str(2 * (modelled.x + 2) + 1).encode()

    @invariant()
    def every_run_is_whole(self) -> None:
        for run_id in self.model:
            found = self.do(verify_run(self.observer.as_store, run_id))
            assert found == []


def process_in(loop: asyncio.AbstractEventLoop, name: str) -> Process:
    async def make() -> Process:
        return Process(name)

    return loop.run_until_complete(make())


def run_histories(urls: Any, *, examples: int, steps: int) -> None:
    class Machine(Histories):
        pass

    Machine.urls = staticmethod(urls)
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=steps))


def sqlite_urls(folder: Path) -> AbstractContextManager[str]:
    return nullcontext(f"sqlite:///{folder / 'perdure.db'}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_histories_follow_the_model_on_sqlite():
    run_histories(sqlite_urls, examples=80, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_histories_follow_the_model_on_postgres(postgres_databases: Databases):
    run_histories(lambda _: postgres_databases.fresh(), examples=15, steps=30)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_histories_follow_the_model_on_sqlite():
    run_histories(sqlite_urls, examples=2_000, steps=50)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_histories_follow_the_model_on_postgres(postgres_databases: Databases):
    run_histories(lambda _: postgres_databases.fresh(), examples=500, steps=50)
