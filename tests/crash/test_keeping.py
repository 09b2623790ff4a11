"""What is done with runs that have ended: a process that archives them, brings them back, makes their logs compact,
deletes their values or imports them stops dead at every statement, every call of the store and every write of a file.

Whenever that is, each run is in one place and whole, whoever comes next can go on, and in the end nothing is left behind.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from perdure import Context, Engine, EngineSettings, ask, collect, node, workflow
from perdure.clock import SystemClock
from perdure.engine.inspect import verify_run
from perdure.engine.keeping import compacting
from perdure.engine.keeping.archives import opened_archive
from perdure.engine.keeping.archiving import Archiver
from perdure.engine.keeping.importing import import_file
from perdure.engine.runs.run import Run
from perdure.errors import RunFailed, StoreLocked
from perdure.ids import DEFAULT_PROJECT, RunId
from perdure.journal.events import RunDeleted
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.shapes import ArchivedRun, RunDump
from tests.crash.keeping import GONE, SMALL, Answer, Case, Household, everything_that_can_happen, keep
from tests.engine.rows import rows_of
from tests.engine.test_waiting import asked

T = TypeVar("T")

ITEMS = 4
PLACES = 12
SETTINGS = EngineSettings(inline_max_bytes=1_000, hibernate_after=0)


@node
async def kept_item(ctx: Context, x: int) -> str:
    ctx.log.info("an item", x=x)
    return await ctx.step(_large, x)


async def _large(x: int) -> str:
    return f"{x}" * 1_500


@node
async def kept_places(ctx: Context, places: int) -> int:
    for place in range(places):
        await ctx.checkpoint(place)
    return places


@node
async def kept_length(texts: list[str], may: bool, places: int) -> int:
    return sum(map(len, texts)) + may + places


@workflow
def kept_whole(xs: list[int], places: int) -> int:
    may = ask.named("may")("Go on?", schema=bool)
    return kept_length(collect(kept_item.map(xs)), may, kept_places(places))


@node
async def kept_until(x: int) -> str:
    if x == ITEMS - 1:
        raise ValueError("no further")
    return f"{x}" * 1_500


@workflow
def kept_in_part(xs: list[int]) -> Any:
    return collect(kept_until.map(xs))


async def answer(run: Run[Any]) -> int:
    for question in await asked(run):
        await run.answer(question.interaction_id, True)
    return await run.result()


def events_of(dumped: RunDump) -> bytes:
    """Return what has happened in a run, whatever it is called."""
    events = msgspec.json.encode([entry.event for entry in dumped.events])
    return events.replace(dumped.stored.run.run_id.encode(), b"the run")


class House:
    """A store with runs in it, a process that keeps house there, and whoever looks what has become of them."""

    def __init__(self, engine: Engine, household: Household, folder: Path) -> None:
        self.engine = engine
        self.store = engine.store
        self.folder = folder
        self._household = household
        self._numbers = itertools.count(1)
        self._cases = 0
        """The number of the case; what earlier ones have left is archived under 0."""

    async def prepare(self) -> None:
        """Export a run with all that a run can have: branches, questions, signals, steps, logs, blobs; and one with items."""
        whole = await self.engine.start(
            kept_whole, xs=list(range(ITEMS)), places=PLACES, run_id="whole", tags=["old", "kept"]
        )
        await whole.signal("hello", {"said": "early"})
        await answer(whole)
        await whole.jump("kept_item")
        await whole.result()
        await whole.export(self.folder / "whole.bundle")
        part = await self.engine.start(kept_in_part, xs=list(range(ITEMS)), run_id="part")
        with pytest.raises(RunFailed):
            await part.result()
        await part.export(self.folder / "part.bundle")
        for name in ("whole", "part"):
            dumped = await self.dump(name)
            assert dumped.blobs
            assert dumped.items or name == "whole"

    async def dump(self, run_id: str, store: Store | None = None) -> RunDump:
        found = await (store or self.store).dump_run(RunId(run_id))
        assert found is not None, f"{run_id} is not there"
        return found

    async def runs(self, *names: str) -> dict[str, RunDump]:
        """Put runs there for the next case, and return what they are."""
        self._cases = 0
        await self.do(self.case("archive", []))
        self._cases = next(self._numbers)
        found: dict[str, RunDump] = {}
        for name in names:
            run_id = f"{name}-{self._cases:04}"
            await import_file(
                self.store,
                self.engine.values.blobs,
                self.folder / f"{name}.bundle",
                project_id=DEFAULT_PROJECT,
                clock=SystemClock(),
                run_id=run_id,
                paused=False,
                verify=False,
            )
            found[run_id] = await self.dump(run_id)
        return found

    async def tidy_up(self) -> None:
        """Have somebody archive who finds nothing to do but what others have left."""
        archiver = Archiver(self.store, self.engine.values.blobs, self.archive_folder, SystemClock(), rest=0)
        assert (await archiver.archive(older_than=timedelta(days=1), limit=None, dry_run=False)).runs == 0

    async def require_compact(self, runs: dict[str, RunDump]) -> None:
        """Claim that as much of each log is in segments as may be, and each event in one place."""
        for run_id, before in runs.items():
            segments = await self.store.list_segments(RunId(run_id))
            moved = sum(segment.last_seq - segment.first_seq + 1 for segment in segments)
            assert moved == (len(before.events) - compacting.KEPT_EVENTS) // 10 * 10
            assert (await self.rows(run_id))["run_events"] == len(before.events) - moved

    def case(self, what: str, run_ids: Sequence[str], *, at: int = 0, kind: str = "") -> Case:
        return Case(
            what=what,
            url=self.store.url,
            blobs=(self.folder / "blobs").as_uri(),
            folder=str(self.archive_folder),
            run_ids=list(run_ids),
            bundle=str(self.folder / "whole.bundle"),
            at=at,
            kind=kind,
        )

    @property
    def archive_folder(self) -> Path:
        return self.folder / f"archive-{self._cases}"

    async def have_done(self, case: Case) -> Answer:
        return await self._household.have_done(case)

    async def do(self, case: Case) -> None:
        """Do what a case says here, where nothing happens. A server takes a moment to notice that a process is gone, and keeps
        its locks until then."""
        async with asyncio.timeout(20):
            while True:
                with suppress(StoreLocked):
                    await keep(msgspec.structs.replace(case, at=0), self.store, self.engine.values.blobs)
                    return
                await asyncio.sleep(0.01)

    async def archived(self, run_id: str) -> ArchivedRun | None:
        return await self.store.load_archive(RunId(run_id))

    async def require_one_place(self, runs: dict[str, RunDump]) -> None:
        """Claim that each run is in the database or in the archive, as it was, and not in both."""
        for run_id, before in runs.items():
            archived = await self.archived(run_id)
            if archived is None:
                assert await self.dump(run_id) == before
            else:
                assert await self.store.load_state(RunId(run_id)) is None
                await self.require_readable(archived, before)

    async def require_readable(self, archived: ArchivedRun, before: RunDump) -> None:
        async with opened_archive(self.archive_folder, archived, clock=SystemClock()) as there:
            assert await self.dump(archived.run_id, there) == before
            assert await verify_run(there, archived.run_id) == []

    async def require_here(self, runs: dict[str, RunDump]) -> None:
        """Claim that each run is in the database, as it was, and whole."""
        for run_id, before in runs.items():
            assert await self.archived(run_id) is None
            assert await self.dump(run_id) == before
            assert await verify_run(self.engine, run_id) == []

    async def rows(self, run_id: str) -> dict[str, int]:
        """Return how many rows there are of a run, by table, where there are any."""
        return await rows_of(self.store.url, run_id)

    def files(self) -> set[str]:
        """Return the files of the archive, finished or not."""
        folder = self.archive_folder
        return {path.name for path in folder.iterdir() if path.name != ".lock"} if folder.exists() else set()


@asynccontextmanager
async def opened_house(url: str, folder: Path) -> AsyncGenerator[House]:
    blobs = (folder / "blobs").as_uri()
    async with Household() as household, Engine(url, blobs=blobs, settings=SETTINGS) as engine:
        house = House(engine, household, folder)
        await house.prepare()
        yield house


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


class Matrix:
    """Counts what has happened, so that a test that has tried nothing is noticed."""

    def __init__(self, name: str, undisturbed: Answer) -> None:
        assert undisturbed.error == ""
        self.boundaries = undisturbed.boundaries
        self._name = name
        self._happened: Counter[str] = Counter()

    def note(self, case: Case, found: Answer) -> str:
        """Return where something has happened, for whoever finds something wrong."""
        where = f"{self._name}: {case.kind} at {case.at} ({self.boundaries[case.at - 1]})"
        assert len(found.boundaries) >= case.at, f"{where} was not reached"
        dies = case.kind in ("before", "after", "torn")
        assert found.code == (GONE if dies else 0), f"{where}: {found.error}"
        self._happened[f"{found.boundaries[case.at - 1].what} {case.kind}"] += 1
        return where

    def require(self, *least: tuple[str, int]) -> None:
        """Claim that each of these has happened, and so often."""
        print(
            f"{self._name}: {len(self.boundaries)} boundaries, {self._happened.total()} cases: {dict(self._happened)}"
        )
        for what, count in least:
            assert self._happened[what] >= count, f"{what} has happened {self._happened[what]} times"


async def stop_everywhere(
    house: House,
    what: str,
    prepare: Callable[[], Awaitable[dict[str, T]]],
    claim: Callable[[Case, dict[str, T]], Awaitable[None]],
    *,
    varies: bool = False,
) -> Matrix:
    """Have a process do something with runs that are prepared for it, undisturbed at first and then once for each thing that can
    happen to it, and claim something of what it has left behind each time. What `varies` need not come as far each time."""
    matrix = Matrix(what, await house.have_done(house.case(what, list(await prepare()))))
    for at, kind in everything_that_can_happen(matrix.boundaries):
        runs = await prepare()
        case = house.case(what, list(runs), at=at, kind=kind)
        found = await house.have_done(case)
        if varies and len(found.boundaries) < at:
            continue
        where = matrix.note(case, found)
        try:
            await claim(case, runs)
        except Exception as error:
            raise AssertionError(where) from error
    return matrix


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_archiving_survives_a_stop_anywhere(store_url: str, tmp_path: Path) -> None:
    async with opened_house(store_url, tmp_path) as house:

        async def claim(case: Case, runs: dict[str, RunDump]) -> None:
            await house.require_one_place(runs)
            await house.do(case)
            files: set[str] = set()
            for run_id, before in runs.items():
                archived = await house.archived(run_id)
                assert archived is not None
                await house.require_readable(archived, before)
                assert await house.rows(run_id) == {}
                files.add(archived.file)
            assert house.files() == files

        matrix = await stop_everywhere(house, "archive", lambda: house.runs("whole", "part"), claim)
        matrix.require(
            ("sql before", 6), ("call after", 2), ("call reply_lost", 2), ("write torn", 4), ("files after", 3)
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_bringing_back_survives_a_stop_anywhere(store_url: str, tmp_path: Path) -> None:
    async with opened_house(store_url, tmp_path) as house:

        async def archived() -> dict[str, RunDump]:
            runs = await house.runs("whole", "part")
            await house.do(house.case("archive", list(runs)))
            for use in {use for dumped in runs.values() for use in dumped.blobs}:
                await house.engine.values.blobs.delete(use.digest)
            return runs

        async def claim(case: Case, runs: dict[str, RunDump]) -> None:
            await house.require_one_place(runs)
            await house.do(case)
            await house.require_here(runs)
            await house.tidy_up()
            assert house.files() == set()

        matrix = await stop_everywhere(house, "restore", archived, claim)
        matrix.require(("sql before", 6), ("call after", 2), ("call reply_lost", 2), ("files after", 3))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_making_compact_survives_a_stop_anywhere(store_url: str, tmp_path: Path) -> None:
    async with opened_house(store_url, tmp_path) as house:

        async def claim(case: Case, runs: dict[str, RunDump]) -> None:
            (before,) = runs.values()
            assert len(before.branches) == 2
            await house.require_here(runs)
            await house.do(case)
            await house.require_here(runs)
            await house.require_compact(runs)

        matrix = await stop_everywhere(house, "compact", lambda: house.runs("whole"), claim)
        matrix.require(("sql before", 9), ("call after", 3), ("call reply_lost", 3), ("call refused", 3))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_run_goes_on_whenever_making_its_log_compact_is_stopped(store_url: str, tmp_path: Path) -> None:
    async with opened_house(store_url, tmp_path) as house:

        async def waiting() -> dict[str, Run[int]]:
            run = await house.engine.start(kept_whole, xs=[1, 2], places=PLACES)
            while await run.status() is not RunStatus.AWAITING_INPUT:
                await asyncio.sleep(0.01)
            return {run.run_id: run}

        async def claim(case: Case, runs: dict[str, Run[int]]) -> None:
            ((run_id, run),) = runs.items()
            assert await answer(run) == expected
            assert await verify_run(house.engine, run_id) == []
            now = {run_id: await house.dump(run_id)}
            await house.do(case)
            await house.require_here(now)
            await house.require_compact(now)

        (undisturbed,) = (await waiting()).values()
        expected = await answer(undisturbed)
        # How often a run went to sleep and woke up varies a little, and with it how long its log is.
        matrix = await stop_everywhere(house, "compact", waiting, claim, varies=True)
        matrix.require(("sql before", 6), ("call after", 2), ("call reply_lost", 2), ("call refused", 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_deleting_survives_a_stop_anywhere(store_url: str, tmp_path: Path) -> None:
    async with opened_house(store_url, tmp_path) as house:

        async def claim(case: Case, runs: dict[str, RunDump]) -> None:
            for run_id, before in runs.items():
                if await house.store.load_deletion(RunId(run_id)) is None:
                    assert await house.dump(run_id) == before
            await house.do(case)
            for run_id, before in runs.items():
                left = await house.dump(run_id)
                assert (left.blobs, left.items) == ((), ())
                assert len(left.events) == len(before.events) + 1
                assert [entry.event for entry in left.events if isinstance(entry.event, RunDeleted)] == [RunDeleted()]
                assert await verify_run(house.engine, run_id) == []

        matrix = await stop_everywhere(house, "delete", lambda: house.runs("whole", "part"), claim)
        matrix.require(("sql before", 6), ("call after", 2), ("call reply_lost", 2), ("call refused", 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_importing_survives_a_stop_anywhere(store_url: str, tmp_path: Path) -> None:
    async with opened_house(store_url, tmp_path) as house:
        (expected,) = (await house.runs("whole")).values()
        numbers = itertools.count(1)

        async def to_import() -> dict[str, None]:
            return {f"imported-{next(numbers)}": None}

        async def claim(case: Case, runs: dict[str, None]) -> None:
            (run_id,) = runs
            is_there = await house.store.load_state(RunId(run_id)) is not None
            assert is_there or await house.rows(run_id) == {}
            await house.do(case)
            found = await house.dump(run_id)
            assert events_of(found) == events_of(expected)
            assert (len(found.items), len(found.all_waits), found.blobs) == (
                len(expected.items),
                len(expected.all_waits),
                expected.blobs,
            )
            assert await verify_run(house.engine, run_id) == []

        matrix = await stop_everywhere(house, "import", to_import, claim)
        matrix.require(("sql before", 6), ("call after", 1), ("call reply_lost", 1), ("call refused", 1))
