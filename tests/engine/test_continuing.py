"""Whether a run can go on on another version: what of it would be kept, what would run again, and why it could not be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import apsw
import asyncpg
import pytest

from perdure import Context, Engine, Run, Stream, ask, collect, node, when, workflow
from perdure.engine.runs.continuing import Compatibility
from perdure.errors import CannotContinue, VersionNotFound
from perdure.graph.forms import graph_from_json
from perdure.graph.writing import content_hash, graph_to_json
from perdure.journal.states import RunStatus


@dataclass
class ContBox:
    full: bool = True


@node
async def cont_one(x: int) -> int:
    return x + 1


@node
async def cont_other(x: int, by: int = 2) -> int:
    return x * by


@node(once=True)
async def cont_pay(x: int) -> int:
    return x


@node
async def cont_items(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


@node
async def cont_sum(numbers: Stream[int]) -> int:
    return sum([number async for number in numbers])


@node
async def cont_double_sum(numbers: Stream[int]) -> int:
    return 2 * sum([number async for number in numbers])


@node
async def cont_total(numbers: list[int]) -> int:
    return sum(numbers)


@node
async def cont_box(x: int) -> ContBox:
    return ContBox()


@node
async def cont_unpack(box: ContBox) -> bool:
    return box.full


@node
async def cont_broken(ctx: Context, x: int) -> int:
    raise ValueError("broken")


@workflow(name="cont")
def cont_chain(x: int) -> int:
    first = cont_one(x)
    second = cont_other.named("second")(first)
    word = ask("go on?", schema=bool)
    return cont_other.named("last")(second, word)


@workflow(name="cont")
def cont_changed_end(x: int) -> int:
    first = cont_one(x)
    second = cont_other.named("second")(first)
    word = ask("go on?", schema=bool)
    return cont_one.named("more")(cont_other.named("last")(cont_one.named("before")(second), word))


@workflow(name="cont")
def cont_changed_middle(x: int) -> int:
    first = cont_one(x)
    second = cont_other.named("second")(first, 5)
    word = ask("go on?", schema=bool)
    return cont_other.named("last")(second, word)


@workflow(name="cont")
def cont_without_middle(x: int) -> int:
    first = cont_one(x)
    word = ask("go on?", schema=bool)
    return cont_other.named("last")(first, word)


@workflow(name="cont")
def cont_more_input(x: int, y: int = 1) -> int:
    first = cont_one(x)
    second = cont_other.named("second")(first)
    word = ask("go on?", schema=bool)
    return cont_other.named("last")(second, cont_other.named("third")(y, word))


def outlook(report: Compatibility) -> dict[str, str]:
    return {found.node_id: found.verdict for found in report.nodes}


async def waiting(engine: Engine) -> Run[Any]:
    """Return a run of the first version that has done two nodes, and asks."""
    run = await engine.start(cont_chain, run_id="waits", x=1)
    assert (await run.wait()).status is RunStatus.AWAITING_INPUT
    return run


async def on(engine: Engine, run: Run[Any], other: Any) -> Compatibility:
    saved = await engine.save(other)
    return await run.compatibility(saved.version)


KEPT = {"cont_one": "kept", "second": "kept", "ask": "kept", "last": "to_come"}


async def test_a_run_can_go_on_on_its_own_version(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await waiting(engine)

        report = await run.compatibility(1)

        assert outlook(report) == KEPT
        assert report.is_possible
        assert (report.version, report.other, report.reasons) == (1, 1, ())
        with pytest.raises(VersionNotFound):
            await run.compatibility(2)


async def test_what_is_still_to_come_may_be_otherwise(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        report = await on(engine, await waiting(engine), cont_changed_end)

        assert outlook(report) == {**KEPT, "before": "to_come", "more": "to_come"}
        assert report.is_possible


async def test_what_has_changed_would_run_again_and_what_depends_on_it(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await waiting(engine)
        await run.answer((await run.questions())[0].interaction_id, True)
        await run.result()

        report = await on(engine, run, cont_changed_middle)

        assert outlook(report) == {"cont_one": "kept", "second": "again", "ask": "kept", "last": "again"}
        reasons = {found.node_id: found.reason for found in report.nodes if found.verdict == "again"}
        assert reasons == {"second": "its data (by) changed", "last": "it depends on 'second'"}
        assert report.is_possible
        assert report.of("again") == ("second", "last")


async def test_what_the_version_does_not_have_is_left(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        report = await on(engine, await waiting(engine), cont_without_middle)

        assert outlook(report) == {"cont_one": "kept", "ask": "kept", "last": "to_come", "second": "left"}
        assert report.is_possible


async def test_an_input_that_was_not_given_is_a_problem(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        report = await on(engine, await waiting(engine), cont_more_input)

        assert not report.is_possible
        assert report.reasons == ("the version has an input 'y', which the run was not given",)


@workflow(name="cont_paid")
def cont_paid(x: int) -> int:
    return cont_one(cont_pay(cont_other(x)))


@workflow(name="cont_paid")
def cont_paid_otherwise(x: int) -> int:
    return cont_one(cont_pay(cont_other(x, 7)))


@workflow(name="cont_paid")
def cont_paid_before(x: int) -> int:
    return cont_other.named("after")(cont_one(cont_pay(cont_other(x))))


async def test_what_must_run_at_most_once_is_not_run_again(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(cont_paid, x=1)
        await run.result()

        report = await on(engine, run, cont_paid_otherwise)

        assert outlook(report) == {"cont_other": "again", "cont_pay": "impossible", "cont_one": "again"}
        assert report.reasons == ("cont_pay: it must run at most once, and has begun",)
        assert (await on(engine, run, cont_paid_before)).is_possible


@workflow(name="cont_streamed")
def cont_streamed(n: int) -> int:
    return cont_sum(cont_items(n))


@workflow(name="cont_streamed")
def cont_streamed_otherwise(n: int) -> int:
    return cont_double_sum.named("cont_sum")(cont_items(n))


@workflow(name="cont_streamed")
def cont_streamed_more(n: int) -> int:
    return cont_other(cont_sum(cont_items(n)), 3)


@workflow(name="cont_streamed")
def cont_streamed_to_more(n: int) -> int:
    items = cont_items(n)
    return cont_other(cont_sum(items), cont_double_sum(items))


@workflow(name="cont_streamed")
def cont_streamed_anew(n: int) -> int:
    return cont_double_sum.named("cont_sum")(cont_items(cont_one(n)))


async def test_a_stream_of_which_only_the_whole_is_left_is_not_read_again(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(cont_streamed, n=3)
        await run.result()

        again, first = await on(engine, run, cont_streamed_otherwise), await on(engine, run, cont_streamed_to_more)

        assert (outlook(again)["cont_sum"], outlook(first)["cont_double_sum"]) == ("impossible", "impossible")
        for report in (again, first):
            assert "it would read 'cont_items' item by item, whose items are not kept" in report.reasons[0]
        assert (await on(engine, run, cont_streamed_more)).is_possible
        assert (await on(engine, run, cont_streamed_anew)).of("again") == ("cont_items", "cont_sum")


@workflow(name="cont_fed")
def cont_fed(numbers: Stream[int]) -> int:
    return cont_total(collect(numbers))


async def test_what_was_fed_from_outside_cannot_begin_again(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(cont_fed, numbers=[1, 2])
        await run.result()
        fed = graph_from_json(graph_to_json(cont_fed.graph).replace(b'"integer"', b'"number"'))
        saved = await engine.store.save_version("cont_fed", content_hash(fed), graph_to_json(fed), {}, at=1)

        report = await run.compatibility(saved.version)

        assert outlook(report)["numbers"] == "impossible"
        assert "cannot be had again" in report.reasons[0]


@workflow(name="cont_boxed")
def cont_boxed(x: int) -> ContBox:
    return cont_box(x)


@workflow(name="cont_boxed")
def cont_boxed_with_condition(x: int) -> int | None:
    box = cont_box(x)
    with when(box):
        more = cont_one(x)
    return more


async def test_what_a_condition_cannot_see_would_have_to_be_given_again(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(cont_boxed, x=1)
        await run.result()

        report = await on(engine, run, cont_boxed_with_condition)

        assert outlook(report) == {"cont_box": "again", "cont_one": "to_come"}
        assert "looks into what it has given" in report.nodes[0].reason


@workflow(name="cont_failed")
def cont_failed(x: int) -> int:
    return cont_broken(cont_one(x))


@workflow(name="cont_failed")
def cont_mended(x: int) -> int:
    return cont_other.named("cont_broken")(cont_one(x))


async def test_what_has_failed_is_told(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(cont_failed, x=1)
        await run.wait()

        same, mended = await run.compatibility(1), await on(engine, run, cont_mended)

        assert [(found.verdict, found.reason) for found in same.nodes] == [
            ("kept", ""),
            ("kept", "it is failed, and is tried again if the run goes on"),
        ]
        assert outlook(mended) == {"cont_one": "kept", "cont_broken": "again"}


async def test_a_type_that_is_not_here_cannot_say_whether_it_may_run_twice(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(cont_paid_before, x=1)
        await run.result()
        away = graph_to_json(cont_paid_before.graph).replace(cont_one.name.encode(), b"cont_away")
        saved = await engine.store.save_version("cont_paid", "h", away, {}, at=1)

        report = await run.compatibility(saved.version)

        assert report.of("impossible") == ("cont_one",)
        assert report.of("again") == ("after",)
        assert "'cont_away' is not here" in report.reasons[0]


# Runs whose version is gone


@pytest.fixture(params=["sqlite", "postgres"])
def damaged(request: pytest.FixtureRequest) -> Any:
    """The URL of a store, and what does harm to it behind the back of all rules."""
    url: str = request.getfixturevalue(f"{request.param}_url")

    async def harm(*statements: str) -> None:
        if url.startswith("sqlite"):
            connection = apsw.Connection(url.removeprefix("sqlite:///"))
            connection.pragma("foreign_keys", 0)
            for statement in statements:
                connection.execute(statement)
            connection.close()
            return
        raw = await asyncpg.connect(url)
        await raw.execute("SET session_replication_role = replica")
        for statement in statements:
            await raw.execute(statement)
        await raw.close()

    return url, harm


async def test_a_run_whose_version_is_gone_falls_back_to_where_it_began(damaged: Any) -> None:
    url, harm = damaged
    async with Engine(url) as engine:
        run = await waiting(engine)
        await harm("UPDATE run_state SET workflow_version = 7, graph_hash = 'gone'")

        report = await run.fallback()

        assert (report.version, report.other) == (7, 1)
        assert outlook(report) == KEPT


async def test_a_version_that_says_the_same_is_as_good_as_the_one_that_is_gone(damaged: Any) -> None:
    url, harm = damaged
    async with Engine(url) as engine:
        run = await waiting(engine)
        await harm("UPDATE workflow_versions SET version = 4")

        assert (await run.fallback()).other == 4


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (cont_without_middle, "second: it has happened, and the version has no such node"),
        (cont_more_input, "'y', which the run was not given"),
    ],
)
async def test_a_run_does_not_fall_back_where_its_history_does_not_fit(damaged: Any, other: Any, why: str) -> None:
    url, harm = damaged
    async with Engine(url) as engine:
        run = await waiting(engine)
        await engine.save(other)
        await harm("DELETE FROM workflow_versions WHERE version = 1", "UPDATE workflow_versions SET version = 1")

        with pytest.raises(CannotContinue) as refused:
            await run.fallback()

        assert any(why in reason for reason in refused.value.reasons)
        assert (refused.value.version, refused.value.code) == (1, "cannot_continue")


@workflow(name="cont")
def cont_turned(x: int) -> int:
    second = cont_other.named("second")(x)
    word = ask("go on?", schema=bool)
    last = cont_other.named("last")(second, word)
    return cont_total([cont_one(last), last])


async def test_what_has_happened_too_early_for_a_version_speaks_against_it(damaged: Any) -> None:
    url, harm = damaged
    async with Engine(url) as engine:
        run = await waiting(engine)
        await engine.save(cont_turned)
        await harm("DELETE FROM workflow_versions WHERE version = 1", "UPDATE workflow_versions SET version = 1")

        with pytest.raises(CannotContinue, match="cont_one: it has begun before 'last' had ended"):
            await run.fallback()


async def test_a_stream_whose_items_may_be_gone_speaks_against_a_version(damaged: Any) -> None:
    url, harm = damaged
    async with Engine(url) as engine:
        run = await engine.start(cont_streamed, n=3)
        await run.result()
        await engine.save(cont_streamed_to_more)
        await harm("DELETE FROM workflow_versions WHERE version = 1", "UPDATE workflow_versions SET version = 1")

        with pytest.raises(CannotContinue, match="nobody knows if its items are kept"):
            await run.fallback()


async def test_where_nothing_is_left_there_is_nothing_to_fall_back_to(damaged: Any) -> None:
    url, harm = damaged
    async with Engine(url) as engine:
        run = await waiting(engine)
        await harm("DELETE FROM workflow_versions")

        with pytest.raises(CannotContinue, match="version 1 of workflow 'cont': it is not in the store"):
            await run.fallback()
