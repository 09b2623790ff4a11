"""A crash at every commit of every reference workflow, in each of six ways, on both databases.

After each the run must end as if nothing had happened: the same result, every invariant, no effect lost or repeated that was
recorded as done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from perdure.ids import RunId
from perdure.journal.events import Recorded
from perdure.store.base import Store
from perdure.testing.crashes import LETHAL, CrashKind, CrashPlan
from perdure.testing.graphs import Reference, large_reference, reference_graphs
from perdure.testing.loop import run_virtual
from perdure.testing.process import Process
from perdure.testing.proxy import StoreProxy
from perdure.testing.streams import stream_references
from perdure.testing.world import Story, World, drive
from tests.crash.backends import opened_world

REFERENCES = {reference.name: reference for reference in (*reference_graphs(), *stream_references())}
LARGE = large_reference()
KINDS = tuple(CrashKind)


def every_crash(boundaries: int, kinds: Sequence[CrashKind] = KINDS) -> list[CrashPlan]:
    return [CrashPlan(at=at, kind=kind) for kind in kinds for at in range(1, boundaries + 1)]


def one_crash_each(boundaries: int) -> list[CrashPlan]:
    """Every boundary once, the kinds taking turns."""
    return [CrashPlan(at=at, kind=kind) for at, kind in enumerate(islice(cycle(KINDS), boundaries), start=1)]


async def told(world: World, reference: Reference, plans: Sequence[CrashPlan], expected: Story) -> list[Story]:
    stories: list[Story] = []
    for plan in plans:
        story = await world.tell(reference, plan)
        assert story.problems == [], f"{reference.name}, {plan.kind} at {plan.at} ({story.run_id})"
        assert story.outcome == expected.outcome, f"{reference.name}, {plan.kind} at {plan.at} ({story.run_id})"
        stories.append(story)
    return stories


def assert_not_vacuous(plans: Sequence[CrashPlan], stories: Sequence[Story], boundaries: int) -> None:
    """Every crash has really happened, and nobody has come off lightly."""
    assert {plan.at for plan in plans} == set(range(1, boundaries + 1))
    assert all(story.fired == 1 for story in stories)
    for plan, story in zip(plans, stories, strict=True):
        assert len(story.boundaries) == 1 + (plan.kind in LETHAL)
        # With the last commit the run has ended: there is nothing left to take over.
        assert story.takeovers == (plan.kind is CrashKind.TAKEN_OVER and plan.at < boundaries)


def crash_everywhere(
    url: str,
    folder: Path,
    reference: Reference,
    kinds: Sequence[CrashKind] | None = None,
    *,
    otherwise: Callable[[], None] | None = None,
    **options: Any,
) -> str:
    """Tell the undisturbed story, then one for each crash. `otherwise` makes it one with more commits and the same end; `options`
    are those of the world."""

    async def main() -> str:
        async with opened_world(url, folder, **options) as world:
            expected = await world.tell(reference)
            if otherwise is not None:
                otherwise()
                plain, expected = expected, await world.tell(reference)
                assert expected.outcome == plain.outcome
                assert expected.boundaries[0] > plain.boundaries[0]
            assert expected.problems == []
            boundaries = expected.boundaries[0]
            plans = one_crash_each(boundaries) if kinds is None else every_crash(boundaries, kinds)
            stories = await told(world, reference, plans, expected)
            assert_not_vacuous(plans, stories, boundaries)
            again = await world.tell(reference)
            assert again.boundaries == expected.boundaries
            refused = sum(story.refused_offers for story in stories)
            return f"{reference.name}: {boundaries} boundaries, {len(stories)} crashes, {refused} stale writes refused"

    return run_virtual(main())


class Watched(StoreProxy):
    """Looks at each run after each of its commits, as any other reader could."""

    def __init__(self, inner: Store, world: World) -> None:
        super().__init__(inner)
        self.problems: list[str] = []
        self.looks = 0
        self._world = world
        self._logs: dict[RunId, tuple[Recorded, ...]] = {}

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        answer = await call()
        if name == "commit":
            for transition in args[0]:
                await self._look_at(transition.run_id)
        return answer

    async def _look_at(self, run_id: RunId) -> None:
        self.looks += 1
        self.problems += await self._world.violations(run_id)
        dump = await self._world.store.dump_run(run_id)
        assert dump is not None
        earlier = self._logs.get(run_id, ())
        if dump.events[: len(earlier)] != earlier:
            self.problems.append("I3: what was in the log is not there any more")
        self._logs[run_id] = dump.events


def watch(url: str, folder: Path, reference: Reference) -> tuple[int, list[str]]:
    """Tell a story, look at the run after every commit, and return how often and what was wrong."""

    async def main() -> tuple[int, list[str]]:
        async with opened_world(url, folder) as world:
            process = Process("watched")
            door = world.door(process)
            watched = Watched(door.inner, world)
            door.inner = watched.as_store
            await process.run(world.engine(door), lambda engine: drive(engine, reference, RunId("run")))
            return watched.looks, watched.problems

    return run_virtual(main())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fan", "conditions", "stages", LARGE.name])
def test_every_invariant_holds_between_the_portions_of_a_decision(
    name: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("perdure.engine.driving.driver.PORTION_NODES", 1)

    looks, problems = watch(store_url, tmp_path, REFERENCES.get(name, LARGE))

    assert problems == []
    assert looks >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REFERENCES, LARGE.name])
def test_every_invariant_holds_after_every_commit(name: str, store_url: str, tmp_path: Path):
    looks, problems = watch(store_url, tmp_path, REFERENCES.get(name, LARGE))

    assert problems == []
    assert looks >= 3


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "chain" else pytest.mark.slow) for name in REFERENCES]
)
def test_a_crash_at_any_commit_changes_nothing(
    name: str, store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    report = crash_everywhere(store_url, tmp_path, REFERENCES[name], KINDS)

    with capsys.disabled():
        print(f"\n{report}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fan", "conditions", "stages"])
def test_a_crash_between_the_portions_of_a_decision_changes_nothing(
    name: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def in_portions() -> None:
        monkeypatch.setattr("perdure.engine.driving.driver.PORTION_NODES", 1)

    report = crash_everywhere(store_url, tmp_path, REFERENCES[name], KINDS, otherwise=in_portions)

    with capsys.disabled():
        print(f"\n{report} (one node at a time)")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_graph_survives_a_crash_at_any_commit(
    kind: CrashKind, sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    report = crash_everywhere(sqlite_url, tmp_path, LARGE, (kind,))

    with capsys.disabled():
        print(f"\n{report} ({kind})")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_large_graph_survives_a_crash_at_any_commit_on_postgres(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    report = crash_everywhere(postgres_url, tmp_path, LARGE)

    with capsys.disabled():
        print(f"\n{report} (kinds taking turns)")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_large_graph_survives_every_crash_at_any_commit_on_postgres(postgres_url: str, tmp_path: Path):
    print(crash_everywhere(postgres_url, tmp_path, LARGE, KINDS))
