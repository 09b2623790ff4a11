"""What every store promises of everything but `commit`: what was written is found, whole, in order, in pages."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure.ids import CommandId, EngineId, NodeId, RunId, Seq, digest_of
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.shapes import Command, LogLine, RunFilter, WorkflowVersion
from perdure.store.transitions import BlobUse, Claim, Committed, Keep
from tests.store.builders import (
    ENGINE,
    GRAPH,
    GRAPH_HASH,
    WORKFLOW,
    Draft,
    encoded,
    engine_row,
    save_workflow,
    started,
)
from tests.store.conftest import OpenStore

NASTY = [
    "it's",
    'a"b',
    "100%",
    "under_score",
    "back\\slash",
    "a;--",
    "ünï",
    "𝔘💥",
    "nul\x00here",
    "\ufdd0",
    "$1",
    "?1",
    "  ",
    "{}",
]


# Blobs


async def test_the_blobs_of_every_project_are_in_use(store: Store, open_another: OpenStore) -> None:
    ours, theirs, nobodys = digest_of(b"ours"), digest_of(b"theirs"), digest_of(b"nobody's")
    elsewhere = await open_another(project_id="elsewhere")
    await save_workflow(elsewhere)
    for where, digest in ((store, ours), (elsewhere, theirs)):
        run = replace(started().transition(Claim(engine_id=ENGINE)), blobs=(BlobUse(digest=digest, size=4),))
        assert await where.commit([run]) == [Committed()]

    assert await store.used_blobs([ours, theirs, nobodys]) == {ours, theirs}
    assert await elsewhere.used_blobs([ours, theirs, nobodys]) == {ours, theirs}
    assert await store.used_blobs([nobodys]) == set()
    assert await store.used_blobs([]) == set()


async def test_no_blob_is_in_use_where_there_are_none(store: Store) -> None:
    assert await store.used_blobs([digest_of(b"x")]) == set()


async def test_a_blob_is_in_use_while_a_command_that_names_it_waits(store: Store) -> None:
    digest = digest_of(b"said")
    run = started()
    await store.commit([run.transition(Claim(engine_id=ENGINE))])
    said = Command(
        command_id=CommandId("c1"),
        run_id=run.run_id,
        kind="resolve",
        payload={"blobs": [{"digest": digest, "size": 4}]},
    )
    await store.add_command(said)

    assert await store.used_blobs([digest, digest_of(b"other")]) == {digest}

    taken = replace(run.add(e.NodeScheduled(node_id=NodeId("a"), attempt=1)).transition(), commands=(said.command_id,))
    assert await store.commit([taken]) == [Committed()]
    assert await store.used_blobs([digest]) == set()


# Versions


async def test_the_same_graph_is_saved_once(store: Store) -> None:
    first = await store.save_version("w", "hash-1", b"{}", {"module": "m"}, at=5)
    again = await store.save_version("w", "hash-1", b"{}", {"module": "elsewhere"}, at=6)
    second = await store.save_version("w", "hash-2", b'{"a":1}', {}, at=7)
    other = await store.save_version("v", "hash-1", b"{}", {}, at=8)

    assert first == WorkflowVersion(
        workflow="w", version=1, graph_hash="hash-1", graph=b"{}", source={"module": "m"}, created_at=5
    )
    assert again == first
    assert (second.version, second.graph) == (2, b'{"a":1}')
    assert other.version == 1
    assert await store.load_version("w", 2) == second
    assert await store.load_version("w", 3) is None
    assert list(await store.list_versions("w")) == [first, second]
    assert [(v.workflow, v.version) for v in await store.list_versions()] == [
        (WORKFLOW, 1),
        ("v", 1),
        ("w", 1),
        ("w", 2),
    ]


async def test_versions_saved_at_the_same_time_are_numbered_without_gaps(store: Store, open_another: OpenStore) -> None:
    stores = [store, *[await open_another() for _ in range(3)]]

    saved = await asyncio.gather(
        *(stores[n % 4].save_version("w", digest_of(b"%d" % (n % 10)), b"%d" % (n % 10), {}, at=n) for n in range(20))
    )

    assert sorted({version.version for version in saved}) == list(range(1, 11))
    assert {(version.graph, version.version) for version in saved} == {(v.graph, v.version) for v in saved[:10]}
    assert [version.version for version in await store.list_versions("w")] == list(range(1, 11))


# Runs


async def test_a_run_that_is_not_there(store: Store) -> None:
    for run_id in (RunId("nobody"), *map(RunId, NASTY)):
        assert await store.load_run(run_id) is None
        assert await store.load_state(run_id) is None
        assert await store.dump_run(run_id) is None
        assert list(await store.load_events(run_id, after=Seq(0), limit=10)) == []
        assert list(await store.load_logs(run_id, after=0, limit=10)) == []


async def test_events_come_in_pages(store: Store) -> None:
    draft = started()
    born = draft.transition()
    more = [draft.next_node(number).transition() for number in range(10)]
    for transition in (born, *more):
        await store.commit([transition])
    everything = [entry for transition in (born, *more) for entry in transition.events]

    pages = []
    after = Seq(0)
    while page := await store.load_events(draft.run_id, after=after, limit=7):
        pages.append(list(page))
        after = page[-1].seq

    assert [entry for page in pages for entry in page] == everything
    assert [len(page) for page in pages] == [7, 7, 7, 7, 7]
    assert len(everything) == 35


async def test_a_dump_holds_everything(store: Store) -> None:
    draft = started()
    transitions = [
        draft.transition(),
        draft.step("step0", "s", [1]).next_node(0).transition(blobs=[BlobUse(digest="d", size=3)]),
    ]
    for transition in transitions:
        await store.commit([transition])
    command = Command(command_id=CommandId("c"), run_id=draft.run_id, kind="pause", payload={"why": None}, created_at=1)
    await store.add_command(command)

    dump = await store.dump_run(draft.run_id)

    assert dump is not None
    events = [entry for transition in transitions for entry in transition.events]
    assert list(dump.events) == events
    assert dump.stored == await store.load_run(draft.run_id)
    assert dump.stored.commands == (command,)
    assert dump.stored.steps == transitions[1].steps
    assert {node.node_id: node for node in dump.all_nodes} == draft.projection.nodes
    assert dump.blobs == (BlobUse(digest="d", size=3),)
    assert dump.version is not None
    assert (dump.version.graph_hash, dump.version.graph) == (GRAPH_HASH, GRAPH)


async def test_runs_are_listed_newest_first_in_pages(store: Store) -> None:
    drafts = [Draft.create(f"run-{number:02}", at=1_000 + number // 3) for number in range(20)]
    await store.commit([draft.transition(Keep()) for draft in drafts])

    seen: list[str] = []
    before = None
    while page := await store.list_runs(RunFilter(), before=before, limit=6):
        assert len(page) <= 6
        seen += [summary.run_id for summary in page]
        before = (page[-1].created_at, page[-1].run_id)

    assert seen == [f"run-{number:02}" for number in reversed(range(20))]


async def test_a_summary_says_what_the_run_is(store: Store) -> None:
    draft = started().add(e.RunPausing(reason="lunch"))
    await store.commit([draft.transition(Claim(engine_id=ENGINE))])

    (summary,) = await store.list_runs(RunFilter(), before=None, limit=10)

    run = draft.projection.run
    assert (summary.run_id, summary.workflow, summary.version, summary.status) == (
        draft.run_id,
        WORKFLOW,
        1,
        run.status,
    )
    assert (summary.created_at, summary.started_at, summary.ended_at) == (run.created_at, run.started_at, None)
    assert (summary.owner, summary.reason) == (ENGINE, "lunch")


async def test_runs_are_filtered(store: Store) -> None:
    await save_workflow(store, "other")
    running, created, other = started("ab-1"), Draft.create("ab-2"), Draft.create("ac-3", workflow="other")
    await store.commit([running.transition(), created.transition(Keep()), other.transition(Keep())])

    async def ids(**which: object) -> set[str]:
        return {run.run_id for run in await store.list_runs(RunFilter(**which), before=None, limit=10)}  # type: ignore[arg-type]

    assert await ids() == {"ab-1", "ab-2", "ac-3"}
    assert await ids(status=(RunStatus.RUNNING,)) == {"ab-1"}
    assert await ids(status=(RunStatus.CREATED, RunStatus.RUNNING)) == {"ab-1", "ab-2", "ac-3"}
    assert await ids(status=(RunStatus.FAILED,)) == set()
    assert await ids(workflow="other") == {"ac-3"}
    assert await ids(id_prefix="ab-") == {"ab-1", "ab-2"}
    assert await ids(id_prefix="") == {"ab-1", "ab-2", "ac-3"}
    assert await ids(id_prefix="ab-", workflow="other") == set()
    assert await ids(status=(RunStatus.CREATED,), workflow=WORKFLOW, id_prefix="ab") == {"ab-2"}
    assert await ids(project_id="somebody else") == set()


async def test_nasty_texts_are_found_as_they_are(store: Store) -> None:
    for text in NASTY:
        await save_workflow(store, text)
        assert list(await store.commit([Draft.create(text + "-run", workflow=text).transition(Keep())])) == [
            Committed()
        ]

    for text in NASTY:
        by_prefix = await store.list_runs(RunFilter(id_prefix=text), before=None, limit=100)
        by_workflow = await store.list_runs(RunFilter(workflow=text), before=None, limit=100)
        assert [run.run_id for run in by_prefix] == [text + "-run"], text
        assert [(run.run_id, run.workflow) for run in by_workflow] == [(text + "-run", text)], text
        stored = await store.load_run(RunId(text + "-run"))
        assert stored is not None
        assert stored.run.workflow == text
        assert [version.workflow for version in await store.list_versions(text)] == [text]
    assert await store.list_runs(RunFilter(id_prefix="%"), before=None, limit=100) == []
    assert await store.list_runs(RunFilter(workflow="under.score"), before=None, limit=100) == []


# Values


VALUES = {
    "unicode": "äöü ß 漢字 🙂 \U0010ffff \ufdd0 \ufeff",
    "nul": "a\x00b\x00",
    "escapes": 'quote " backslash \\ newline \n tab \t \x1f \x7f \\u0000',
    "numbers": [0, -1, 2**53, 1e308, 5e-324, 0.1, -0.0],
    "nested": {"": {"$": "tuple", "v": [[], {}, None, True]}},
    "large": "x\u20ac" * (5_000_000 // 4),
}


@pytest.mark.parametrize("name", VALUES)
async def test_values_come_back_as_they_were(store: Store, name: str) -> None:
    value = encoded(VALUES[name])
    draft = Draft.create(inputs={"in": value}).start().begin_node("one")
    draft.add(e.NodeCheckpointed(node_id=NodeId("one"), attempt=1, state=value))
    born = draft.step("one", "s", VALUES[name]).transition()
    ended = draft.complete_node("one", VALUES[name]).end(VALUES[name]).transition()

    assert list(await store.commit([born])) == [Committed()]
    assert list(await store.commit([ended])) == [Committed()]

    dump = await store.dump_run(draft.run_id)
    assert dump is not None
    assert dump.events == born.events + ended.events
    assert dump.stored.run == draft.projection.run
    assert dump.stored.nodes == tuple(draft.projection.nodes.values())
    assert bytes(dump.stored.steps[0].result) == bytes(value)
    assert bytes(dump.stored.run.inputs["in"]) == bytes(value)


@pytest.mark.parametrize("text", NASTY)
async def test_texts_of_all_kinds_come_back_as_they_were(store: Store, text: str) -> None:
    await store.register_engine(replace(engine_row(EngineId(text)), host=text, name=text), ttl_seconds=60)
    draft = Draft.create().start(EngineId(text)).begin_node(text).step(text, text, text)
    draft.complete_node(text, text)
    await store.commit([draft.transition()])
    command = Command(command_id=CommandId(text), run_id=draft.run_id, kind=text, payload={text: text})
    assert await store.add_command(command)
    await store.commit([draft.add(e.RunPausing(reason=text)).transition()])
    line = LogLine(
        run_id=draft.run_id, branch_id=draft.projection.run.branch_id, node_id=NodeId(text), attempt=1, at=1, level="info",
        message=text, fields={text: text},
    )  # fmt: skip
    await store.append_logs([line])

    stored = await store.load_run(draft.run_id)

    assert stored is not None
    assert (stored.run, stored.owner) == (draft.projection.run, text)
    assert {node.node_id: node for node in stored.nodes} == draft.projection.nodes
    assert stored.steps[0].name == text
    assert stored.commands == (command,)
    assert list(await store.pending_commands(EngineId(text))) == [command]
    assert [logged for _, logged in await store.load_logs(draft.run_id, after=0, limit=9)] == [line]
    assert [(engine.engine_id, engine.host) for engine in await store.list_engines()] == [(text, text)]
    assert await store.renew_engine(EngineId(text), ttl_seconds=60)


# Engines


async def test_an_engine_lives_until_it_expires_or_retires(store: Store, open_another: OpenStore) -> None:
    another = await open_another()
    await store.register_engine(engine_row(ENGINE), ttl_seconds=600)
    await store.register_engine(engine_row(EngineId("engine-z")), ttl_seconds=0)

    assert list(await another.list_engines()) == [
        engine_row(ENGINE),
        replace(engine_row(EngineId("engine-z")), is_alive=False),
    ]
    assert await store.renew_engine(ENGINE, ttl_seconds=600)
    assert not await store.renew_engine(EngineId("engine-z"), ttl_seconds=600)
    assert not await store.renew_engine(EngineId("nobody"), ttl_seconds=600)

    assert await store.renew_engine(ENGINE, ttl_seconds=0)
    assert not await store.renew_engine(ENGINE, ttl_seconds=600)
    assert [engine.is_alive for engine in await another.list_engines()] == [False, False]

    await store.retire_engine(ENGINE)
    await store.retire_engine(EngineId("nobody"))
    assert [engine.engine_id for engine in await another.list_engines()] == ["engine-z"]


async def test_a_retired_engine_lets_go_of_its_runs_and_no_others(store: Store) -> None:
    for engine_id in (ENGINE, EngineId("engine-b")):
        await store.register_engine(engine_row(engine_id), ttl_seconds=600)
    drafts = [started(engine_id=ENGINE), started(engine_id=ENGINE), started(engine_id=EngineId("engine-b"))]
    await store.commit([draft.transition() for draft in drafts])

    await store.retire_engine(ENGINE)

    owners = {run.run_id: run.owner for run in await store.list_runs(RunFilter(), before=None, limit=10)}
    assert [owners[draft.run_id] for draft in drafts] == [None, None, "engine-b"]
    assert list(await store.commit([drafts[2].next_node(0).transition()])) == [Committed()]


async def test_engines_that_are_gone_are_forgotten_unless_a_run_names_them(store: Store) -> None:
    for name in ("idle", "owning", "kept"):
        await store.register_engine(engine_row(EngineId(name)), ttl_seconds=0)
    draft = started(engine_id=EngineId("owning"))
    await store.commit([draft.transition()])

    await store.forget_engines([EngineId("idle"), EngineId("owning"), EngineId("nobody")])
    assert [engine.engine_id for engine in await store.list_engines()] == ["kept", "owning"]

    await store.commit([draft.complete_node("step0").end().transition()])
    await store.forget_engines([EngineId("owning")])
    await store.forget_engines([])
    assert [engine.engine_id for engine in await store.list_engines()] == ["kept"]


# Recovery


async def claimable(store: Store, *, dead: list[EngineId] | None = None, page: int = 3) -> list[str]:
    """All claimable runs, page by page."""
    found: list[str] = []
    after = None
    while runs := await store.find_claimable(dead=dead or [], after=after, limit=page):
        assert len(runs) <= page
        found += [run.run_id for run in runs]
        after = (runs[-1].created_at, runs[-1].run_id)
    return found


async def test_runs_without_a_living_owner_are_found_oldest_first(store: Store) -> None:
    await store.register_engine(engine_row(ENGINE), ttl_seconds=600)
    await store.register_engine(engine_row(EngineId("expired")), ttl_seconds=0)
    free = [Draft.create(f"free-{n}", at=100 - n) for n in range(5)]
    owned = [started(f"owned-{n}", engine_id=ENGINE, at=n + 1) for n in range(5)]
    lost = [started(f"lost-{n}", engine_id=EngineId("expired"), at=50 + n) for n in range(2)]
    await store.commit([draft.transition(Keep()) for draft in free])
    await store.commit([draft.transition() for draft in (*owned, *lost)])

    expected = ["lost-0", "lost-1", "free-4", "free-3", "free-2", "free-1", "free-0"]
    assert await claimable(store) == expected
    assert await claimable(store, dead=[ENGINE]) == [f"owned-{n}" for n in range(5)] + expected
    assert await claimable(store, dead=[EngineId("nobody")]) == expected

    await store.retire_engine(ENGINE)
    assert await claimable(store, page=100) == [f"owned-{n}" for n in range(5)] + expected


async def test_a_resting_run_is_claimable_when_it_is_asked_something(store: Store) -> None:
    resting, ended = started("resting"), started("ended")
    resting.add(e.RunPausing(), e.RunPaused())
    ended.complete_node("step0").end()
    await store.commit([resting.transition(), ended.transition()])
    assert await claimable(store) == []

    for draft in (resting, ended):
        await store.add_command(Command(command_id=CommandId(draft.run_id), run_id=draft.run_id, kind="resume"))

    (found,) = await store.find_claimable(dead=[], after=None, limit=10)
    assert (found.run_id, found.owner, found.created_at) == ("resting", None, resting.projection.run.created_at)

    taken = resting.claim().add(e.RunResumed()).transition(Claim(engine_id=ENGINE), commands=[CommandId("resting")])
    await store.register_engine(engine_row(ENGINE), ttl_seconds=600)
    assert list(await store.commit([taken])) == [Committed()]
    assert await claimable(store) == []


# Logs


async def test_log_lines_are_kept_in_order_and_read_in_pages(store: Store) -> None:
    draft, other = started(), started()
    await store.commit([draft.transition(), other.transition()])

    def line(run: Draft, number: int) -> LogLine:
        return LogLine(
            run_id=run.run_id,
            branch_id=run.projection.run.branch_id,
            node_id=NodeId("step0"),
            attempt=1,
            at=number,
            level="info",
            message=f"line {number}",
            fields={"number": number, "of": None, "what": str(number)},
        )

    await store.append_logs([line(draft, 0), line(other, 100), line(draft, 1)])
    await store.append_logs([line(draft, number) for number in range(2, 10)])
    await store.append_logs([])

    pages = []
    after = 0
    while page := await store.load_logs(draft.run_id, after=after, limit=4):
        pages.append([entry for _, entry in page])
        after = page[-1][0]

    assert [len(page) for page in pages] == [4, 4, 2]
    assert [entry for page in pages for entry in page] == [line(draft, number) for number in range(10)]
    assert [entry for _, entry in await store.load_logs(other.run_id, after=0, limit=4)] == [line(other, 100)]
