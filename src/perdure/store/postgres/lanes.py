"""The connections of a store, kept apart by what waits for what: commits, heartbeats and everything else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.clock import Clock
from perdure.errors import PerdureError, StoreUnavailable
from perdure.ids import Chance, SystemChance
from perdure.store.postgres.failures import Trouble, translate, trouble_of
from perdure.store.postgres.session import CALL_SECONDS, Session

T = TypeVar("T")

BUSY_TRIES = 8
LOST_TRIES = 3
LONGEST_PAUSE_SECONDS = 0.5


class Lane:
    """A few connections that are opened when needed, one after the other, and used by one call at a time.

    Who comes while one is being opened takes that, or whichever is free first: a call takes less time than opening a connection
    for it does, so that few calls at once need few connections.
    """

    def __init__(self, connect: Callable[[], Awaitable[Session]], *, size: int, where: str) -> None:
        self._connect = connect
        self._free = size
        """How many more may have a connection at once."""
        self._turns: deque[asyncio.Future[None]] = deque()
        """Those who wait for somebody to give one back."""
        self._idle: list[Session] = []
        self._lent = 0
        self._is_opening = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Those who wait until there may be a connection for them, or until they may open one."""
        self._where = where
        self._is_closed = False

    def session(self) -> _Loan:
        """Lend a connection, for as long as a block lasts."""
        return _Loan(self)

    async def take(self) -> Session:
        """Wait for a turn and return a connection, to be given back."""
        if self._free:
            self._free -= 1
        else:
            await self._turn()
        try:
            session = await self._take()
        except BaseException:
            self._pass_turn()
            raise
        self._lent += 1
        return session

    def take_at_once(self) -> Session | None:
        """As `take`, if nobody has to be waited for; else None."""
        if not self._free or self._is_closed or (session := self._idle_session()) is None:
            return None
        self._free -= 1
        self._lent += 1
        return session

    async def open_ahead(self, number: int) -> None:
        """Have so many connections before there are calls for them, or as many as can be had at the first try."""
        for _ in range(number - self._lent - len(self._idle)):
            if self._is_opening or self._is_closed or not self._free:
                return
            self._free -= 1
            try:
                session = await self._open()
            except Exception:  # whoever needs one opens it, and hears what is wrong
                self._pass_turn()
                return
            except BaseException:
                self._pass_turn()
                raise
            self._lent += 1
            self.give_back(session)

    def give_back(self, session: Session, error: BaseException | None = None) -> None:
        """Take a connection back, and let the next one have its turn. One whose call was cut short or went wrong in an unclear
        way is not lent again."""
        self._pass_turn()
        self._lent -= 1
        # Whoever takes it looks whether it is still there.
        is_sound = error is None or (_leaves_it_sound(error) and session.is_idle)
        if is_sound and not self._is_closed:
            self._idle.append(session)
            self._wake_one()
        else:
            session.discard()

    async def close(self) -> None:
        """End every connection; if the caller leaves meanwhile, those that are left are cut off."""
        self._is_closed = True
        try:
            while self._idle:
                await self._idle[-1].close()
                self._idle.pop()
        finally:
            while self._idle:
                self._idle.pop().discard()

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_turn()
            raise

    def _pass_turn(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _take(self) -> Session:
        while True:
            if self._is_closed:
                raise StoreUnavailable(f"The store {self._where} is closed.")
            if (session := self._idle_session()) is not None:
                return session
            if not self._is_opening:
                return await self._open()
            await self._woken()

    def _idle_session(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            if session.is_idle:
                return session
            session.discard()
        return None

    async def _open(self) -> Session:
        self._is_opening = True
        try:
            return await self._connect()
        except Exception as error:
            # Whoever would try next would hear the same, after as long a time.
            while self._waiting:
                self._wake_one(error)
            raise
        finally:
            self._is_opening = False
            while self._waiting:
                self._wake_one()  # the first of those who still have no connection opens the next

    async def _woken(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._wake_one()  # somebody else has use for what it was woken for
            raise

    def _wake_one(self, error: Exception | None = None) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.done():
                continue
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)
            return


class _Loan:
    """A connection for as long as a block lasts."""

    __slots__ = ("_lane", "_session")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._session: Session | None = None

    async def __aenter__(self) -> Session:
        self._session = await self._lane.take()
        return self._session

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        assert self._session is not None
        self._lane.give_back(self._session, error)


def _leaves_it_sound(error: BaseException) -> bool:
    return isinstance(error, PerdureError) or trouble_of(error) in (Trouble.REFUSED, Trouble.BUSY, Trouble.BLOCKED)


class Caller:
    """Makes calls that may be repeated: reads, and writes that have no effect the second time."""

    def __init__(self, where: str, clock: Clock, chance: Chance | None = None) -> None:
        self._where = where
        self._clock = clock
        self._chance = chance or SystemChance()

    async def call(self, lane: Lane, work: Callable[[Session], Awaitable[T]], *, seconds: float | None = None) -> T:
        """Do `work` on a connection, again if others were in the way or the connection was lost, a few times."""
        lost = busy = 0
        while True:
            try:
                return await self.once(lane, work, seconds=seconds)
            except PerdureError:
                raise
            except Exception as error:  # Whatever the driver raises is judged here, and leaves as an error of ours.
                trouble = trouble_of(error)
                lost += trouble is Trouble.LOST
                busy += trouble is Trouble.BUSY
                may_repeat = trouble in (Trouble.LOST, Trouble.BUSY) and not isinstance(error, TimeoutError)
                if not may_repeat or lost >= LOST_TRIES or busy >= BUSY_TRIES:
                    raise translate(error, self._where) from error
                await self.pause(lost + busy)

    async def once(self, lane: Lane, work: Callable[[Session], Awaitable[T]], *, seconds: float | None = None) -> T:
        """Do `work` on a connection, within the time that any call may take. What the driver raises is passed on."""
        async with asyncio.timeout(seconds or CALL_SECONDS), lane.session() as session:
            return await work(session)

    async def pause(self, failures: int) -> None:
        """Wait a little, longer after more failures, and not the same time as everybody else."""
        longest = min(0.01 * 2**failures, LONGEST_PAUSE_SECONDS)
        await self._clock.sleep(self._chance.uniform(longest / 4, longest))
