"""What every store promises of checkpoints: with their transition or not at all, a name once for a run, lists in pages."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.ids import ROOT_BRANCH, BranchId, Epoch, RunId, Seq
from perdure.journal import events as e
from perdure.journal.states import CheckpointState
from perdure.store.base import Store
from perdure.store.transitions import Committed, LeaseLost, Rejected, Transition
from tests.store.builders import Draft, begin, settle
from tests.store.conftest import OpenStore


def saved(draft: Draft, name: str, *, periodic: int = 0, branch_id: BranchId = ROOT_BRANCH) -> CheckpointState:
    """Record a checkpoint, and return the row that goes with the next transition."""
    seq = draft.projection.run.last_seq
    draft.add(e.CheckpointSaved(name=name, seq=seq, periodic=periodic))
    return CheckpointState(
        name=name, branch_id=branch_id, seq=seq, event_seq=Seq(seq + 1), periodic=periodic, asked_as="ann’s", saved_at=7
    )


def transition(draft: Draft, *rows: CheckpointState) -> Transition:
    return replace(draft.transition(), checkpoints=rows)


async def keep(store: Store, draft: Draft, *names: str) -> list[CheckpointState]:
    rows = [saved(draft, name) for name in names]
    assert await settle(store, [transition(draft, *rows)]) == [Committed()]
    return rows


async def names(store: Store, draft: Draft, after: int = 0, limit: int = 9) -> list[str]:
    return [found.name for found in await store.list_checkpoints(draft.run_id, after=Seq(after), limit=limit)]


@pytest.mark.parametrize("only_steps", [False, True])
async def test_a_checkpoint_is_found_by_its_name_and_by_its_place(store: Store, only_steps: bool) -> None:
    draft = await begin(store)
    row = saved(draft, "ünï ☃ 'quoted'", branch_id=BranchId(3))

    assert await settle(store, [replace(transition(draft, row), only_steps=only_steps)]) == [Committed()]

    assert await store.load_checkpoint(draft.run_id, row.name) == row
    assert await store.load_checkpoint(draft.run_id, "other") is None
    assert await store.load_checkpoint(draft.run_id, "half \ud800 pair") is None
    assert await store.load_checkpoint(RunId("other"), row.name) is None
    assert list(await store.list_checkpoints(draft.run_id, after=Seq(0), limit=9)) == [row]
    dump = await store.dump_run(draft.run_id)
    assert dump is not None
    assert dump.checkpoints == (row,)


async def test_checkpoints_are_listed_in_pages_as_they_were_saved(store: Store) -> None:
    draft, other = await begin(store), await begin(store)
    rows = await keep(store, draft, "z", "a", "m")
    await keep(store, other, "elsewhere")
    rows += await keep(store, draft, "b")

    assert await names(store, draft) == ["z", "a", "m", "b"]
    assert await names(store, draft, limit=2) == ["z", "a"]
    assert await names(store, draft, after=rows[1].event_seq, limit=2) == ["m", "b"]
    assert await names(store, draft, after=rows[3].event_seq) == []


async def test_the_last_one_is_found_of_all_and_of_those_that_were_saved_by_themselves(store: Store) -> None:
    draft = await begin(store)
    assert await store.last_checkpoint(draft.run_id) is None
    rows = [saved(draft, "periodic-1", periodic=1), saved(draft, "periodic-2", periodic=2), saved(draft, "mine")]
    assert await settle(store, [transition(draft, *rows)]) == [Committed()]

    assert await store.last_checkpoint(draft.run_id) == rows[2]
    assert await store.last_checkpoint(draft.run_id, periodic=True) == rows[1]


async def test_a_name_is_given_once_in_a_run_whatever_the_branch(store: Store) -> None:
    draft, other = await begin(store), await begin(store)
    await keep(store, draft, "here")
    await keep(store, other, "here")
    again = transition(draft, saved(draft, "here", branch_id=BranchId(2)))

    (outcome,) = await settle(store, [again])

    assert isinstance(outcome, Rejected)
    assert await names(store, draft) == ["here"]


async def test_a_transition_that_is_refused_leaves_no_name(store: Store) -> None:
    draft = await begin(store)
    stale = replace(transition(draft, saved(draft, "here")), epoch=Epoch(7))

    assert await settle(store, [stale]) == [LeaseLost()]

    assert await names(store, draft) == []


async def test_a_group_writes_the_names_of_every_run(store: Store) -> None:
    drafts = [await begin(store) for _ in range(3)]
    group = [
        transition(draft, saved(draft, "here"), saved(draft, f"run {number}")) for number, draft in enumerate(drafts)
    ]

    assert await settle(store, group) == [Committed()] * 3

    assert [await names(store, draft) for draft in drafts] == [["here", f"run {number}"] for number in range(3)]


async def test_names_belong_to_a_project(store: Store, open_another: OpenStore) -> None:
    draft = await begin(store)
    await keep(store, draft, "here")
    elsewhere = await open_another(project_id="elsewhere")

    assert await elsewhere.load_checkpoint(draft.run_id, "here") is None
    assert await elsewhere.last_checkpoint(draft.run_id) is None
    assert list(await elsewhere.list_checkpoints(draft.run_id, after=Seq(0), limit=9)) == []


async def test_others_hear_of_a_checkpoint_that_somebody_waits_for(store: Store, open_another: OpenStore) -> None:
    draft = await begin(store)
    other = await open_another()
    while await other.wait_for_news(0.2):
        pass  # what came before

    await keep(store, draft, "here")

    assert await other.wait_for_news(5)
