"""Triggers: what comes from outside is taken once, in order, from where an earlier life has stopped; and schedules keep time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from perdure import (
    Context,
    Engine,
    EngineSettings,
    Tick,
    Trigger,
    TriggerInput,
    collect,
    folder,
    inbox,
    node,
    schedule,
    workflow,
)
from perdure.engine.inspect import verify_run
from perdure.errors import CursorRegressed, GraphError, InputClosed, RunFailed, WrongInputs
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.nodes.folder import Folder
from perdure.nodes.schedule import Schedule, next_times
from perdure.store.opening import open_store
from perdure.testing.loop import VirtualClock, run_virtual
from perdure.testing.proxy import StoreProxy
from perdure.testing.world import SETTINGS
from tests.crash.backends import opened_world
from tests.engine.engines import counted, engine_on, in_another_process

PATIENT = msgspec.structs.replace(
    SETTINGS, poll_seconds=86_400, recovery_seconds=86_400, heartbeat_seconds=40_000, lease_seconds=200_000
)
BERLIN = ZoneInfo("Europe/Berlin")

ticks: list[tuple[str, int]] = []
taken: list[Any] = []


@node
async def note(tick: Tick) -> str:
    ticks.append((tick.at.isoformat(), tick.missed))
    return tick.at.isoformat()


@node
async def take(ctx: Context, item: Any) -> Any:
    taken.append(item)
    return item


@workflow
def nightly_all() -> list[str]:
    return collect(note.map(schedule("30 2 * * *", tz="Europe/Berlin", catch_up="all")))


@workflow
def nightly_latest() -> list[str]:
    return collect(note.map(schedule("30 2 * * *", tz="Europe/Berlin", catch_up="latest")))


@workflow
def nightly_skip() -> list[str]:
    return collect(note.map(schedule("30 2 * * *", tz="Europe/Berlin", catch_up="skip")))


@workflow
def every_minute() -> list[str]:
    return collect(note.map(schedule(every=timedelta(minutes=1))))


@workflow
def hourly() -> list[str]:
    return collect(note.map(schedule("0 * * * *", tz="Europe/Berlin")))


@workflow
def every_hour() -> list[str]:
    return collect(note.map(schedule(every=3600, tz="Europe/Berlin")))


@workflow
def orders() -> list[int]:
    return collect(take.map(inbox.named("orders")(int)))


@workflow
def texts() -> list[str]:
    return collect(take.map(inbox.named("texts")(str, order="text")))


def seconds_from(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()


def lived(
    workflow: Any, folder: Path, *, begins: datetime, down_from: datetime, up_at: datetime, ends: datetime
) -> list[tuple[str, int]]:
    """Run a schedule in one process, let that process end, and go on in another. Return what fired."""
    ticks.clear()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        shift = begins.timestamp() - VirtualClock().now_micros() / 1_000_000
        clock = lambda: VirtualClock(wall_offset_seconds=shift)  # noqa: E731
        begun = loop.time()
        async with opened_world(f"sqlite:///{folder}/p.db", folder, settings=PATIENT, clock=clock) as world:

            async def first(engine: Engine) -> None:
                run = await engine.start(workflow, run_id="run")
                await asyncio.sleep(seconds_from(begins, down_from) - (loop.time() - begun))
                assert await verify_run(engine, run.run_id) == []
                await engine.stop()

            async def second(engine: Engine) -> None:
                run = await engine.get("run")
                await asyncio.sleep(seconds_from(begins, ends) - (loop.time() - begun))
                await run.stop()
                assert await run.result() == [at for at, _ in ticks]
                assert await verify_run(engine, run.run_id) == []

            await in_another_process(world, first)
            await asyncio.sleep(seconds_from(begins, up_at) - (loop.time() - begun))
            await in_another_process(world, second)

    run_virtual(main())
    return list(ticks)


# Schedules


def test_a_time_that_exists_twice_fires_once_and_one_that_does_not_exist_fires_when_it_is_over() -> None:
    autumn = next_times("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), 2)
    spring = next_times("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), 2)

    assert [at.isoformat() for at in autumn] == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert [at.isoformat() for at in spring] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (
            nightly_all,
            [
                ("2026-10-24T02:30:00+02:00", 0),
                ("2026-10-25T02:30:00+02:00", 0),
                ("2026-10-26T02:30:00+01:00", 0),
                ("2026-10-27T02:30:00+01:00", 0),
            ],
        ),
        (
            nightly_latest,
            [("2026-10-24T02:30:00+02:00", 0), ("2026-10-26T02:30:00+01:00", 1), ("2026-10-27T02:30:00+01:00", 0)],
        ),
        (nightly_skip, [("2026-10-24T02:30:00+02:00", 0), ("2026-10-27T02:30:00+01:00", 2)]),
    ],
    ids=["all", "latest", "skip"],
)
def test_a_downtime_of_two_days_over_a_change_of_clocks_is_caught_up_as_said(
    flow: Any, expected: list[tuple[str, int]], tmp_path: Path
) -> None:
    fired = lived(
        flow,
        tmp_path,
        begins=datetime(2026, 10, 23, 12, tzinfo=BERLIN),
        down_from=datetime(2026, 10, 24, 12, tzinfo=BERLIN),
        up_at=datetime(2026, 10, 26, 12, tzinfo=BERLIN),
        ends=datetime(2026, 10, 27, 12, tzinfo=BERLIN),
    )

    assert fired == expected


def test_an_interval_begins_with_the_run_and_is_kept_over_a_downtime(tmp_path: Path) -> None:
    begins = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)

    fired = lived(
        every_minute,
        tmp_path,
        begins=begins,
        down_from=begins + timedelta(seconds=130),
        up_at=begins + timedelta(seconds=430),
        ends=begins + timedelta(seconds=500),
    )

    assert fired == [
        ("2026-05-01T12:01:30+00:00", 0),
        ("2026-05-01T12:02:30+00:00", 0),
        ("2026-05-01T12:07:30+00:00", 4),
        ("2026-05-01T12:08:30+00:00", 0),
    ]


@pytest.mark.parametrize("flow", [hourly, every_hour], ids=["cron", "interval"])
@pytest.mark.parametrize("begins", [datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 3, 28, 22, tzinfo=UTC)])
def test_what_comes_every_hour_does_so_also_while_clocks_are_changed(
    flow: Any, begins: datetime, tmp_path: Path
) -> None:
    fired = lived(
        flow,
        tmp_path,
        begins=begins - timedelta(seconds=1),
        down_from=begins + timedelta(hours=2, minutes=30),
        up_at=begins + timedelta(hours=2, minutes=40),
        ends=begins + timedelta(hours=4, minutes=30),
    )

    first = 0 if flow is hourly else 1
    hours = [round(datetime.fromisoformat(at).timestamp() - begins.timestamp()) / 3600 for at, _ in fired]
    assert [round(hour, 2) for hour in hours] == list(range(first, 5))


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda: schedule("61 * * * *"), "no cron expression"),
        (lambda: schedule("0 0 31 2 *"), "cron expression|never comes"),
        (lambda: schedule("0 0 * * *", tz="Mars/Phobos"), "no time zone 'Mars/Phobos'"),
        (lambda: schedule(every=0), "An interval is a number of seconds above zero"),
        (lambda: schedule(every=1e-9), "An interval is a number of seconds above zero"),
        (lambda: schedule(every=1e300), "An interval is a number of seconds above zero"),
        (lambda: schedule(), "either a cron expression or an interval"),
        (lambda: schedule("0 0 * * *", every=3), "either a cron expression or an interval"),
        (lambda: schedule("0 0 * * *", catch_up="some"), "no catch_up 'some'"),  # type: ignore[arg-type]
        (lambda: folder("in", every=0), "looked at in intervals"),
        (lambda: folder("in", ""), "no pattern"),
    ],
)
def test_nonsense_is_refused_where_the_workflow_is_written(wrong: Any, what: str) -> None:
    with pytest.raises(GraphError, match=what):
        wrong()


# Inboxes


async def test_what_is_delivered_is_taken_once_and_in_order(sqlite_url: str) -> None:
    taken.clear()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(orders)
        for number in (1, 2, 2, 10):
            await engine.deliver(run.run_id, "orders", number, id=str(number), cursor=number)
        assert not await run.deliver("orders", 10, id="10", cursor=10)
        async with asyncio.timeout(5):
            while len(taken) < 3:
                await asyncio.sleep(0.01)
        assert not await run.deliver(
            "orders", 10, id="10", cursor=10
        )  # though it is taken up, and its cursor is the last
        with pytest.raises(CursorRegressed, match=r"'9'.*is not after '10'"):
            await run.deliver("orders", 9, id="9", cursor=9)
        with pytest.raises(WrongInputs, match="no cursor"):
            await run.deliver("orders", 9, id="9", cursor="nine")
        with pytest.raises(WrongInputs, match="does not fit"):
            await run.deliver("orders", "eleven", id="11", cursor=11)
        with pytest.raises(WrongInputs, match="no input 'letters'"):
            await run.deliver("letters", 1, id="1")
        assert await run.deliver("orders", 11, id="11", cursor=11)
        await run.stop()
        await run.stop()

        assert await run.result() == [1, 2, 10, 11]
        with pytest.raises(InputClosed):
            await run.deliver("orders", 12, id="12", cursor=12)
        assert await verify_run(engine, run.run_id) == []


async def test_cursors_that_are_texts_follow_each_other_as_texts(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(texts)
        await run.deliver("texts", "b", id="1", cursor="b")
        async with asyncio.timeout(5):
            while (await run.load()).commands:
                await asyncio.sleep(0.01)
        with pytest.raises(CursorRegressed):
            await run.deliver("texts", "a", id="2", cursor="a")
        await run.stop()

        assert await run.result() == ["b"]


async def test_cursors_are_compared_to_their_last_digit_also_with_those_that_have_yet_to_be_taken_up(
    store_url: str,
) -> None:
    nanoseconds = 1_700_000_000_000_000_000
    async with Engine(store_url) as engine:
        run = await engine.start(orders)
        await run.pause(grace=0)
        await run.wait()
        for number in (1, 2):
            assert await run.deliver("orders", number, id=str(number), cursor=nanoseconds + number)
        with pytest.raises(CursorRegressed):
            await run.deliver("orders", 1, id="again", cursor=nanoseconds + 1)
        await run.resume()
        await run.stop()

        assert await run.result() == [1, 2]


@node
async def weigh(parcel: dict[str, int]) -> int:
    return 2 * parcel["weight"]


@workflow
def parcels() -> list[int]:
    return collect(weigh.map(inbox.named("parcels")(dict[str, int])))


async def test_what_is_wrong_inside_is_refused_where_it_is_delivered(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(parcels)
        for wrong in ({"weight": "heavy"}, {"weight": None}, {"weight": [1]}):
            with pytest.raises(WrongInputs, match="weight"):
                await run.deliver("parcels", wrong, id="1")
        assert await run.deliver("parcels", {"weight": 3}, id="1")
        await run.stop()

        assert await run.result() == [6]


@pytest.mark.parametrize("cursor", ["one", "nan", "inf", ""])
async def test_what_is_no_cursor_is_refused_from_the_first_input_on(cursor: str, sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(orders)
        with pytest.raises(WrongInputs, match="no cursor"):
            await run.deliver("orders", 1, id="1", cursor=cursor)
        assert await run.deliver("orders", 1, id="1", cursor=1)
        await run.stop()

        assert await run.result() == [1]


async def test_ids_of_inputs_are_texts_of_any_kind(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(orders)
        for number, name in enumerate(("", "a\0b", "\ud800", "x" * 500)):
            assert await run.deliver("orders", number, id=name)
            assert not await run.deliver("orders", number, id=name)
        with pytest.raises(ValueError, match="id of an input must be a text"):
            await run.deliver("orders", 4, id=4)  # type: ignore[arg-type]
        await run.stop()

        assert await run.result() == [0, 1, 2, 3]
        assert await verify_run(engine, run.run_id) == []


class ClosedMeanwhile(StoreProxy):
    """A store where somebody stops the run just before something is delivered."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "add_command" and args[0].kind == "send" and args[0].payload["item"] == "2":
            async with Engine(self.url, workflows=(), recover=False) as other:
                stopped = await other.get(args[0].run_id)
                await stopped.stop()
                await stopped.result()
        return await call()


