"""Reference workflows that wait: for people, signals and time; and that are paused. With those who look after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from perdure.dispatch.context import Context
from perdure.engine.engine import Engine
from perdure.engine.runs.run import Run
from perdure.errors import AnsweredAlready, CursorRegressed, InputClosed, RunEnded, WaitNotFound
from perdure.graph.asking import ask
from perdure.graph.declare import Stream, node, workflow
from perdure.graph.inbox import inbox
from perdure.graph.trace import collect, when
from perdure.graph.triggers import Trigger, TriggerInput
from perdure.journal.events import TriggerInputReceived
from perdure.journal.states import RunStatus, WaitKind
from perdure.nodes.schedule import Tick, schedule
from perdure.testing.graphs import TICK_SECONDS, Reference, add, tell_own_run, through_own_engine
from perdure.testing.ledger import effect

Person = Callable[[Run[Any]], Awaitable[None]]


# People


async def answering(run: Run[Any]) -> None:
    """Answer whatever is asked: the number of letters, or what a choice is, or yes."""
    for question in await run.questions():
        with suppress(AnsweredAlready, WaitNotFound):
            if question.kind is WaitKind.SUSPEND:
                await run.resume(question.node_id, f"told after {question.prompt}", command_id="told")
                continue
            kind = question.schema.get("type")
            answer = (
                question.choices[-1]
                if question.choices
                else len(question.prompt)
                if kind == "integer"
                else True
                if kind == "boolean"
                else question.prompt.upper()
            )
            await run.answer(question.interaction_id, answer, by="person", answer_id=question.interaction_id)


async def signalling(run: Run[Any]) -> None:
    """Send two signals of each name, as long as the run hears them."""
    with suppress(RunEnded):
        for name in ("go", "stop"):
            for number in (1, 2):
                await run.signal(name, number, id=f"{name} {number}")


async def resuming(run: Run[Any]) -> None:
    """Resume the run whenever it is paused."""
    if await run.status() is RunStatus.PAUSED:
        await run.resume(command_id="resume")


async def sending(run: Run[Any]) -> None:
    """Send two items, now and then one more, and close."""
    sent = (await run.state()).last_seq
    with suppress(InputClosed):
        await run.send("words", "one", item_id="1")
        await run.send("words", "two", item_id="2")
        if sent > 9:  # both have come, together or one after the other
            await run.send("words", "three", item_id="3")
            await run.close("words")


async def stopping(run: Run[Any]) -> None:
    """Stop the run after some time."""
    if len([entry async for entry in run.events(follow=False) if isinstance(entry.event, TriggerInputReceived)]) >= 3:
        await run.stop()


async def delivering(run: Run[Any]) -> None:
    """Deliver orders 101 to 105, again and again, and stop when they are there."""
    for number in range(101, 106):
        with suppress(InputClosed, CursorRegressed):
            await run.deliver("inbox", number, id=f"order {number}", cursor=number)
    await run.stop()


async def watching(run: Run[Any]) -> None:
    """Only look."""


# Bodies


def draft_of(x: int) -> str:
    return f"draft {x}"


@node
async def reviewed(ctx: Context, x: int) -> str:
    """Ask two things in turn, with work between them that must not be repeated."""
    effect(ctx)
    draft = await ctx.step(draft_of, x)
    title = await ctx.ask("a title", show=draft)
    await asyncio.sleep(TICK_SECONDS)
    size = await ctx.ask("how many", schema=int)
    return f"{draft}: {title}, {size}"


@node
async def asked_at_once(ctx: Context) -> list[Any]:
    effect(ctx)
    questions = (ctx.ask("this"), ctx.ask("which", choices=["a", "b"]), ctx.ask("late", deadline=3.0, default="nobody"))
    return list(await asyncio.gather(*questions))


@node
async def rested(ctx: Context, x: int) -> int:
    effect(ctx)
    await ctx.sleep(minutes=1)
    effect(ctx, part="woke")
    await ctx.sleep(1)
    return x + 1


@node
async def patient(ctx: Context, times: int) -> int:
    """Sleep and ask again and again, and go on where it was."""
    effect(ctx)
    done: int = ctx.restored or 0
    while done < times:
        await ctx.sleep(15)
        await ctx.ask("once more", schema=bool)
        done += 1
        await ctx.checkpoint(done)
    return done


@node
async def signalled(ctx: Context) -> list[Any]:
    effect(ctx)
    first = await ctx.wait_for("go")
    await asyncio.sleep(TICK_SECONDS)
    second = await ctx.wait_for("go")
    try:
        third = await ctx.wait_for("never", timeout=20)
    except TimeoutError:
        third = await ctx.wait_for("stop")
    return [first, second, third]


class Suspended:
    """Keeps its state over a suspension."""

    step: int = 2

    async def run(self, ctx: Context, x: int) -> str:
        effect(ctx)
        told = await ctx.suspend("two steps", {"x": x * self.step})
        return f"{told} {ctx.restored['x'] if ctx.restored else None}"


@node
async def pausing(ctx: Context, x: int) -> int:
    """Ask for a pause of the run, and go on."""
    effect(ctx)
    await tell_own_run(ctx, lambda run: run.pause("the node asked for it", command_id=f"{ctx.run_id}/pause"))
    await asyncio.sleep(3 * TICK_SECONDS)
    return x + 1


@node(concurrency=2)
async def approved(ctx: Context, x: int) -> int:
    effect(ctx)
    return x * await ctx.ask(f"factor {x % 3}", schema=int)


@node(concurrency=3)
async def doubled(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return 2 * x


@node
async def interviewed(ctx: Context, upto: int) -> AsyncIterator[int]:
    """Ask before each item after the first."""
    effect(ctx)
    for number in range(upto):
        yield number + (await ctx.ask(f"for {number}", schema=int) if number else 0)


class Orders(Trigger[str, int]):
    """Reads orders 8 to 12 from outside, where cursors are texts: "10" comes after "9"."""

    async def inputs(self, ctx: Any, cursor: str | None) -> AsyncIterator[TriggerInput[str, int]]:
        effect(ctx)
        for number in range(int(cursor or 7) + 1, 13):
            await asyncio.sleep(TICK_SECONDS)
            yield TriggerInput(number, id=f"order {number}", cursor=str(number))

    def is_after(self, cursor: str, last: str) -> bool:
        return int(cursor) > int(last)


@node(concurrency=2)
async def loud(ctx: Context, word: str) -> str:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return word.upper()


@node(concurrency=3)
async def heard_of(ctx: Context, run_id: str) -> str:
    """Wait for a run that was started, and tell how its id goes on after this run's, and what it came to."""
    effect(ctx)
    result = await through_own_engine(lambda engine: _result_of(engine, run_id))
    return f"{run_id.removeprefix(ctx.run_id)} {result}"


