"""What every store promises of items of streams: with their transition or not at all, each stream by itself, in pages."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from perdure.ids import ROOT_BRANCH, BranchId, Epoch, NodeId, RunId, Seq
from perdure.journal.states import StreamState
from perdure.store.base import Store
from perdure.store.shapes import ItemRange
from perdure.store.transitions import Committed, ItemDrop, ItemRow, LeaseLost, Rejected, Transition
from tests.store.builders import Draft, begin, commit, encoded, save_workflow, started
from tests.store.conftest import OpenStore
from tests.store.contents import contents_of

SECOND_BRANCH = BranchId(2)
NO_TEXT = "half \ud800 pair"
START = (-1, -1)


async def add(store: Store, draft: Draft, *rows: ItemRow) -> None:
    assert await commit(store, draft.transition(items=rows)) == [Committed()]


async def read(
    store: Store,
    draft: Draft,
    name: str = "step0",
    branch_id: BranchId = ROOT_BRANCH,
    *,
    in_order: bool = True,
    page: int = 100,
) -> list[ItemRow]:
    """All rows of a stream, page by page."""
    found: list[ItemRow] = []
    after = START
    while rows := await store.load_items(
        draft.run_id, branch_id, NodeId(name), after=after, in_order=in_order, limit=page
    ):
        assert len(rows) <= page
        found += rows
        after = (rows[-1].position, rows[-1].seq)
    return found


async def dumped(store: Store, draft: Draft) -> list[ItemRow]:
    dump = await store.dump_run(draft.run_id)
    assert dump is not None
    return list(dump.items)


def ranges_of(rows: list[ItemRow]) -> list[ItemRange]:
    return [
        ItemRange(node_id=row.node_id, branch_id=row.branch_id, position=row.position, count=row.count, seq=row.seq)
        for row in rows
    ]


def drop(name: str, branch_id: BranchId = ROOT_BRANCH) -> ItemDrop:
    return ItemDrop(node_id=NodeId(name), branch_id=branch_id)


def as_it_is(transition: Transition) -> Transition:
    return transition


def as_a_step(transition: Transition) -> Transition:
    """As an engine says it of nearly every transition, which a store may write in a faster way."""
    return replace(transition, only_steps=True)


both_ways = pytest.mark.parametrize("offered", [as_it_is, as_a_step])


# Adding


@both_ways
@pytest.mark.parametrize("company", [0, 3])
async def test_items_are_read_back_as_they_were_written(
    store: Store, offered: Callable[[Transition], Transition], company: int
) -> None:
    draft, *others = [await begin(store) for _ in range(1 + company)]
    rows = [draft.batch("step0", 0, 1, "two", None), replace(draft.batch("step0", 3, [["output", 4]]), is_plain=False)]
    transition = offered(draft.transition(items=rows))

    outcomes = await commit(store, transition, *[other.next_node(0).transition() for other in others])

    assert outcomes == [Committed()] * (1 + company)
    assert await read(store, draft) == rows
    assert tuple(await store.load_events(draft.run_id, after=transition.base_seq, limit=9)) == transition.events
    stored = await store.load_run(draft.run_id)
    assert stored is not None
    assert stored.run == draft.projection.run


async def test_a_run_may_begin_with_items(store: Store) -> None:
    draft = started()
    rows = [draft.batch("step0", 0, "first")]

    await add(store, draft, *rows)

    assert await read(store, draft) == rows


async def test_a_large_batch_is_one_row_and_many_small_ones_are_many(store: Store) -> None:
    draft = await begin(store)
    large = draft.batch("step0", 0, *(f"item {number} of many" for number in range(10_000)))
    small = [draft.batch("step0", 10_000 + number, number) for number in range(1_000)]

    await add(store, draft, large)
    await add(store, draft, *small)

    assert await read(store, draft, page=128) == [large, *small]
    assert msgspec.json.decode(large.items)[9_999] == "item 9999 of many"


@pytest.mark.parametrize(
    "text", ["äöü ß 漢字 🙂 \U0010ffff", "nul \x00 here", "\ufdd0 mark \ufdd00", 'quote " and \\u0000', "\x7f\x1f\n"]
)
@both_ways
async def test_texts_of_all_kinds_come_back_as_they_were(
    store: Store, offered: Callable[[Transition], Transition], text: str
) -> None:
    draft = Draft.create(text + " run").start().begin_node(text)
    await commit(store, draft.transition())
    row = draft.batch(text, 0, text, {text: [text]})

    assert await commit(store, offered(draft.transition(items=[row]))) == [Committed()]

    assert await read(store, draft, text) == await read(store, draft, text, in_order=False) == [row]
    assert await dumped(store, draft) == [row]
    assert list(await store.load_ranges(draft.run_id)) == ranges_of([row])
    await commit(store, draft.transition(drops=[drop(text)]))
    assert await dumped(store, draft) == []


# Whole or not at all


@both_ways
@pytest.mark.parametrize("drops", [(), (drop("step0"),)])
@pytest.mark.parametrize("company", [0, 1])
async def test_what_is_refused_adds_and_drops_nothing(
    store: Store, url: str, offered: Callable[[Transition], Transition], drops: tuple[ItemDrop, ...], company: int
) -> None:
    draft = await begin(store)
    others = [await begin(store) for _ in range(company)]
    await add(store, draft, draft.batch("step0", 0, 1, 2))
    before = await contents_of(url)
    transition = offered(draft.transition(items=[draft.begin_node("step1").batch("step1", 0, 3)], drops=drops))

    for stale in (
        replace(transition, epoch=Epoch(0)),
        replace(transition, base_seq=Seq(1)),
        replace(transition, run_id=RunId("nobody")),
    ):
        assert (await commit(store, stale, *[other.transition() for other in others]))[0] == LeaseLost()

    after = await contents_of(url)
    assert after["run_inbox_messages"] == before["run_inbox_messages"]
    assert after["run_events"] == before["run_events"]


def _at_a_place_that_is_taken(draft: Draft) -> Transition:
    return draft.transition(items=[draft.batch("step0", 2, 3), draft.batch("step0", 0, "again")])


def _that_are_no_text(draft: Draft) -> Transition:
    return draft.transition(
        items=[draft.batch("step0", 2, 3), replace(draft.batch("step0", 3, 4), items=msgspec.Raw(b'["\xff"]'))]
    )


def _of_a_node_whose_id_is_no_text(draft: Draft) -> Transition:
    return draft.transition(items=[replace(draft.batch("step0", 2, 3), node_id=NodeId(NO_TEXT))])


def _added_and_dropped_at_once(draft: Draft) -> Transition:
    return draft.transition(items=[draft.batch("step0", 2, 3)], drops=[drop("elsewhere"), drop("step0")])


@both_ways
@pytest.mark.parametrize(
    "spoil",
    [
        _at_a_place_that_is_taken,
        _that_are_no_text,
        _of_a_node_whose_id_is_no_text,
        _added_and_dropped_at_once,
    ],
)
@pytest.mark.parametrize("company", [0, 3])
async def test_items_that_the_database_refuses_harm_only_their_own_transition(
    store: Store, offered: Callable[[Transition], Transition], spoil: Callable[[Draft], Transition], company: int
) -> None:
    bad = await begin(store)
    await add(store, bad, bad.batch("step0", 0, 1, 2))
    before = await store.dump_run(bad.run_id)
    others = [await begin(store) for _ in range(company)]
    rows = [other.batch("step0", 0, "fine") for other in others]
    group = [other.transition(items=[row]) for other, row in zip(others, rows, strict=True)]

    refused, *outcomes = await commit(store, offered(spoil(bad)), *group)

    assert isinstance(refused, Rejected)
    assert outcomes == [Committed()] * company
    assert await store.dump_run(bad.run_id) == before
    assert [await read(store, other) for other in others] == [[row] for row in rows]


@both_ways
async def test_what_is_offered_again_was_added_once(
    store: Store, url: str, offered: Callable[[Transition], Transition]
) -> None:
    draft = await begin(store)
    added = offered(draft.transition(items=[draft.batch("step0", 0, 1)]))
    dropped = offered(draft.begin_node("step1").transition(drops=[drop("step0")]))

    for transition in (added, dropped):
        assert await commit(store, transition) == [Committed()]
        before = await contents_of(url)
        assert await commit(store, transition) == [Committed()]
        assert await contents_of(url) == before


# Dropping


@both_ways
async def test_a_stream_is_dropped_whole_and_no_other_with_it(
    store: Store, open_another: OpenStore, offered: Callable[[Transition], Transition]
) -> None:
    elsewhere = await open_another(project_id="elsewhere")
    await save_workflow(elsewhere)
    draft, other = await begin(store), await begin(store)
    namesake = started(draft.run_id)
    draft.begin_node("step1")
    gone = [draft.batch("step0", position, position) for position in (0, 1, 5)]
    kept = [draft.batch("step1", 0, "kept"), draft.batch("step0", 0, "kept", branch_id=SECOND_BRANCH)]
    others = [other.batch("step0", 0, "kept")]
    namesakes = [namesake.batch("step0", 0, "kept")]
    await add(store, draft, *gone, *kept)
    await add(store, other, *others)
    await add(elsewhere, namesake, *namesakes)
    assert await read(store, draft) == gone

    added = draft.batch("step1", 1, "added")
    assert await commit(store, offered(draft.transition(drops=[drop("step0")], items=[added]))) == [Committed()]

    assert await read(store, draft) == []
    assert await read(store, draft, "step1") == [kept[0], added]
    assert await read(store, draft, branch_id=SECOND_BRANCH) == [kept[1]]
    assert await dumped(store, draft) == [kept[0], added, kept[1]]
    assert await dumped(store, other) == others
    assert await dumped(elsewhere, namesake) == namesakes


@both_ways
async def test_what_is_added_before_the_place_from_which_is_dropped_stays(
    store: Store, offered: Callable[[Transition], Transition]
) -> None:
    draft = await begin(store)
    await add(store, draft, draft.batch("step0", 0, 1), draft.batch("step0", 2, "gone"))

    added = draft.batch("step0", 1, "added")
    drops = [replace(drop("step0"), first=2), replace(drop("step0"), first=3)]
    assert await commit(store, offered(draft.transition(items=[added], drops=drops))) == [Committed()]

    assert [row.position for row in await read(store, draft)] == [0, 1]


async def test_several_runs_drop_in_one_group(store: Store) -> None:
    drafts = [await begin(store) for _ in range(5)]
    for draft in drafts:
        await add(store, draft.begin_node("step1"), draft.batch("step0", 0, 1), draft.batch("step1", 0, 1))

    outcomes = await commit(
        store,
        *[draft.transition(drops=[drop("step0"), drop("step1"), drop("nothing")]) for draft in drafts[:3]],
        replace(drafts[3].transition(drops=[drop("step0")]), epoch=Epoch(0)),
        drafts[4].transition(),
    )

    assert outcomes == [Committed()] * 3 + [LeaseLost(), Committed()]
    assert [len(await dumped(store, draft)) for draft in drafts] == [0, 0, 0, 2, 2]


async def test_what_is_dropped_twice_or_was_never_there_is_nothing(store: Store) -> None:
    draft = await begin(store)
    await add(store, draft, draft.batch("step0", 0, 1))

    for _ in range(2):
        transition = draft.transition(drops=[drop("step0"), drop("step0"), drop("never there")])
        assert await commit(store, transition) == [Committed()]

    assert await dumped(store, draft) == []


# Reading


async def scattered(store: Store) -> tuple[Draft, list[ItemRow]]:
    """A stream that was not recorded in order, with gaps, in rows of several lengths, some of them by one event."""
    draft = await begin(store)
    recorded: list[ItemRow] = []
    for positions in ((7, 20, 12), (0,), (30, 3), (2,)):
        seq = draft.begin_node(f"other{positions[0]}").batch("step0", 0, None).seq
        rows = [
            ItemRow(
                node_id=NodeId("step0"),
                branch_id=ROOT_BRANCH,
                position=position,
                count=1 + position % 3,
                items=encoded([f"{position}+{place}" for place in range(1 + position % 3)]),
                seq=seq,
            )
            for position in positions
        ]
        await add(store, draft, *rows)
        recorded += sorted(rows, key=lambda row: row.position)
    return draft, recorded


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_a_stream_is_read_in_either_order_in_pages(store: Store, page: int) -> None:
    draft, recorded = await scattered(store)

    assert await read(store, draft, page=page) == sorted(recorded, key=lambda row: row.position)
    assert await read(store, draft, in_order=False, page=page) == recorded


async def test_a_stream_is_read_from_any_place(store: Store) -> None:
    draft, recorded = await scattered(store)
    key = (draft.run_id, ROOT_BRANCH, NodeId("step0"))
    seen = recorded[1]

    by_position = await store.load_items(*key, after=(8, -1), in_order=True, limit=2)
    by_seq = await store.load_items(*key, after=(seen.position, seen.seq), in_order=False, limit=2)

    assert [row.position for row in by_position] == [12, 20]
    assert list(by_seq) == recorded[2:4]


async def test_streams_do_not_mix(store: Store, open_another: OpenStore) -> None:
    elsewhere = await open_another(project_id="elsewhere")
    await save_workflow(elsewhere)
    draft, other, namesake = await begin(store, "a"), await begin(store, "a/1"), started("a")
    draft.begin_node("step1")
    rows = {
        (name, branch_id): draft.batch(name, 0, name, branch_id, branch_id=branch_id)
        for name in ("step1", "step0")
        for branch_id in (SECOND_BRANCH, ROOT_BRANCH)
    }
    others = [other.batch("step0", 0, "other run")]
    namesakes = [namesake.batch("step0", 0, "other project")]
    await add(store, draft, *rows.values())
    await add(store, other, *others)
    await add(elsewhere, namesake, *namesakes)

    for (name, branch_id), row in rows.items():
        for in_order in (True, False):
            assert await read(store, draft, name, branch_id, in_order=in_order) == [row]
    assert await read(store, other) == await dumped(store, other) == others
    assert await read(elsewhere, namesake) == await dumped(elsewhere, namesake) == namesakes
    assert await read(store, draft, "step2") == await read(store, draft, branch_id=BranchId(3)) == []
    everything = [rows[name, branch_id] for branch_id in (ROOT_BRANCH, SECOND_BRANCH) for name in ("step0", "step1")]
    assert await dumped(store, draft) == everything
    assert list(await store.load_ranges(draft.run_id)) == ranges_of(everything)
    assert list(await elsewhere.load_ranges(draft.run_id)) == ranges_of(namesakes)


async def test_ranges_and_dump_are_by_branch_node_and_position(store: Store) -> None:
    draft, recorded = await scattered(store)
    draft.begin_node("a")
    more = [draft.batch("a", 10, 1), draft.batch("a", 9, 1), draft.batch("a", 0, 1, branch_id=SECOND_BRANCH)]
    await add(store, draft, *more)

    expected = sorted([*recorded, *more], key=lambda row: (row.branch_id, row.node_id, row.position))
    assert await dumped(store, draft) == expected
    assert list(await store.load_ranges(draft.run_id)) == ranges_of(expected)


async def test_a_stream_that_is_not_there(store: Store) -> None:
    draft = await begin(store)

    assert await read(store, draft) == await read(store, draft, in_order=False) == await dumped(store, draft) == []
    for run_id in (RunId("nobody"), RunId(NO_TEXT), draft.run_id):
        assert list(await store.load_ranges(run_id)) == []
        for node_id in (NodeId("nothing"), NodeId(NO_TEXT)):
            assert list(await store.load_items(run_id, ROOT_BRANCH, node_id, after=START, in_order=True, limit=9)) == []


# How far it has come


@both_ways
async def test_how_far_a_stream_has_come_is_kept_with_its_node(
    store: Store, offered: Callable[[Transition], Transition]
) -> None:
    draft = await begin(store)
    full = StreamState(
        branch_id=SECOND_BRANCH,
        entries=7,
        digest="äü\x00\ufdd0",
        is_closed=True,
        attempts={3: 2, 11: 1},
        failed=1,
        checkpointed=5,
        consumed={"in\x00put": 9},
    )

    for stream in (StreamState(branch_id=ROOT_BRANCH), full, None):
        transition = draft.begin_node(f"for {stream}").transition(items=[draft.batch("step0", draft.base_seq, 1)])
        nodes = tuple(replace(node, stream=stream) if node.node_id == "step0" else node for node in transition.nodes)
        assert await commit(store, offered(replace(transition, nodes=nodes))) == [Committed()]

        dump = await store.dump_run(draft.run_id)
        assert dump is not None
        expected = dict(draft.projection.nodes)
        expected[NodeId("step0")] = replace(expected[NodeId("step0")], stream=stream)
        assert {node.node_id: node for node in dump.stored.nodes} == expected
        assert dump.all_nodes == dump.stored.nodes