async def test_what_comes_too_late_is_refused_and_everything_else_is_taken(store_url: str) -> None:
    store = await open_store(store_url)
    async with Engine(ClosedMeanwhile(store).as_store) as engine:
        run = await engine.start(orders)
        assert await run.deliver("orders", 1, id="1")
        with pytest.raises(InputClosed):
            await run.deliver("orders", 2, id="2")

        assert await run.result() == [1]
    await store.close()


# Triggers of one's own


@node
class Backwards(Trigger[int, int]):
    """Gives a cursor that was there before."""

    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        for number in (1, 2, 2):
            yield TriggerInput(number, id=str(number), cursor=number)


@workflow
def backwards() -> list[int]:
    return collect(take.map(Backwards()))


acknowledged: list[str] = []


@node
class Acknowledging(Trigger[int, int]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        async def acknowledge(name: str, recorded: int) -> None:
            acknowledged.append(name)

        for number in range(cursor or 0, 3):
            yield TriggerInput(
                number,
                id=str(number),
                cursor=number + 1,
                acknowledge=lambda number=number: acknowledge(str(number), number),
            )
        await asyncio.sleep(3_600)


@workflow
def acknowledging() -> list[int]:
    return collect(take.map(Acknowledging()))


async def test_a_cursor_that_does_not_move_on_is_refused(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(backwards)
        with pytest.raises(RunFailed, match=r"CursorRegressed.*not after 2"):
            await run.result()


async def test_inputs_are_acknowledged_when_they_are_durable_and_a_trigger_can_be_stopped(sqlite_url: str) -> None:
    acknowledged.clear()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(acknowledging)
        async with asyncio.timeout(5):
            while len(acknowledged) < 3:
                await asyncio.sleep(0.01)
        assert await run.status() is RunStatus.RUNNING
        await run.stop()

        assert await run.result() == [0, 1, 2]
        assert await verify_run(engine, run.run_id) == []


@node
class WithoutCursor(Trigger[int, int]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        for number in range(3):
            await ctx.sleep(60)
            yield TriggerInput(number, id=str(number))


@node
class NumberedIds(Trigger[int, int]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        yield TriggerInput(1, id=1, cursor=1)  # type: ignore[arg-type]


@node
class Unacknowledged(Trigger[int, int]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        async def acknowledge() -> None:
            raise ConnectionError("nobody is there")

        for number in range(cursor or 0, 3):
            yield TriggerInput(number, id=str(number), cursor=number + 1, acknowledge=acknowledge)
        await asyncio.sleep(3_600)


@workflow
def without_cursor() -> list[int]:
    return collect(take.map(WithoutCursor()))


@workflow
def numbered_ids() -> list[int]:
    return collect(take.map(NumberedIds()))


@workflow
def unacknowledged() -> list[int]:
    return collect(take.map(Unacknowledged()))


fetched: list[int] = []


def fetch(after: int) -> list[int]:
    fetched.append(after)
    return [after + 1] if len(fetched) % 2 else []


@node
class FetchesInSteps(Trigger[int, int]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        last = cursor or 0
        while last < 3:
            for number in await ctx.step(fetch, last):
                last = number
                yield TriggerInput(number, id=str(number), cursor=number)
            await ctx.sleep(60)


@workflow
def fetched_in_steps() -> list[int]:
    return collect(take.map(FetchesInSteps()))


@pytest.mark.parametrize("hibernate_after", [0, 1_000], ids=["cold", "warm"])
def test_a_step_of_a_trigger_belongs_to_the_cursor_before_it(tmp_path: Path, hibernate_after: float) -> None:
    async def main() -> None:
        fetched.clear()
        async with engine_on(f"sqlite:///{tmp_path}/p.db", hibernate_after=hibernate_after) as engine:
            run = await engine.start(fetched_in_steps)

            async with asyncio.timeout(1_000):
                assert await run.result() == [1, 2, 3]
            assert fetched == [0, 1, 1, 2, 2]  # each once, however often the trigger goes on
            assert (await run.load()).steps == ()  # those before a cursor are past
            assert await verify_run(engine, run.run_id) == []

    run_virtual(main())


noted: list[int] = []


@node
class StepsAfterInputs(Trigger[int, int]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        last = cursor or 0
        while last < 3:
            if last:
                await ctx.step(noted.append, last)
                await ctx.sleep(60)
            last += 1
            yield TriggerInput(last, id=str(last), cursor=last)


@workflow
def steps_after_inputs() -> list[int]:
    return collect(take.map(StepsAfterInputs()))


def test_a_step_after_an_input_is_not_taken_again(tmp_path: Path) -> None:
    async def main() -> None:
        noted.clear()
        async with engine_on(f"sqlite:///{tmp_path}/p.db", hibernate_after=0) as engine:
            run = await engine.start(steps_after_inputs)

            assert await run.result() == [1, 2, 3]
            assert noted == [1, 2]
            assert await verify_run(engine, run.run_id) == []

    run_virtual(main())


async def slow_or_not(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@node
class StepsBeside(Trigger[int, int]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, int]]:
        beside: list[asyncio.Task[float]] = []
        for number in range(1, 4):
            beside.append(asyncio.ensure_future(ctx.step(slow_or_not, 10 / number)))
            await asyncio.sleep(1)
            yield TriggerInput(number, id=str(number), cursor=number)
        yield TriggerInput(int(sum([await step for step in beside])), id="4", cursor=4)


@workflow
def steps_beside_inputs() -> list[int]:
    return collect(take.map(StepsBeside()))


def test_a_step_that_takes_longer_than_the_next_input_is_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine_on(f"sqlite:///{tmp_path}/p.db") as engine:
            run = await engine.start(steps_beside_inputs)

            assert await run.result() == [1, 2, 3, 18]
            assert await verify_run(engine, run.run_id) == []

    run_virtual(main())


def test_a_trigger_without_cursors_sleeps_as_often_as_it_says(tmp_path: Path) -> None:
    async def main() -> None:
        begun = asyncio.get_running_loop().time()
        async with engine_on(f"sqlite:///{tmp_path}/p.db", hibernate_after=1_000) as engine:
            run = await engine.start(without_cursor)

            assert await run.result() == [0, 1, 2]
            assert asyncio.get_running_loop().time() - begun == pytest.approx(180, abs=1)

    run_virtual(main())


async def test_an_id_that_is_no_text_is_refused_before_it_is_recorded(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(numbered_ids)
        with pytest.raises(RunFailed, match="the id of an input is a text, and 1 is none"):
            await run.result()
        assert await verify_run(engine, run.run_id) == []


@node
class Volumes(Trigger[int, str]):
    """Gives what is large without end, so that something of it is on its way to be kept at any time."""

    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, str]]:
        for number in count((cursor or 0) + 1):
            yield TriggerInput("x" * 3_000_000, id=str(number), cursor=number)


@node
async def size_of(volume: str) -> int:
    return len(volume)


@workflow
def volumes() -> list[int]:
    return collect(size_of.map(Volumes()))


async def test_a_trigger_can_be_stopped_while_an_input_is_on_its_way(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        for number in range(5):
            run = await engine.start(volumes)
            await asyncio.sleep(0.1 + number * 0.013)
            await run.stop()

            assert len(await run.result()) == (await counted(run))[e.TriggerInputReceived]
            assert await verify_run(engine, run.run_id) == []


async def test_a_run_goes_on_where_an_input_cannot_be_acknowledged(sqlite_url: str) -> None:
    taken.clear()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(unacknowledged)
        async with asyncio.timeout(5):
            while len(taken) < 3:
                await asyncio.sleep(0.01)
        await run.stop()

        assert await run.result() == [0, 1, 2] == taken
        assert (await counted(run))[e.RunClaimed] == 1


# Stopping


@node
async def place_of_files() -> str:
    return "nowhere"


@node
async def pulses(ctx: Context) -> AsyncIterator[int]:
    await ctx.sleep(86_400)
    yield 1


@node
class FilesOf(Trigger[int, str]):
    place: str

    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, str]]:
        yield TriggerInput(self.place, id="1", cursor=1)
        await asyncio.sleep(3_600)


@workflow
def files_of_a_place() -> list[str]:
    return collect(take.map(FilesOf(place=place_of_files())))


@workflow
def pulses_and_orders() -> list[Any]:
    return [collect(take.map(pulses())), collect(take.map(inbox.named("orders")(int)))]


async def test_a_trigger_that_is_told_by_a_node_where_to_look_is_stopped_like_any_other(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        taken.clear()
        run = await engine.start(files_of_a_place)
        async with asyncio.timeout(10):
            while not taken:
                await asyncio.sleep(0.01)
            await run.stop()
            assert await run.result() == ["nowhere"]


async def test_stopping_a_run_does_not_wait_for_generators_that_sleep(sqlite_url: str) -> None:
    async with Engine(sqlite_url, settings=EngineSettings(hibernate_after=0)) as engine:
        run = await engine.start(pulses_and_orders)
        async with asyncio.timeout(10):
            while await run.status() is not RunStatus.SUSPENDED:
                await asyncio.sleep(0.02)
        await run.stop()
        async with asyncio.timeout(10):
            while (await run.load()).commands:
                await asyncio.sleep(0.02)
        with pytest.raises(InputClosed):
            await run.deliver("orders", 1, id="1")


async def test_triggers_are_stopped_also_by_those_who_do_not_have_their_code(sqlite_url: str) -> None:
    acknowledged.clear()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(acknowledging)
        async with asyncio.timeout(5):
            while len(acknowledged) < 3:
                await asyncio.sleep(0.01)
        async with Engine(sqlite_url, workflows=(), recover=False) as other:
            await (await other.get(run.run_id)).stop()
        async with asyncio.timeout(10):
            assert await run.result() == [0, 1, 2]


# Folders


@workflow
def incoming(path: str) -> list[str]:
    return collect(take.map(folder("in", "*.csv", every=0.05, settled=0.1)))


async def test_each_file_is_given_once_also_by_another_engine(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "in"
    place.mkdir()

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(taken) < count:
                await asyncio.sleep(0.02)

    taken.clear()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(incoming, path=str(place))
        for name in ("b.csv", "notes.txt", "a.csv"):
            (place / name).write_text("1")
            await asyncio.sleep(0.02)
        await until(2)
    (place / "0.csv").write_text("1")
    async with Engine(sqlite_url) as engine:
        run = await engine.get(run.run_id)
        await until(3)
        await asyncio.sleep(0.3)
        await run.stop()

        assert await run.result() == ["in/b.csv", "in/a.csv", "in/0.csv"] == taken
        assert await verify_run(engine, RunId(run.run_id)) == []


class Clock:
    """All that a trigger needs of a context which only asks for the time."""

    def __init__(self, ahead: float = 0.0) -> None:
        self._ahead = timedelta(seconds=ahead)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead


async def seen_in(place: Path, pattern: str = "*", *, most: int, after: tuple[int, str] | None = None) -> list[str]:
    """Return the first files that a folder has, from one on that was given before, in the order in which they came."""
    wanted = Folder()
    wanted.path, wanted.pattern, wanted.every, wanted.settled = str(place), pattern, 0.01, 0.0
    found: list[str] = []
    async with asyncio.timeout(5):
        async for arrived in wanted.inputs(Clock(ahead=10), after):
            found.append(str(Path(arrived.data).relative_to(place)))
            if len(found) == most:
                break
    return found


async def test_files_are_given_whatever_else_is_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "beyond").symlink_to(tmp_path / "file" / "beyond")
    (tmp_path / "folder").mkdir()
    (tmp_path / os.fsdecode(b"\xff")).touch()
    (tmp_path / "file").touch()

    assert await seen_in(tmp_path, most=1) == ["file"]


async def test_a_link_comes_when_it_is_made_however_old_its_file_is(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "in").mkdir()
    await asyncio.sleep(0.05)
    (tmp_path / "in" / "first").touch()
    last = (tmp_path / "in" / "first").stat().st_ctime_ns
    await asyncio.sleep(0.05)
    (tmp_path / "in" / "link").symlink_to(tmp_path / "old")

    assert await seen_in(tmp_path / "in", most=1, after=(last, "first")) == ["link"]


async def test_files_in_folders_inside_are_given_with_their_folders(tmp_path: Path) -> None:
    (tmp_path / "monday").mkdir()
    (tmp_path / "monday" / "a.csv").touch()

    assert await seen_in(tmp_path, "*/*.csv", most=1) == ["monday/a.csv"]


async def test_no_file_is_given_while_others_may_come_at_the_same_time(tmp_path: Path) -> None:
    wanted = Folder()
    wanted.path, wanted.every, wanted.settled = str(tmp_path), 0.001, 0.0
    (tmp_path / "b").touch()
    inputs = wanted.inputs(Clock(), None)

    first = await anext(inputs)

    assert datetime.now(UTC).timestamp() * 1e9 - (first.cursor or (0, ""))[0] > 10e6  # a tick of the clock
    await inputs.aclose()  # type: ignore[attr-defined]


async def test_times_that_were_missed_are_counted_without_holding_up_others() -> None:
    class Awake(Clock):
        async def sleep(self, until: datetime) -> None:
            """It is that time."""

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    wanted = Schedule()
    wanted.every = 0.001
    async with asyncio.TaskGroup() as group:
        working = group.create_task(others())
        fired = await anext(wanted.inputs(Awake(), datetime.now(UTC) - timedelta(minutes=1)))
        working.cancel()

    assert fired.data.missed >= 59_999
    assert turns >= 50
