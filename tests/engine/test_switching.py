"""A run goes back and follows another version of its workflow: what depends on the node runs by that, and nothing else does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Context, Engine, EngineSettings, Run, Stream, ask, collect, node, workflow
from perdure.engine.inspect import verify_run
from perdure.engine.stored.dumping import dump_of, with_earlier
from perdure.errors import (
    AliasNotFound,
    BundleDamaged,
    CannotContinue,
    CannotGoBack,
    RunFailed,
    RunIdTaken,
    VersionNotFound,
)
from perdure.ids import Seq
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.bundles import BundledBlob, BundleReader, BundleWriter
from perdure.store.opening import open_store
from perdure.store.shapes import WorkflowVersion
from tests.engine.damage import Damage
from tests.engine.engines import AtOnce, assert_whole, log_of

ran: Counter[str] = Counter()
keys: dict[str, list[str]] = {}


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    ran.clear()
    keys.clear()


def note(ctx: Context) -> None:
    ran[ctx.node_id] += 1
    keys.setdefault(ctx.node_id, []).append(ctx.idempotency_key)


@node
async def sw_add(ctx: Context, x: int, y: int = 1) -> int:
    note(ctx)
    return x + y


@node
async def sw_broken(ctx: Context, x: int, by: int = 0) -> int:
    note(ctx)
    raise ValueError("broken")


@node
async def sw_sound(ctx: Context, x: int, by: int = 100) -> int:
    note(ctx)
    return x + by


@node(once=True)
async def sw_pay(ctx: Context, x: int) -> int:
    note(ctx)
    return x


@node
async def sw_many(ctx: Context, n: int) -> AsyncIterator[int]:
    note(ctx)
    for number in range(n):
        yield number


@node
async def sw_broken_list(ctx: Context, xs: list[int]) -> list[int]:
    note(ctx)
    raise ValueError("broken")


@node
async def sw_list(ctx: Context, n: int) -> list[int]:
    note(ctx)
    return [10 * number for number in range(n)]


@workflow(name="sw")
def sw_first(x: int) -> int:
    one = sw_add.named("one")(x)
    two = sw_add.named("two")(one)
    three = sw_broken.named("three")(two)
    four = sw_add.named("four")(three)
    return sw_add.named("five")(four, one)


@workflow(name="sw")
def sw_second(x: int) -> int:
    one = sw_add.named("one")(x)
    two = sw_add.named("two")(one)
    three = sw_sound.named("three")(two)
    four = sw_add.named("four")(three)
    more = sw_add.named("four_b")(three, 1_000)
    return sw_add.named("five")(sw_add.named("joined")(four, more), one)


@workflow(name="sw")
def sw_other_one(x: int) -> int:
    one = sw_add.named("one")(x, 7)
    two = sw_add.named("two")(one)
    three = sw_sound.named("three")(two)
    four = sw_add.named("four")(three)
    return sw_add.named("five")(four, one)


@workflow(name="sw")
def sw_the_other_way_round(x: int) -> int:
    two = sw_add.named("two")(x)
    one = sw_add.named("one")(two)
    three = sw_broken.named("three")(one)
    four = sw_add.named("four")(three)
    return sw_add.named("five")(four, one)


@workflow(name="sw")
def sw_like_second(x: int) -> int:
    one = sw_add.named("one")(x)
    two = sw_add.named("two")(one)
    three = sw_sound.named("three")(two)
    four = sw_add.named("four")(three)
    more = sw_add.named("four_b")(three, 1_000)
    return sw_add.named("five")(sw_add.named("joined")(four, more), two)


async def failed(engine: Engine, flow: Any = sw_first, **inputs: Any) -> Run[Any]:
    run = await engine.start(flow, **(inputs or {"x": 1}))
    with pytest.raises(RunFailed):
        await run.result()
    return run


async def mended(engine: Engine) -> Run[Any]:
    """A run that has failed, and a version of its workflow by which it would not have."""
    run = await failed(engine)
    await engine.save(sw_second)
    return run


async def switched(engine: Engine) -> Run[Any]:
    """A run that has failed, and then ended by another version of its workflow."""
    run = await mended(engine)
    await run.jump("three", version=2)
    await run.result()
    return run


async def test_a_node_and_what_depends_on_it_run_by_the_other_version_and_nothing_else(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await mended(engine)
        assert ran == Counter(one=1, two=1, three=1)

        preview = await run.preview("three", version=2)
        branch = await run.jump("three", version=2, reason="mended", by="me")

        assert await run.result() == (3 + 100 + 1) + (3 + 100 + 1_000) + 2
        assert ran == Counter(one=1, two=1, three=2, four=1, four_b=1, joined=1, five=1)
        assert set(preview.runs) == {"three", "four", "four_b", "joined", "five"}
        assert (set(preview.kept), preview.given_up) == ({"one", "two"}, None)
        assert len(set(keys["three"])) == 2, "it is another piece of work"
        state = await run.state()
        assert (branch, state.version, state.branch_id) == (2, 2, 2)
        assert [found.version for found in await run.branches()] == [1, 2]
        log = await log_of(run)
        created, activated = log[0].event, [entry.event for entry in log if isinstance(entry.event, e.BranchActivated)]
        assert isinstance(created, e.RunCreated)
        assert created.version == 1
        assert [(event.version, event.graph_hash) for event in activated] == [(2, state.graph_hash)]
        await assert_whole(engine, run)
        assert [found.findings for found in await engine.doctor(run.run_id)] == [()]


async def test_what_has_failed_is_tried_again_by_the_other_version(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await mended(engine)
        await engine.alias("sw", "mended", to=2)

        assert (await run.preview(version="mended")).given_up is None
        await run.retry(version="mended")

        assert await run.result() == 1_209
        assert ran == Counter(one=1, two=1, three=2, four=1, four_b=1, joined=1, five=1)
        assert (await run.state()).version == 2
        await assert_whole(engine, run)


async def test_what_stays_has_to_be_the_same(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await failed(engine)
        await engine.save(sw_other_one)
        before = await log_of(run)

        with pytest.raises(CannotContinue) as refused:
            await run.jump("three", version=2)
        with pytest.raises(CannotContinue):
            await run.retry(version=2)

        assert any(reason.startswith("one: its data (y) changed") for reason in refused.value.reasons)
        assert "one" in ((await run.preview("three", version=2)).given_up or "")
        assert await log_of(run) == before
        await run.jump("one", version=2)
        assert await run.result() == 118
        assert ran == Counter(one=2, two=2, three=2, four=1, five=1)
        await assert_whole(engine, run)


async def test_a_wish_that_cannot_be_is_refused(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await failed(engine)

        with pytest.raises(VersionNotFound):
            await run.jump("three", version=2)
        with pytest.raises(AliasNotFound):
            await run.jump("three", version="mended")
        await engine.save(sw_second)
        with pytest.raises(CannotGoBack, match="there is no node 'six'"):
            await run.jump("six", version=2)
        with pytest.raises(CannotGoBack, match="items are chosen of the version that it follows"):
            await run.jump("three", version=2, items=[1])
        assert (await run.state()).version == 1
        await assert_whole(engine, run)


async def test_the_version_that_it_follows_is_no_other_one(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await engine.save(sw_first)
        run = await engine.start(sw_second, x=1)
        await run.result()
        ran.clear()

        await run.jump("four", version=2)

        await run.result()
        assert ran == Counter(four=1, joined=1, five=1)
        assert [entry.event.version for entry in await log_of(run) if isinstance(entry.event, e.BranchActivated)] == [
            None
        ]


@workflow(name="sw_asks")
def sw_asks(x: int) -> int:
    one = sw_add.named("one")(x)
    gone = sw_add.named("gone")(x)
    word = ask.named("may")("go on?", schema=int)
    return sw_add.named("end")(sw_add.named("sum")(one, gone), word)


@workflow(name="sw_asks")
def sw_asks_no_more(x: int) -> int:
    one = sw_add.named("one")(x)
    return sw_add.named("end")(sw_add.named("sum")(one, sw_add.named("new")(x, 50)), 7)


async def asking_no_more(engine: Engine) -> Run[Any]:
    """A run that has asked something, and then ended by another version of its workflow, which does not."""
    run = await engine.start(sw_asks, x=1)
    await run.wait()
    await engine.save(sw_asks_no_more)
    await run.jump("sum", version=2)
    await run.result()
    return run


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_run_that_waits_takes_another_version(store_url: str, is_paused: bool) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(sw_asks, x=1)
        assert (await run.wait()).status is RunStatus.AWAITING_INPUT
        await engine.save(sw_asks_no_more)
        if is_paused:
            await run.pause()
            assert (await run.wait()).status is RunStatus.PAUSED

        await run.jump("sum", version=2)
        if is_paused:
            stored = await run.load()
            assert (stored.run.status, stored.run.version) == (RunStatus.PAUSED, 2)
            assert ran == Counter(one=1, gone=1, sum=1)
            await run.resume()

        assert await run.result() == 2 + 51 + 7
        assert ran == Counter(one=1, gone=1, sum=2, new=1, end=1)
        assert await run.questions() == []
        await assert_whole(engine, run)


sw_gate: list[int] = []


@node
async def sw_held(ctx: Context, x: int) -> int:
    while not sw_gate:
        await asyncio.sleep(0.01)
    return x + 1


@workflow(name="sw_gated")
def sw_gated(x: int) -> int:
    return sw_held.named("held")(sw_add.named("one")(x))


@workflow(name="sw_gated")
def sw_gated_otherwise(x: int) -> int:
    return sw_sound.named("held")(sw_add.named("one")(x))


async def test_a_run_that_moves_takes_none(store_url: str) -> None:
    sw_gate.clear()
    async with Engine(store_url) as engine:
        run = await engine.start(sw_gated, x=1)
        await engine.save(sw_gated_otherwise)
        async for entry in run.events():
            if isinstance(entry.event, e.NodeCompleted):
                break

        with pytest.raises(CannotGoBack, match="it is running, and a run takes another version while it rests"):
            await run.jump("held", version=2)
        assert "while it rests" in ((await run.preview("held", version=2)).given_up or "")
        sw_gate.append(1)
        assert await run.result() == 3
        assert (await run.state()).version == 1
        await assert_whole(engine, run)


async def test_a_run_goes_back_to_its_first_version_under_other_keys(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await asking_no_more(engine)

        await run.jump("sum", version=1)
        assert (await run.wait()).status is RunStatus.AWAITING_INPUT
        await run.answer((await run.questions())[0].interaction_id, 5)

        assert await run.result() == 2 + 2 + 5
        assert ran == Counter(one=1, gone=2, sum=3, new=1, end=2)
        assert len(set(keys["gone"])) == 2, "nobody knows whether it is the same piece of work"
        assert (await run.state()).version == 1
        await assert_whole(engine, run)


async def test_what_it_was_on_another_version_is_seen_compared_and_forked_but_not_restored(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await mended(engine)
        end = (await run.state()).last_seq
        await run.jump("three", version=2)
        await run.result()

        then = await run.at(end)
        difference = await run.diff(then)
        with pytest.raises(CannotGoBack, match="it followed version 1 at that place, and follows version 2"):
            await run.promote(1)
        with pytest.raises(CannotGoBack, match="with `version=1`"):
            await run.restore(end)
        fork = await run.fork(at=end, version=2)

        assert (then.run.version, then.run.status) == (1, RunStatus.FAILED)
        assert (await run.at_end_of(1)).run.version == 1
        assert (await run.at_end_of(2)).run.version == 2
        assert "three" in str(difference)
        assert await fork.result() == 1_209
        assert [found.branch for found in await run.branches()] == [1, 2]
        mine = (await run.state()).last_seq
        await run.jump("five")
        await run.result()
        assert await run.restore(mine) == 4
        assert (await run.state()).status is RunStatus.COMPLETED
        await assert_whole(engine, run)


async def test_what_must_not_be_repeated_is_not(store_url: str) -> None:
    @workflow(name="sw_once")
    def first(x: int) -> int:
        return sw_broken.named("end")(sw_pay.named("pay")(sw_add.named("one")(x)))

    @workflow(name="sw_once")
    def second(x: int) -> int:
        return sw_sound.named("end")(sw_pay.named("pay")(sw_add.named("one")(x)))

    async with Engine(store_url) as engine:
        run = await failed(engine, first)
        await engine.save(second)

        with pytest.raises(CannotContinue, match="pay: it must run at most once, and has begun"):
            await run.jump("one", version=2)
        await run.jump("pay", outputs=5, version=2)

        assert await run.result() == 105
        assert ran == Counter(one=1, pay=1, end=2)
        await assert_whole(engine, run)


async def test_a_generator_may_be_something_else_there_and_the_other_way_round(store_url: str) -> None:
    @workflow(name="sw_streams")
    def first(n: int) -> Any:
        twos = sw_add.named("each").map(sw_many.named("source")(n))
        return sw_broken_list.named("end")(collect(twos))

    @workflow(name="sw_streams")
    def second(n: int) -> Any:
        twos = sw_add.named("each").map(sw_list.named("source")(n))
        return collect(twos)

    async with Engine(store_url) as engine:
        run = await failed(engine, first, n=3)
        await engine.save(second)

        await run.jump("source", version=2)
        assert await run.result() == [1, 11, 21]
        await assert_whole(engine, run)

        await run.jump("source", version=1)
        with pytest.raises(RunFailed):
            await run.result()
        assert ran == Counter(source=3, each=9, end=2)
        await assert_whole(engine, run)


async def test_outputs_end_a_run_at_once_on_the_other_version(store_url: str) -> None:
    @workflow(name="sw_said")
    def first(x: int) -> int:
        return sw_broken.named("end")(sw_add.named("one")(x))

    @workflow(name="sw_said")
    def second(x: int) -> int:
        return sw_sound.named("end")(sw_add.named("one")(x))

    async with Engine(store_url) as engine:
        run = await failed(engine, first)
        await engine.save(second)

        await run.jump("end", outputs=9, version=2)

        assert await run.result() == 9
        assert ran == Counter(one=1, end=1)
        assert [found.branch for found in await run.branches()] == [1, 2]
        await assert_whole(engine, run)


async def switched_twice(engine: Engine) -> Run[Any]:
    """Return a run that has followed the first version, then the second, and then the second on another branch."""
    run = await switched(engine)
    await run.jump("four")
    await run.result()
    return run


@pytest.mark.parametrize("is_compact", [False, True])
async def test_it_is_taken_with_all_its_versions_to_another_database(
    store_url: str, tmp_path: Path, is_compact: bool
) -> None:
    bundle = tmp_path / "run.bundle"
    async with Engine(store_url) as engine:
        run = await switched_twice(engine)
        expected = await run.result()
        first = await run.at_end_of(1)
        if is_compact:
            last = (await run.state()).last_seq
            while await engine.store.compact_log(run.run_id, through=Seq(last - 3), most=7):
                pass
        await engine.export(run.run_id, bundle)
    async with Engine(f"sqlite:///{tmp_path}/other.db") as engine:
        await engine.save(sw_other_one)
        await engine.save(sw_second)
        imported = await engine.import_run(bundle)
        there = await engine.get(run.run_id)

        assert await there.result() == expected
        assert (await there.state()).version == 2
        assert [found.version for found in await there.branches()] == [3, 2, 2]
        assert [found.version for found in await engine.versions("sw")] == [1, 2, 3]
        before = await there.at_end_of(1)
        assert (before.run.version, before.run.graph_hash) == (3, first.run.graph_hash)
        with pytest.raises(CannotGoBack, match="it followed version 3"):
            await there.promote(1)
        assert await verify_run(engine, run.run_id) == []
        dump = await engine.store.dump_run(run.run_id)
        assert dump is not None
        assert dump_of(await with_earlier(dump, engine.store)).earlier.keys() == {first.run.graph_hash}
        fork = await imported.fork(at=first.run.last_seq)
        assert (await fork.state()).version == 3


async def test_a_stretch_that_its_own_version_does_not_allow_is_noticed_in_a_bundle(
    store_url: str, tmp_path: Path
) -> None:
    bundle, altered = tmp_path / "run.bundle", tmp_path / "altered.bundle"
    async with Engine(store_url) as engine:
        run = await switched_twice(engine)
        await engine.export(run.run_id, bundle)
        saved = await engine.save(sw_the_other_way_round)
        other = await engine.store.load_version("sw", saved.version)
    assert other is not None

    def lies(record: Any) -> Any:
        """The run began with a version by which it would have gone in another order."""
        if isinstance(record, WorkflowVersion) and record.version == 1:
            return replace(other, version=1)
        if isinstance(record, e.Recorded) and isinstance(record.event, e.RunCreated):
            return replace(record, event=replace(record.event, graph_hash=other.graph_hash))
        return record

    rewrite(bundle, altered, lies)

    async with Engine(f"sqlite:///{tmp_path}/other.db") as engine:
        with pytest.raises(BundleDamaged, match="the run in it is not whole"):
            await engine.import_run(altered)
        rewrite(bundle, altered, lambda record: _with_number(record, 7))
        with pytest.raises(BundleDamaged, match="holds version 7, which its run has never followed"):
            await engine.import_run(altered)
        rewrite(bundle, altered, lambda record: _with_number(record, 2))
        with pytest.raises(BundleDamaged, match="it holds two versions 2"):
            await engine.import_run(altered)
        rewrite(bundle, altered, lambda record: None if _with_number(record, 0) is not record else record)
        await engine.import_run(altered)  # as it was written before all versions were in it
        assert await verify_run(engine, run.run_id) == []
        assert [found.version for found in await engine.versions("sw")] == [2]


def _with_number(record: Any, number: int) -> Any:
    is_first = isinstance(record, WorkflowVersion) and record.version == 1
    return replace(record, version=number) if is_first else record


def rewrite(source: Path, target: Path, change: Callable[[Any], Any]) -> None:
    """Write a bundle again with other records, or without those that become None."""
    with source.open("rb") as old, target.open("wb") as new:
        reader = BundleReader(old, str(source))
        writer = BundleWriter(new, reader.head)
        for part in reader.parts():
            if isinstance(part, BundledBlob):
                writer.add_blob(part.use, part.chunks)
            else:
                writer.add([changed for record in part if (changed := change(record)) is not None])
        writer.end()


async def test_a_node_that_is_left_is_idle(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await asking_no_more(engine)

        nodes = {node.node_id: node.status for node in (await run.load()).nodes}

        assert nodes["gone"] is nodes["may"] is NodeStatus.IDLE  # type: ignore[index]


async def test_who_starts_it_again_as_it_was_started_gets_it(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(sw_first, run_id="mine", x=1)
        with pytest.raises(RunFailed):
            await run.result()
        await engine.save(sw_second)
        await run.jump("three", version=2)
        await run.result()

        again = await engine.start(sw_first, run_id="mine", x=1)

        assert await again.result() == 1_209
        with pytest.raises(RunIdTaken):
            await engine.start(sw_other_one, run_id="mine", x=1)


async def test_the_first_version_may_go(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await failed(engine)
        end = (await run.state()).last_seq
        await engine.save(sw_second)
        await run.jump("three", version=2)
        await run.result()

        await engine.delete_version("sw", 1)

        await assert_whole(engine, run)
        assert [found.findings for found in await engine.doctor(run.run_id)] == [()]
        assert (await run.at(end)).run.version == 1
        with pytest.raises(VersionNotFound):
            await run.fork(at=end)


async def test_it_is_archived_and_comes_back(store_url: str, tmp_path: Path) -> None:
    async with Engine(store_url, settings=EngineSettings(archive_folder=str(tmp_path / "archive"))) as engine:
        run = await switched(engine)

        await engine.archive(older_than=timedelta(0))
        await engine.delete_version("sw", 1)
        back = await engine.unarchive(run.run_id)

        assert await back.result() == 1_209
        assert [found.version for found in await engine.versions("sw")] == [1, 2]
        await assert_whole(engine, back)


async def test_a_run_with_an_audit_journal_is_forked_instead(store_url: str) -> None:
    async with Engine(store_url, journal="audit") as engine:
        run = await mended(engine)

        with pytest.raises(CannotGoBack, match="fork it with the other version"):
            await run.jump("three", version=2)


async def test_of_three_wishes_one_comes_true(store_url: str) -> None:
    store = AtOnce(await open_store(store_url))
    async with Engine(store.as_store) as engine:
        run = await mended(engine)
        store.all_have_looked = asyncio.Barrier(3)

        async with asyncio.timeout(30):
            found = await asyncio.gather(
                run.jump("three", version=2, command_id="a"),
                run.jump("three", version=2, command_id="b"),
                run.retry(command_id="c"),
                return_exceptions=True,
            )

        assert sum(isinstance(one, int) for one in found) == 1, found
        assert len(await run.branches()) == 2
        branch = next(one for one in found if isinstance(one, int))
        assert branch == 2
        await run.wait()
        await assert_whole(engine, run)
    await store.inner.close()


async def test_a_wish_that_is_asked_for_twice_comes_true_once(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await mended(engine)

        first = await run.jump("three", version=2, command_id="mended")
        await run.result()
        second = await run.jump("three", version=2, command_id="mended")

        assert first == second == 2
        assert len(await run.branches()) == 2


async def test_arguments_go_to_the_node_of_the_other_version(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await mended(engine)

        await run.jump("three", inputs={"by": 500}, version=2)

        assert await run.result() == (3 + 500 + 1) + (3 + 500 + 1_000) + 2
        await assert_whole(engine, run)


@workflow(name="sw_fed")
def sw_fed(x: int, numbers: Stream[int]) -> Any:
    return {"sum": sw_total.named("sum")(numbers), "one": sw_add.named("one")(x)}


@workflow(name="sw_fed")
def sw_fed_no_more(x: int) -> Any:
    return {"one": sw_add.named("one")(x), "two": ask.named("two")("how many?", schema=int)}


@node
async def sw_total(numbers: Stream[int]) -> int:
    return sum([number async for number in numbers])


async def test_what_was_sent_to_an_input_that_is_gone_wakes_nobody(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0.05)) as engine:
        run = await engine.start(sw_fed, x=1)
        await run.send("numbers", 1)
        assert (await run.wait()).status in (RunStatus.SUSPENDED, RunStatus.AWAITING_INPUT)
        await run.pause()
        assert (await run.wait()).status is RunStatus.PAUSED
        await run.send("numbers", 2)
        await engine.save(sw_fed_no_more)

        await run.jump("one", version=2)
        assert (await run.load()).commands == ()
        await run.resume()

        assert (await run.wait()).status is RunStatus.AWAITING_INPUT
        await run.answer((await run.questions())[0].interaction_id, 3)
        assert await run.result() == {"one": 2, "two": 3}
        await assert_whole(engine, run)


async def test_the_doctor_has_it_go_on_with_the_version_that_it_follows(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(sw_asks, x=1)
        await run.wait()
        await engine.save(sw_asks_no_more)
        await run.jump("sum", version=2, reason="asks no more")
        expected = await run.result()
        await Damage(store_url).set_run(run.run_id, workflow_version=99, graph_hash="gone")

        seen = await run.doctor()
        diagnosis = await run.doctor(fix=True)

        assert [found.code for found in seen.findings] == ["E2"]
        assert "version 2, which it follows by its log" in seen.findings[0].remedy
        assert diagnosis.is_healthy
        assert (await run.state()).version == 2
        assert [found.version for found in await run.branches()] == [1, 2, 2]
        assert await run.result() == expected
        await assert_whole(engine, run)


async def test_the_doctor_has_it_go_on_with_the_last_version_that_fits(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await switched_twice(engine)
        await engine.save(sw_like_second)
        await run.jump("five", version=3)
        await run.result()
        await Damage(store_url).execute("DELETE FROM workflow_versions WHERE workflow = 'sw' AND version = 3")

        diagnosis = await run.doctor(fix=True)

        assert diagnosis.is_healthy
        assert "version 2, which it has followed before" in diagnosis.findings[0].remedy
        assert (await run.state()).version == 2
        assert [found.version for found in await run.branches()] == [1, 2, 2, 3, 2]
