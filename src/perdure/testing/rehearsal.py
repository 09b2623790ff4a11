"""Workflows under test: what the fixture `perdure` gives.

    def test_a_page_is_published(perdure: Rehearsal):
        perdure.stub(fetch, lambda url: "text")
        perdure.answer("Publish this?", True)

        run = perdure.run(digest, url="…")

        assert run.output == "published"
        run.assert_ran(fetch, times=1)

Everything is real but for time and stubs: the engine, the store, the bodies. A run goes on only while one of these methods is
under way, each of which returns when every run that it concerns has ended or rests.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

from perdure.clock import from_micros
from perdure.engine.runs.run import Run
from perdure.errors import AnswerRefused
from perdure.graph.asking import Ask
from perdure.graph.declare import NodeType, Stream, Workflow
from perdure.journal.states import TERMINAL, RunState, WaitKind
from perdure.testing.given import require_node_type, require_workflow
from perdure.testing.kills import kill_and_go_on
from perdure.testing.script import Actor, Reply, Script, Sending, Signal, question_of
from perdure.testing.stage import Stage, is_at_rest, needs_somebody
from perdure.testing.stores import scratch_store
from perdure.testing.stubs import Stub, stub_in_turn
from perdure.testing.survival import Crash, crash_everywhere, require_survival
from perdure.testing.watched import WatchedRun, look
from perdure.testing.world import attend

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Asked = str | re.Pattern[str] | NodeType[..., Any] | Ask
"""A question: its whole prompt or the id of its node, a pattern in the prompt, or the node type that asks."""


class _NotGiven:
    """Stands for a value that was not given, where None is one."""


NOT_GIVEN = _NotGiven()


class _Living(NamedTuple):
    """A run, and how far it goes by itself."""

    run: Run[Any]
    rests: Callable[[RunState], bool]


class Rehearsal:
    """Runs workflows in virtual time, with a store of its own."""

    def __init__(self, folder: Path, *, store: str = "sqlite") -> None:
        """`store` is `sqlite`, or the URL of a PostgreSQL database in which each rehearsal makes a schema for itself."""
        self._folder = folder
        self._where = store
        self._stack = ExitStack()
        self._script = Script()
        self._actor = Actor(self._script)
        self._runs: dict[WatchedRun[Any], _Living] = {}
        self._stubs: list[Stub] = []
        self._opened: Stage | None = None
        self._numbers = itertools.count(1)

    def __enter__(self) -> Rehearsal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all stubs and what is left of the store. What was seen of runs can still be asked for."""
        for stub in reversed(self._stubs):
            stub.remove()
        self._stack.close()

    # Runs

    def run(self, flow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> WatchedRun[R]:
        """Run a workflow until it ends, or rests until somebody acts. Time passes as it must: a sleep of days takes no time."""
        __tracebackhide__ = True
        require_workflow(flow, "perdure.run")
        return self._begin(flow, flow.bind(*args, **kwargs), needs_somebody)

    def start(self, flow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> WatchedRun[R]:
        """Run a workflow until it ends or rests, be it only until some time. `advance` lets that time come."""
        __tracebackhide__ = True
        require_workflow(flow, "perdure.start")
        return self._begin(flow, flow.bind(*args, **kwargs), is_at_rest)

    def advance(self, span: timedelta | None = None, /, **parts: float) -> None:
        """Let time pass, as a timedelta or with its arguments (`days=2`), with all that happens to the runs meanwhile."""
        seconds = (timedelta(**parts) + (span or timedelta())).total_seconds()
        if seconds < 0:
            raise ValueError("time does not go back")
        self._call(lambda: self._attend_for(seconds))

    @property
    def url(self) -> str:
        """The URL of the store. It is gone when the test ends."""
        return self._stage.url

    @property
    def now(self) -> datetime:
        """The time that the runs see."""
        return from_micros(self._stage.call(_now(self._stage)))

    def tell(self, run: WatchedRun[Any], what: Callable[[Run[Any]], Awaitable[object]]) -> None:
        """Do anything with a run that its handle offers, and let it go on: `perdure.tell(run, lambda run: run.cancel())`."""

        async def do() -> None:
            await what(self._runs[run].run)
            await self._attend_all()

        self._require_own(run)
        self._call(do)

    # What others do

    def answer(self, question: Asked, value: Any, *more: Any, run: WatchedRun[Any] | None = None) -> None:
        """Answer a question, if it is asked already or as soon as it is: of one run, or of all of this test.

        Several values answer as many questions in turn, and the last one all that follow. If several answers fit a question,
        the one that was given last counts.
        """
        self._reply(WaitKind.ASK, question, (value, *more), run)

    def resume(self, node: Asked, value: Any = None, *more: Any, run: WatchedRun[Any] | None = None) -> None:
        """Let nodes go on from `ctx.suspend`, with a value each, now or when it comes to that: as `answer` does."""
        self._reply(WaitKind.SUSPEND, node, (value, *more), run)

    def signal(self, name: str, value: Any = None, *, run: WatchedRun[Any] | None = None) -> None:
        """Send a signal to one run, or to all of this test: those that there are, and those that come."""
        self._script.signals.append(
            Signal(id=f"signal {next(self._numbers)}", name=name, value=value, run_id=self._id_of(run))
        )
        self._go_on()

    def send(self, name: str, *items: Any, close: bool = False, run: WatchedRun[Any] | None = None) -> None:
        """Send items to an input that is a stream, and `close` it if no more come: of one run, or of all of this test."""
        self._script.sendings.append(
            Sending(id=f"sending {next(self._numbers)}", name=name, items=items, closes=close, run_id=self._id_of(run))
        )
        self._go_on()

    # Stubs

    # Lambdas learn the types of their parameters from the node; what leaves some of them out fits the general form.

    @overload
    def stub(
        self,
        node: NodeType[P, Stream[T]],
        body: Callable[P, Iterable[T] | Awaitable[Iterable[T]] | Stream[T]],
        /,
    ) -> Stub: ...
    @overload
    def stub(
        self,
        node: NodeType[..., Stream[T]],
        body: Callable[..., Iterable[T] | Awaitable[Iterable[T]] | Stream[T]],
        /,
    ) -> Stub: ...
    @overload
    def stub(self, node: NodeType[P, R], body: Callable[P, R | Awaitable[R]], /) -> Stub: ...
    @overload
    def stub(self, node: NodeType[..., R], body: Callable[..., R | Awaitable[R]], /) -> Stub: ...
    @overload
    def stub(self, node: NodeType[..., Stream[T]], /, *, returns: Iterable[T]) -> Stub: ...
    @overload
    def stub(self, node: NodeType[..., R], /, *, returns: R) -> Stub: ...
    @overload
    def stub(self, node: NodeType[..., Any], /, *, raises: Exception) -> Stub: ...
    @overload
    def stub(self, node: NodeType[..., Stream[T]], /, *, in_turn: Sequence[Iterable[T] | Exception]) -> Stub: ...
    @overload
    def stub(self, node: NodeType[..., R], /, *, in_turn: Sequence[R | Exception]) -> Stub: ...

    def stub(
        self,
        node: Any,
        body: Callable[..., Any] | None = None,
        /,
        *,
        returns: Any = NOT_GIVEN,
        raises: Exception | None = None,
        in_turn: Sequence[Any] | None = None,
    ) -> Stub:
        """Have something stand in for the body of a node: a function, what it returns or raises, or several of these in turn.

        It stands until the test ends, or as a context manager until its block does. `calls` of what is returned are the
        arguments of each call. Raises InvalidDeclaration if the function could not be called with the node's arguments, and
        TypeError for what is no node type.
        """
        __tracebackhide__ = True
        require_node_type(node)
        if (body is not None) + (returns is not NOT_GIVEN) + (raises is not None) + (in_turn is not None) != 1:
            raise TypeError("a stub is one of: a function, returns=…, raises=… or in_turn=[…]")
        if body is not None:
            stub = Stub(node, body)
        elif raises is not None:
            stub = stub_in_turn(node, [raises])
        else:
            stub = stub_in_turn(node, [returns] if in_turn is None else in_turn)
        self._stubs.append(stub)
        return stub

    # Crashes

    def crashes(self, flow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Crash[R]]:
        """Run the workflow again and again, each time with a crash at another commit, and give what became of it.

        At each commit the engine dies before it is written, dies after it, and lives on without hearing that it was written.
        """
        __tracebackhide__ = True
        require_workflow(flow, "perdure.crashes")
        inputs = flow.bind(*args, **kwargs)
        undisturbed = self._begin(flow, inputs, needs_somebody)
        if undisturbed.status not in TERMINAL:
            raise AssertionError(f"a run that is to survive crashes has to end: answer what it asks\n\n{undisturbed}")
        return crash_everywhere(self._stage, flow, inputs, self._actor, undisturbed)

    def assert_survives(self, flow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Claim that a crash at any commit changes nothing: the same outcome, nothing lost, nothing done again that was done."""
        __tracebackhide__ = True
        require_workflow(flow, "perdure.assert_survives")
        require_survival(self.crashes(flow, *args, **kwargs))

    def kill_at(self, commit: int, flow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> WatchedRun[R]:
        """Run the workflow in a process that is ended by SIGKILL when it is about to write its n-th commit, from 1, and let
        another process go on with the run.

        The workflow and functions that stand in for bodies must be at the top of a module. Fails if the run makes fewer commits.
        """
        __tracebackhide__ = True
        require_workflow(flow, "perdure.kill_at")
        folder = self._folder / f"kill-{next(self._numbers)}"
        inputs = flow.bind(*args, **kwargs)
        with scratch_store(self._where, folder) as url:
            seen = kill_and_go_on(flow, inputs, url, folder, commit, script=self._script, stubs=self._stubs)
        return WatchedRun(seen)

    # Inside

    @property
    def _stage(self) -> Stage:
        if self._opened is None:
            url = self._stack.enter_context(scratch_store(self._where, self._folder))
            self._opened = Stage(url, self._folder)
            self._stack.callback(self._opened.close)
        return self._opened

    def _begin(
        self, flow: Workflow[..., R], inputs: dict[str, Any], rests: Callable[[RunState], bool]
    ) -> WatchedRun[R]:
        async def begin() -> WatchedRun[R]:
            run = await self._stage.engine.start(flow, inputs=inputs)
            await attend(self._stage.engine, run, self._actor, rests)
            watched: WatchedRun[R] = WatchedRun(await look(run, self._stage.world.store, self._stage.world.ledger))
            self._runs[watched] = _Living(run, rests)
            return watched

        return self._call(begin)

    def _reply(self, kind: WaitKind, question: Asked, values: tuple[Any, ...], run: WatchedRun[Any] | None) -> None:
        asked = question_of(question.node_type if isinstance(question, Ask) else question)
        reply = Reply(number=next(self._numbers), kind=kind, values=values, run_id=self._id_of(run), **asked)
        self._script.replies.append(reply)
        try:
            self._go_on()
        except AnswerRefused:
            self._script.replies.remove(reply)
            raise

    def _id_of(self, run: WatchedRun[Any] | None) -> str | None:
        return None if run is None else self._require_own(run)

    def _require_own(self, run: WatchedRun[Any]) -> str:
        if run not in self._runs:
            raise ValueError(f"{run!r} does not go on here: it was not given by `run` or `start` of this test")
        return run.run_id

    def _go_on(self) -> None:
        if self._runs:
            self._call(self._attend_all)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something on the stage, and look what has become of the runs."""
        stage = self._stage
        try:
            return stage.call(work())
        finally:
            stage.call(self._look_again())

    async def _look_again(self) -> None:
        for watched, living in self._runs.items():
            if watched.status not in TERMINAL:
                watched.seen = await look(living.run, self._stage.world.store, self._stage.world.ledger)

    async def _attend_all(self) -> None:
        async with asyncio.TaskGroup() as attending:
            for living in self._living():
                attending.create_task(attend(self._stage.engine, living.run, self._actor, living.rests))

    async def _attend_for(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as attending:
            tasks = [
                attending.create_task(attend(self._stage.engine, living.run, self._actor)) for living in self._living()
            ]
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()

    def _living(self) -> list[_Living]:
        return [living for watched, living in self._runs.items() if watched.status not in TERMINAL]


async def _now(stage: Stage) -> int:
    return stage.engine.clock.now_micros()
