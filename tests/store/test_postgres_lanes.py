"""Connections of a lane: opened one after the other, and no more of them than are needed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from perdure.errors import StoreUnavailable
from perdure.store.postgres.lanes import Lane
from perdure.store.postgres.session import Session


class Connection:
    """Stands for a connection; `Lane` asks nothing else of one."""

    is_idle = True

    def discard(self) -> None:
        self.is_idle = False

    async def close(self) -> None:
        self.is_idle = False


class Server:
    """Lets connections be opened when it is told to."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Connection]] = []

    async def connect(self) -> Session:
        opening: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self.asked.append(opening)
        return cast("Session", await opening)


async def quiet() -> None:
    """Let everything happen that can."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def lane(server: Server) -> Lane:
    return Lane(server.connect, size=4, where="here")


def connection() -> Any:
    return Connection()


async def test_who_comes_while_one_is_opened_takes_whichever_is_free_first(lane: Lane, server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(lane.take())
        await quiet()
        server.asked[0].set_result(only := connection())
        session = await first
        second, third = group.create_task(lane.take()), group.create_task(lane.take())
        await quiet()
        assert len(server.asked) == 2  # the second opens one; the third waits

        lane.give_back(session)

        assert await third is only
        server.asked[1].set_result(other := connection())
        assert await second is other
        await quiet()
    assert len(server.asked) == 2


async def test_all_who_have_none_get_one_though_nobody_gives_any_back(lane: Lane, server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        takers = [group.create_task(lane.take()) for _ in range(4)]
        for number in range(4):
            await quiet()
            assert len(server.asked) == number + 1
            server.asked[number].set_result(connection())

    assert len({id(taker.result()) for taker in takers}) == 4


async def test_who_waits_for_one_that_cannot_be_opened_hears_why(lane: Lane, server: Server) -> None:
    async def refused() -> None:
        with pytest.raises(OSError, match="refused"):
            await lane.take()

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(refused())
        await quiet()
        server.asked[0].set_exception(OSError("refused"))
    assert len(server.asked) == 1

    again = asyncio.ensure_future(lane.take())
    await quiet()
    server.asked[1].set_result(connection())
    assert (await again).is_idle


async def test_who_leaves_while_opening_leaves_the_next_to_try(lane: Lane, server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(lane.take()), group.create_task(lane.take())
        await quiet()

        first.cancel()
        await quiet()

        server.asked[1].set_result(connection())
        assert (await second).is_idle


async def test_who_leaves_when_woken_leaves_the_connection_to_others(lane: Lane, server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(lane.take())
        await quiet()
        server.asked[0].set_result(only := connection())
        session = await first
        opening, leaving, staying = [group.create_task(lane.take()) for _ in range(3)]
        await quiet()

        lane.give_back(session)
        leaving.cancel()

        assert await staying is only
        opening.cancel()


async def test_who_waits_for_a_lane_that_is_closed_hears_of_it(lane: Lane, server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(lane.take())

        async def too_late() -> None:
            with pytest.raises(StoreUnavailable, match="closed"):
                await lane.take()

        group.create_task(too_late())
        await quiet()
        await lane.close()
        server.asked[0].set_result(connection())
        await opening


async def test_connections_opened_ahead_are_there_for_as_many_calls(lane: Lane, server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(lane.open_ahead(2))
        for place in range(2):
            await quiet()
            server.asked[place].set_result(connection())
        await opening

        async with lane.session() as one, lane.session() as other:
            assert one is not other

    assert len(server.asked) == 2


async def test_what_cannot_be_opened_ahead_is_opened_when_it_is_needed(lane: Lane, server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(lane.open_ahead(3))
        await quiet()
        server.asked[0].set_result(first := connection())
        await quiet()
        server.asked[1].set_exception(StoreUnavailable("too many"))
        await opening

        async with lane.session() as one:
            assert one is first
            later = group.create_task(lane.take())
            await quiet()
            server.asked[2].set_result(second := connection())
            assert await later is second


async def test_several_may_open_ahead_at_once(lane: Lane, server: Server) -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(lane.open_ahead(3))
        while len(server.asked) < 3 or not server.asked[-1].done():
            await quiet()
            for opening in server.asked:
                if not opening.done():
                    opening.set_result(connection())
    await quiet()

    assert len(server.asked) == 3


@pytest.mark.parametrize("trouble", ["the lane is closed", "the connection is lost"])
async def test_what_is_opened_ahead_in_vain_is_not_opened_for_ever(trouble: str) -> None:
    opened: list[Connection] = []

    async def connect() -> Session:
        opened.append(new := Connection())
        await asyncio.sleep(0)
        new.is_idle = trouble == "the lane is closed"
        if trouble == "the lane is closed":
            await lane.close()
        return cast("Session", new)

    lane = Lane(connect, size=4, where="here")

    async with asyncio.timeout(5):
        await lane.open_ahead(3)

    assert len(opened) <= 3
    assert not any(connection.is_idle for connection in opened)


async def opened(lane: Lane, server: Server) -> Any:
    taking = asyncio.ensure_future(lane.take())
    await quiet()
    server.asked[-1].set_result(connection())
    return await taking


async def test_what_is_free_is_had_at_once_and_only_that(lane: Lane, server: Server) -> None:
    assert lane.take_at_once() is None
    session = await opened(lane, server)
    assert lane.take_at_once() is None

    lane.give_back(session)

    assert lane.take_at_once() is session
    lane.give_back(session)
    session.is_idle = False  # the server has closed it
    assert lane.take_at_once() is None


async def test_no_turn_is_lost_whoever_leaves_and_whenever(server: Server) -> None:
    lane = Lane(server.connect, size=1, where="here")
    session = await opened(lane, server)
    waiting = [asyncio.ensure_future(lane.take()) for _ in range(4)]
    await quiet()
    waiting[0].cancel()  # while it waits
    await quiet()
    lane.give_back(session)  # the turn is the second one's
    waiting[1].cancel()  # before it hears of that
    await quiet()

    assert await waiting[2] is session
    assert lane.take_at_once() is None
    assert not waiting[3].done()
    lane.give_back(session)
    assert await waiting[3] is session
    lane.give_back(session)
    assert lane.take_at_once() is session


async def test_one_that_went_wrong_in_an_unclear_way_is_not_lent_again(lane: Lane, server: Server) -> None:
    session = await opened(lane, server)

    lane.give_back(session, ConnectionResetError())

    assert not session.is_idle
    assert lane.take_at_once() is None
