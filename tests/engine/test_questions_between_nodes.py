"""Nodes that ask: with all that is needed at hand nothing runs for them, neither when they ask nor when they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Engine, EngineSettings, ask, node, workflow
from perdure.engine.driving.asking import AskActor
from perdure.journal.states import RunStatus
from perdure.store.opening import open_store
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import assert_whole


@node
async def told(answer: str) -> str:
    return answer.upper()


@node
async def large(n: int) -> str:
    return "x" * n


@node
async def wrong() -> Any:
    return 7


@workflow
def asks(name: str) -> str:
    return told(ask("Who is it?", show=name))


@workflow
def asks_twice() -> list[str]:
    return [ask("One?"), ask("Two?")]


@workflow
def shows_much(n: int) -> str:
    return ask("Is that all right?", show=large(n))


@workflow
def asks_nonsense() -> str:
    return ask(wrong())


class Watched(StoreProxy):
    """Counts the transitions of each run."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.transitions: list[tuple[str, ...]] = []

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit":
            for transition in args[0]:
                self.transitions.append(tuple(type(entry.event).__name__ for entry in transition.events))
        return await call()


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions for which a task had to run."""
    seen: list[str] = []
    run = AskActor.run

    async def running(actor: AskActor) -> None:
        seen.append(actor.node_id)
        await run(actor)

    monkeypatch.setattr(AskActor, "run", running)
    return seen


async def answered(run: Any, answer: Any) -> None:
    (question,) = await run.questions()
    await run.answer(question.interaction_id, answer)


async def test_a_run_that_asks_at_once_is_one_transition_and_so_is_what_follows_from_the_answer(
    store_url: str, attempts: list[str]
):
    inner = await open_store(store_url)
    store = Watched(inner)
    async with Engine(store.as_store) as engine:
        run = await engine.start(asks, name="Ada", run_id="asks")
        assert [events[0] for events in store.transitions] == ["RunCreated"]
        assert store.transitions[0][-3:] == ("InteractionRequested", "NodeSuspended", "RunSuspended")
        assert (await run.state()).status is RunStatus.AWAITING_INPUT
        assert engine.driver_of(run.run_id) is None
        await assert_whole(engine, run)
        store.transitions.clear()

        await answered(run, "grace")

        assert await run.result() == "GRACE"
        first = store.transitions[0]
        assert first[first.index("InteractionResponded") :] == (
            *("InteractionResponded", "NodeResumed", "NodeCompleted"),
            *("NodeScheduled", "NodeStarted"),
        )
        await assert_whole(engine, run)
    await inner.close()
    assert attempts == []


async def test_a_run_rests_when_all_that_it_asks_is_asked(store_url: str, attempts: list[str]):
    async with Engine(store_url) as engine:
        run = await engine.start(asks_twice, run_id="twice")
        questions = await run.questions()
        assert [question.prompt for question in questions] == ["One?", "Two?"]
        assert (await run.state()).status is RunStatus.AWAITING_INPUT
        for question in questions:
            await run.answer(question.interaction_id, question.prompt.lower())

        assert await run.result() == ["one?", "two?"]
        await assert_whole(engine, run)
    assert attempts == []


async def test_what_is_not_at_hand_is_fetched_first(store_url: str, tmp_path: Any, attempts: list[str]):
    settings = EngineSettings(inline_max_bytes=1_000)
    async with Engine(store_url, blobs=(tmp_path / "blobs").as_uri(), settings=settings) as engine:
        run = await engine.start(shows_much, n=5_000, run_id="much")
        async with asyncio.timeout(30):
            while (await run.state()).status is not RunStatus.AWAITING_INPUT:
                await asyncio.sleep(0.01)
        assert (await run.questions())[0].show == "x" * 5_000
        await answered(run, "y" * 5_000)

        assert await run.result() == "y" * 5_000
        await assert_whole(engine, run)
    assert attempts == ["ask", "ask"]


async def test_a_question_that_is_none_fails_as_a_body_would(store_url: str, attempts: list[str]):
    async with Engine(store_url) as engine:
        run = await engine.start(asks_nonsense, run_id="nonsense")
        with pytest.raises(Exception, match="what is asked"):
            await run.result()
        assert (await run.state()).status is RunStatus.FAILED
        await assert_whole(engine, run)
    assert attempts == ["ask"]


class LateReply(StoreProxy):
    """Replies late to the first read of a run after it was told to."""

    late: asyncio.Event | None = None
    has_read = False

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        found = await call()
        if name == "load_run" and self.late is not None and not self.has_read:
            self.has_read = True
            await self.late.wait()
        return found


@pytest.mark.parametrize("recover", [True, False])
async def test_an_answer_that_comes_while_the_run_is_taken_up_for_another_one_is_heard(store_url: str, recover: bool):
    inner = await open_store(store_url)
    store = LateReply(inner)
    settings = EngineSettings(poll_seconds=600, recovery_seconds=600)
    async with Engine(store.as_store, settings=settings, recover=recover) as engine:
        run = await engine.start(asks_twice, run_id="twice")
        one, other = await run.questions()
        store.late = asyncio.Event()
        await run.answer(one.interaction_id, "1")
        while not store.has_read:
            await asyncio.sleep(0.001)
        await run.answer(other.interaction_id, "2")
        store.late.set()

        async with asyncio.timeout(10):
            while (await run.state()).status is not RunStatus.COMPLETED:
                await asyncio.sleep(0.01)
        await assert_whole(engine, run)
    await inner.close()
