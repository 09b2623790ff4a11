"""Clients that start small runs without pause, whatever happens to the engines they ask."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

from perdure.journal.states import TERMINAL, RunStatus
from perdure.store.base import Store
from perdure.store.shapes import RunDump
from tests.torture import checks
from tests.torture.processes import Child, ProcessGone, until
from tests.torture.programs.workloads import diamond_result

ANSWER_SECONDS = 60.0
MAX_MILLIS = 200


class Clients:
    """Each client starts one run after the other, at an engine of its choice; where that one fails it, at another one.

    A start is repeated under the same id until it is acknowledged: it must not matter whether the first one counted.
    """

    def __init__(self, engines: Callable[[], Sequence[Child]], *, seed: int) -> None:
        self.acknowledged: list[str] = []
        self.asked = 0
        self.repeated = Counter[str]()
        self._engines = engines
        self._chance = random.Random(seed)
        self._is_over = False

    def stop(self) -> None:
        """Let every client end with the run it is about to start."""
        self._is_over = True

    async def work(self, *, pause_seconds: float) -> None:
        """Be one client until told to stop."""
        while not self._is_over:
            self.asked += 1
            await self._start(self.asked)
            await asyncio.sleep(self._chance.uniform(0, 2 * pause_seconds))

    async def _start(self, number: int) -> None:
        inputs = {"number": number, "millis": self._chance.randint(1, MAX_MILLIS)}
        while (problem := await self._try(number, inputs)) is not None:
            self.repeated[problem] += 1
            await asyncio.sleep(0.02)
        self.acknowledged.append(run_id_of(number))

    async def _try(self, number: int, inputs: dict[str, int]) -> str | None:
        """Ask one engine, and return what went wrong."""
        engines = self._engines()
        if not engines:
            return "no engine"
        engine = self._chance.choice(engines)
        try:
            answer = await engine.ask(
                "start", workflow="diamond", run_id=run_id_of(number), inputs=inputs, seconds=ANSWER_SECONDS
            )
        except ProcessGone:
            return "process gone"
        if answer["said"] == "started":
            return None
        assert answer["error"].startswith(("store_", "engine_stopped")), answer
        return answer["error"]


def run_id_of(number: int) -> str:
    return f"r-{number}"


async def until_all_end(store: Store, seconds: float, story: Callable[[], str]) -> None:
    """Wait until no run is left that could still move."""

    async def have_all_ended() -> bool:
        return all(status in TERMINAL for status in (await checks.statuses(store)).values())

    try:
        await until(have_all_ended, seconds, "not all runs end")
    except AssertionError as error:
        counted = Counter((await checks.statuses(store)).values())
        raise AssertionError(f"{error}: {dict(counted)}\n{story()}") from None


def assert_none_lost(dumps: dict[str, RunDump], clients: Clients) -> None:
    """I25, I26: every start that was acknowledged is there, every run that is there has the right result."""
    lost = [run_id for run_id in clients.acknowledged if run_id not in dumps]
    assert not lost, f"acknowledged, but not there: {lost[:20]}"
    assert len(dumps) <= clients.asked
    for run_id, dump in dumps.items():
        run = dump.stored.run
        assert run.status is RunStatus.COMPLETED, f"{run_id} is {run.status}: {run.error or run.reason}"
        assert run.outputs is not None
        expected = diamond_result(int(run_id.removeprefix("r-")))
        assert bytes(run.outputs["output"]) == str(expected).encode(), run_id
