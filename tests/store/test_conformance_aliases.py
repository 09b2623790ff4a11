"""What every store promises of aliases and of deleting versions: one row is a move, each follows the last, nothing dangles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure.errors import VersionNotFound
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.shapes import AliasMove, AliasState
from perdure.store.transitions import Committed, Rejected
from tests.store.builders import Draft, settle
from tests.store.conftest import OpenStore, verify_runs

WORKFLOW = "ünï 'letters'"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A store with four versions of a workflow and one of another."""
    store = await open_store(url)
    for number in range(1, 5):
        await save(store, number)
    await store.save_version("other", "hash", b"{}", {}, at=1)
    yield store
    await verify_runs(store)
    await store.close()


async def save(store: Store, number: int) -> None:
    await store.save_version(WORKFLOW, f"hash-{number}", b"%d" % number, {}, at=number)


def move(revision: int, targets: dict[int, int], alias: str = "stable", restores: int | None = None) -> AliasMove:
    return AliasMove(
        workflow=WORKFLOW, alias=alias, revision=revision, targets=targets, moved_at=revision * 7, restores=restores
    )


async def test_an_alias_points_where_it_was_moved_last_and_its_moves_are_kept(store: Store) -> None:
    assert await store.load_alias(WORKFLOW, "stable") == AliasState(move=None, newest=4)
    moves = [move(1, {3: 1}), move(2, {3: 90, 4: 10}), move(3, {}), move(4, {3: 1}, restores=1)]

    for one in moves:
        assert await store.move_alias(one)
        assert await store.load_alias(WORKFLOW, "stable") == AliasState(move=one, newest=4)

    assert list(await store.list_alias_moves(WORKFLOW, "stable")) == moves
    assert list(await store.list_alias_moves(WORKFLOW, "canary")) == []
    assert list(await store.list_alias_moves("other", "stable")) == []


async def test_a_move_that_does_not_follow_the_last_one_changes_nothing(store: Store) -> None:
    assert await store.move_alias(move(1, {3: 1}))

    assert not await store.move_alias(move(1, {4: 1}))
    assert not await store.move_alias(move(3, {4: 1}))

    assert list(await store.list_alias_moves(WORKFLOW, "stable")) == [move(1, {3: 1})]


async def test_an_alias_cannot_point_at_what_is_not_there(store: Store) -> None:
    with pytest.raises(VersionNotFound) as raised:
        await store.move_alias(move(1, {3: 1, 5: 1}))

    assert (raised.value.workflow, raised.value.version) == (WORKFLOW, 5)
    assert (await store.load_alias(WORKFLOW, "stable")).move is None


async def test_aliases_are_listed_that_point_somewhere(store: Store) -> None:
    await store.move_alias(move(1, {2: 1}, "b"))
    await store.move_alias(move(1, {1: 1}, "a"))
    await store.move_alias(move(1, {1: 1}, "gone"))
    await store.move_alias(move(2, {}, "gone"))
    await store.move_alias(AliasMove(workflow="other", alias="z", revision=1, targets={1: 1}, moved_at=1))

    assert [found.alias for found in await store.list_aliases(WORKFLOW)] == ["a", "b"]
    assert [(found.workflow, found.alias) for found in await store.list_aliases()] == [
        ("other", "z"),
        (WORKFLOW, "a"),
        (WORKFLOW, "b"),
    ]
    assert list(await store.list_aliases("nothing")) == []


async def test_what_is_not_there_is_not_found(store: Store) -> None:
    nothing = AliasState(move=None, newest=None)
    for text in ("nothing", "half \ud800 pair"):
        assert await store.load_alias(text, "stable") == nothing
        assert await store.delete_version(text, 1) == "missing"
        assert await store.count_runs(text) == {}
    assert await store.delete_version(WORKFLOW, 9) == "missing"


async def test_of_movers_at_once_one_wins_each_time(store: Store, open_another: OpenStore) -> None:
    stores = [store, await open_another(), await open_another()]

    for revision in range(1, 9):
        answers = await asyncio.gather(
            *(each.move_alias(move(revision, {number: revision})) for number, each in enumerate(stores, 1))
        )
        assert sorted(answers) == [False, False, True]
        won = answers.index(True) + 1
        assert await store.load_alias(WORKFLOW, "stable") == AliasState(move=move(revision, {won: revision}), newest=4)

    assert [found.revision for found in await store.list_alias_moves(WORKFLOW, "stable")] == list(range(1, 9))


async def test_a_version_is_deleted_to_which_nothing_refers(store: Store) -> None:
    assert await store.delete_version(WORKFLOW, 2) is None

    assert [found.version for found in await store.list_versions(WORKFLOW)] == [1, 3, 4]
    assert await store.delete_version(WORKFLOW, 2) == "missing"
    assert [found.version for found in await store.list_versions("other")] == [1]


async def test_the_newest_version_is_kept_so_that_no_number_is_given_twice(store: Store) -> None:
    assert await store.delete_version(WORKFLOW, 4) == "newest"

    await save(store, 5)
    assert await store.delete_version(WORKFLOW, 4) is None


async def test_a_version_is_kept_while_an_alias_points_at_it(store: Store) -> None:
    await store.move_alias(move(1, {2: 9, 3: 1}))
    assert await store.delete_version(WORKFLOW, 2) == "aliased"
    assert await store.delete_version(WORKFLOW, 3) == "aliased"
    await store.move_alias(move(2, {3: 1}))

    assert await store.delete_version(WORKFLOW, 2) is None
    with pytest.raises(VersionNotFound):
        await store.move_alias(move(3, {2: 1}))


async def test_a_version_is_kept_while_a_run_refers_to_it(store: Store) -> None:
    draft = Draft.create(workflow=WORKFLOW, version=2).claim()
    assert await settle(store, [draft.transition()]) == [Committed()]
    assert await store.count_runs(WORKFLOW) == {2: 1}

    assert await store.delete_version(WORKFLOW, 2) == "used"

    assert await store.delete_version(WORKFLOW, 1) is None
    (outcome,) = await settle(store, [Draft.create(workflow=WORKFLOW, version=1).claim().transition()])
    assert isinstance(outcome, Rejected)


async def test_whoever_deletes_and_whoever_refers_at_once_agree(store: Store, open_another: OpenStore) -> None:
    other = await open_another()
    for number in range(5, 17):
        await save(store, number)
        version = number - 1
        draft = Draft.create(workflow=WORKFLOW, version=version).claim()
        revision = len(await store.list_alias_moves(WORKFLOW, "stable")) + 1

        async def refer(draft: Draft = draft, version: int = version, revision: int = revision) -> bool:
            if version % 2:
                return await settle(other, [draft.transition()]) == [Committed()]
            try:
                return await other.move_alias(move(revision, {version: 1}))
            except VersionNotFound:
                return False

        kept, refers = await asyncio.gather(store.delete_version(WORKFLOW, version), refer())

        is_there = await store.load_version(WORKFLOW, version) is not None
        assert (kept is not None) == refers == is_there


async def test_projects_have_aliases_of_their_own(store: Store, open_another: OpenStore) -> None:
    elsewhere = await open_another(project_id="elsewhere")
    await store.move_alias(move(1, {3: 1}))

    assert await elsewhere.load_alias(WORKFLOW, "stable") == AliasState(move=None, newest=None)
    assert list(await elsewhere.list_aliases()) == []
