"""What arrives in bodies and comes out of runs: templates, parts, lists, alternatives, skips, defaults, logs, stages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Context, Engine, Outputs, SyncContext, first, node, stage, text, unless, when, workflow
from perdure.errors import RunFailed
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import NodeStatus
from perdure.testing.loop import run_virtual
from tests.engine.engines import assert_whole, engine_on, log_of


@dataclass
class Page:
    title: str
    words: list[str]
    size: int = 0


class Parts(Outputs):
    head: str
    tail: list[str]


@node
async def page(ctx: Context, title: str) -> Page:
    return Page(title=title, words=title.split(), size=len(title))


@node
async def split(ctx: Context, words: list[str]) -> Parts:
    return Parts(head=words[0], tail=words[1:])


@node
async def echo(ctx: Context, value: Any) -> Any:
    return value


@node
async def greet(ctx: Context, name: str, greeting: str = "Hello") -> str:
    return f"{greeting}, {name}"


@node
async def choose(ctx: Context, value: int) -> bool:
    return value > 10


@node
async def repeat(ctx: Context, word: str, times: int) -> str:
    return word * times


@node
async def talkative(ctx: Context, x: int) -> int:
    ctx.log.info("begun", x=x)
    ctx.progress(1, 2)
    ctx.publish({"so far": x})
    ctx.log.warning("almost done", attempt=ctx.attempt)
    return x


@node
def talkative_thread(ctx: SyncContext, x: int) -> int:
    ctx.log.info("in a thread")
    ctx.checkpoint({"x": x})
    return ctx.step(abs, -x)


async def result_of(url: str, workflow: Any, **inputs: Any) -> Any:
    async with engine_on(url) as engine:
        run = await engine.start(workflow, inputs=inputs)
        result = await run.result()
        await assert_whole(engine, run)
        return result


@workflow
def parts_of_values(title: str) -> str:
    made = page(title)
    return repeat(made.words[0], made.size)


@workflow
def named_outputs(title: str) -> dict[str, Any]:
    parts = split(page(title).words)
    return {"head": parts.head, "both": echo([parts.head, parts.tail]), "fixed": 7}


@workflow
def templates(name: str) -> Any:
    return echo({"greeting": greet(name), "text": text("<", greet(name, "Bye"), ">"), "constant": [1, None]})


@workflow
def alternatives(value: int) -> Any:
    large = choose(value)
    with when(large):
        one = greet.named("large")("large")
    with unless(large):
        other = greet.named("small")("small")
        third = echo.named("third")(other)
    return {"chosen": first(one, third), "large": one, "small": other}


@workflow
def defaults(value: int) -> str:
    with when(choose(value)):
        greeting = echo("Ave")
    return greet("you", greeting)


@workflow
def large_values(size: int) -> str:
    return echo(repeat("x", size))


@workflow
def talking(x: int) -> int:
    return talkative(talkative_thread(x))


@workflow
def in_stages(x: int) -> int:
    with stage("first"):
        a, b = echo.named("a")(x), echo.named("b")(x)
    with stage("second"):
        return echo.named("c")([a, b])


@workflow
def wrong_part(title: str) -> Any:
    return echo(echo(title).nowhere)


def test_a_part_of_a_value_is_what_arrives(sqlite_url: str):
    assert run_virtual(result_of(sqlite_url, parts_of_values, title="ab cd")) == "ababababab"


def test_outputs_have_names(sqlite_url: str):
    result = run_virtual(result_of(sqlite_url, named_outputs, title="a b c"))

    assert result == {"head": "a", "both": ["a", ["b", "c"]], "fixed": 7}


def test_templates_are_filled(sqlite_url: str):
    result = run_virtual(result_of(sqlite_url, templates, name="you"))

    assert result == {"greeting": "Hello, you", "text": "<Bye, you>", "constant": [1, None]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (20, {"chosen": "Hello, large", "large": "Hello, large", "small": None}),
        (2, {"chosen": "Hello, small", "large": None, "small": "Hello, small"}),
    ],
)
def test_what_was_skipped_is_none_and_the_first_that_was_not_is_chosen(sqlite_url: str, value: int, expected: Any):
    assert run_virtual(result_of(sqlite_url, alternatives, value=value)) == expected


@pytest.mark.parametrize(("value", "expected"), [(20, "Ave, you"), (2, "Hello, you")])
def test_a_parameter_with_a_default_does_not_skip_its_node(sqlite_url: str, value: int, expected: str):
    assert run_virtual(result_of(sqlite_url, defaults, value=value)) == expected


@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
def test_values_of_any_size_arrive_whole(sqlite_url: str, size: int):
    result = run_virtual(result_of(sqlite_url, large_values, size=size))

    assert result == "x" * size


def test_a_part_that_is_not_there_fails_the_node_and_says_which(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(wrong_part, title="a")
            with pytest.raises(RunFailed, match="nowhere"):
                await run.result()
            assert (await run.load()).run.error.error_class is e.ErrorClass.INPUT
            await assert_whole(engine, run)

    run_virtual(main())


def test_stages_begin_with_their_first_node_and_end_with_their_last(sqlite_url: str):
    async def main() -> list[str]:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(in_stages, x=1)
            assert await run.result() == [1, 1]
            await assert_whole(engine, run)
            return [_short(entry.event) for entry in await log_of(run) if _short(entry.event)]

    shown = run_virtual(main())

    assert shown[0] == "StageStarted first"
    assert shown.index("StageCompleted first") == max(shown.index("done a"), shown.index("done b")) + 1
    assert shown.index("StageStarted second") > shown.index("StageCompleted first")
    assert shown[-1] == "StageCompleted second"
    assert len(shown) == 7


def _short(event: e.Event) -> str:
    match event:
        case e.StageStarted(stage=name) | e.StageCompleted(stage=name):
            return f"{type(event).__name__} {name}"
        case e.NodeCompleted(node_id=node_id):
            return f"done {node_id}"
        case _:
            return ""


async def test_what_bodies_say_is_kept(store_url: str):
    async with Engine(store_url) as engine:
        run = await engine.start(talking, run_id="run", x=3)
        assert await run.result() == 3
        await assert_whole(engine, run)
    async with Engine(store_url, recover=False) as engine:
        lines = [line for _, line in await engine.store.load_logs(RunId("run"), after=0, limit=100)]

    assert [(line.node_id, line.level, line.message, line.fields) for line in lines] == [
        ("talkative_thread", "info", "in a thread", {}),
        ("talkative", "info", "begun", {"x": 3}),
        ("talkative", "warning", "almost done", {"attempt": 1}),
    ]


async def test_progress_is_shown_while_it_happens(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        shown = engine.hub.flashes(RunId("run"))
        watching = asyncio.ensure_future(anext(shown))
        await asyncio.sleep(0)
        run = await engine.start(talking, run_id="run", x=3)
        one, other = await watching, await anext(shown)
        assert (one.kind, one.done, one.total) == ("progress", 1, 2)
        assert (other.kind, other.value) == ("publish", {"so far": 3})
        await run.result()
        await shown.aclose()


async def test_a_body_in_a_thread_has_its_checkpoints_and_steps(store_url: str):
    async with Engine(store_url) as engine:
        run = await engine.start(talking, x=3)
        await run.result()
        types = [type(entry.event) for entry in await log_of(run)]
        assert types.count(e.NodeCheckpointed) == types.count(e.StepCompleted) == 1
        states = {state.node_id: state.status for state in (await run.load()).nodes}
        assert set(states.values()) == {NodeStatus.COMPLETED}