@node
async def numbered(ctx: Context, told: list[str]) -> list[str]:
    """Add how many runs there are whose ids begin with this run's, besides itself."""
    effect(ctx)
    runs = await through_own_engine(lambda engine: engine.list(id_prefix=f"{ctx.run_id}:"))
    return [*told, *sorted(run.status.value for run in runs)]


async def _result_of(engine: Engine, run_id: str) -> Any:
    return await (await engine.get(run_id)).result()


suspended = node(Suspended)
orders = node(Orders)


# Workflows


@node
async def noted(ctx: Context, tick: Tick) -> str:
    effect(ctx)
    return f"{tick.missed}"


@workflow
def asking(x: int) -> int:
    one = add.named("one")(x)
    with when(ask.named("may")("go on?", schema=bool, show=one)):
        two = add.named("two")(one)
    return two


@workflow
def asking_inside(x: int) -> str:
    return reviewed(x)


@workflow
def asking_at_once() -> Any:
    return asked_at_once()


@workflow
def sleeping(x: int) -> int:
    return add.named("after")(rested(x))


@workflow
def waiting_again_and_again(times: int) -> int:
    return patient(times)


@workflow
def waiting_for_signals() -> Any:
    return signalled()


@workflow
def suspending(x: int) -> str:
    return suspended(x=x)


@workflow
def paused(x: int) -> int:
    return add.named("after")(pausing(add.named("before")(x)), add.named("beside")(x, ticks=8))


@workflow
def asking_for_items(xs: list[int]) -> list[int]:
    return collect(approved.map(xs))


@workflow
def asking_while_giving(x: int) -> list[int]:
    return collect(doubled.map(interviewed(x)))


@workflow
def fed_by_a_person(words: Stream[str]) -> list[str]:
    return collect(loud.map(words))


@workflow
def triggered() -> list[int]:
    return collect(doubled.map(orders()))


@workflow
def delivered() -> list[int]:
    return collect(doubled.map(inbox(int)))


@workflow
def scheduled() -> list[str]:
    return collect(noted.map(schedule(every=20, catch_up="all")))


@workflow
def begun_by_another(x: int, y: int = 1) -> int:
    return add.named("last")(add.named("first")(x, y))


@workflow
def starting_others() -> list[str]:
    return numbered(collect(heard_of.map(begun_by_another.start_each(orders(), y=100))))


def wait_references() -> list[Reference]:
    """Return the workflows that wait, and what must come of them."""
    return [
        Reference(workflow=asking, inputs={"x": 1}, certain=frozenset(("one", "two")), person=answering),
        Reference(workflow=asking_inside, inputs={"x": 1}, person=answering),
        Reference(workflow=asking_at_once, inputs={}, person=answering),
        Reference(workflow=sleeping, inputs={"x": 1}, person=watching),
        Reference(workflow=waiting_again_and_again, inputs={"times": 3}, person=answering),
        Reference(workflow=waiting_for_signals, inputs={}, person=signalling),
        Reference(workflow=suspending, inputs={"x": 1}, person=answering),
        Reference(workflow=paused, inputs={"x": 1}, person=resuming),
        Reference(workflow=asking_for_items, inputs={"xs": [1, 2, 3, 4]}, person=answering),
        Reference(workflow=asking_while_giving, inputs={"x": 3}, person=answering),
        Reference(workflow=triggered, inputs={}, person=watching),
        Reference(workflow=delivered, inputs={}, certain=frozenset(("doubled",)), person=delivering),
        Reference(workflow=scheduled, inputs={}, certain=frozenset(("noted",)), person=stopping),
        Reference(
            workflow=starting_others,
            inputs={},
            certain=frozenset(("Orders", "heard_of", "numbered")),
            person=watching,
        ),
        Reference(workflow=fed_by_a_person, inputs={}, certain=frozenset(("loud",)), person=sending),
    ]
