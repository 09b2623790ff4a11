"""What every store promises of runs that have completed: it tells how long their nodes took, and finds them at once."""

from __future__ import annotations

import re
from typing import Any

import apsw
import asyncpg
import pytest
from msgspec.structs import replace

from perdure.ids import ROOT_BRANCH, BranchId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.states import NodeState, WaitKind, WaitState, WaitStatus
from perdure.journal.times import PastNode, PastRun, PastWait
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.past import WAITS_PER_RUN
from perdure.store.queries import load_queries
from perdure.store.transitions import Committed, Transition
from tests.store.builders import WORKFLOW, Draft, error, save_workflow, started
from tests.store.conftest import OpenStore

LATE = 2**40
"""Later than all that is made up elsewhere."""


async def complete(store: Store, draft: Draft, *, ended_at: int, waits: tuple[WaitState, ...] = ()) -> None:
    transition = draft.end().transition(waits=waits)
    await put(store, replace(transition, run=replace(transition.run, ended_at=ended_at)))


async def put(store: Store, transition: Transition) -> None:
    assert list(await store.commit([transition])) == [Committed()]


async def ids(store: Store, workflow: str = WORKFLOW, version: int = 1, *, limit: int = 9) -> list[str]:
    return [run.run_id for run in await store.past_runs(workflow, version, limit=limit)]


def past_node(node: NodeState, *, items: int | None = None) -> PastNode:
    return PastNode(
        node_id=node.node_id,
        scheduled_at=node.scheduled_at,
        started_at=node.started_at,
        ended_at=node.ended_at,
        duration_ms=node.duration_ms,
        items=items,
    )


@pytest.fixture
def store(unverified_store: Store) -> Store:
    """A store whose runs are not verified in the end: when they ended is put by hand."""
    return unverified_store


async def test_the_last_completed_runs_come_first_and_not_more_than_wanted(store: Store) -> None:
    for number, ended_at in ((1, 30), (2, 10), (3, 40), (4, 40), (5, 20)):
        await complete(store, started(f"r{number}").complete_node("step0"), ended_at=LATE + ended_at)

    assert await ids(store) == ["r4", "r3", "r1", "r5", "r2"]
    assert await ids(store, limit=2) == ["r4", "r3"]


async def test_only_completed_runs_of_the_version_and_the_project_count(store: Store, open_another: OpenStore) -> None:
    other = await store.save_version(WORKFLOW, "another", b'{"name":"other"}', {}, at=1)
    elsewhere = await open_another(project_id="elsewhere")
    await save_workflow(elsewhere)
    await complete(elsewhere, started("theirs").complete_node("step0"), ended_at=LATE)
    await complete(store, started("ours").complete_node("step0"), ended_at=LATE)
    await put(store, started("moving").transition())
    failed = started("failed").add(e.RunFailing(node_id=None, error=error()), e.RunFailed(node_id=None, error=error()))
    await put(store, failed.transition())
    of_other = Draft.create("of-other", version=other.version).start().begin_node("step0").complete_node("step0")
    await complete(store, of_other, ended_at=LATE)

    assert await ids(store) == ["ours"]
    assert await ids(store, version=other.version) == ["of-other"]
    assert await ids(elsewhere) == ["theirs"]
    assert await ids(store, "unknown") == await ids(store, "no \ud800 text") == []


async def test_it_is_told_when_nodes_began_and_ended_and_what_they_waited_for(store: Store) -> None:
    draft = started("r").complete_node("step0").begin_node("step1").complete_node("step1")
    draft.add(e.NodeSkipped(node_id=NodeId("step2"), reason="no"))
    waits = (
        wait("signalled", settled_at=20),
        wait("open", settled_at=None),
        wait("slept", WaitKind.SLEEP, settled_at=9),
    )
    await complete(store, draft, ended_at=LATE, waits=waits)

    (run,) = await store.past_runs(WORKFLOW, 1, limit=9)

    nodes = {name: draft.projection.node(NodeId(name)) for name in ("step0", "step1")}
    assert sorted(run.nodes, key=lambda node: node.node_id) == [past_node(node) for node in nodes.values()]
    assert sorted(run.waits, key=lambda waited: waited.kind) == [
        PastWait(node_id=NodeId("step1"), kind=WaitKind.SIGNAL, opened_at=5, settled_at=20),
        PastWait(node_id=NodeId("step1"), kind=WaitKind.SLEEP, opened_at=5, settled_at=9),
    ]


async def test_it_is_told_how_many_items_a_node_has_done(store: Store) -> None:
    node_id = NodeId("step0")
    draft = Draft.create("r").start()
    draft.add(
        e.NodeScheduled(node_id=node_id, attempt=1),
        e.NodeStarted(node_id=node_id, attempt=1, streams=True, generates=True),
        e.OutboxEnqueued(node_id=node_id, attempt=1, ranges=((0, 7),), digest="d"),
        e.OutboxClosed(node_id=node_id, attempt=1, entries=7),
    ).complete_node("step0")
    await complete(store, draft, ended_at=LATE)

    (run,) = await store.past_runs(WORKFLOW, 1, limit=9)

    assert run.nodes == (past_node(draft.projection.node(node_id), items=7),)


async def test_only_the_branch_on_which_a_run_has_completed_counts(store: Store) -> None:
    draft = started("r").complete_node("step0").begin_node("step1").complete_node("step1")
    transition = draft.end().transition()
    moved = tuple(replace(node, branch_id=BranchId(2)) for node in transition.nodes if node.node_id == "step1")
    await put(
        store,
        replace(transition, run=replace(transition.run, branch_id=BranchId(2)), nodes=(*transition.nodes, *moved)),
    )

    (run,) = await store.past_runs(WORKFLOW, 1, limit=9)

    assert [node.node_id for node in run.nodes] == ["step1"]


async def test_of_very_many_waits_some_are_told(store: Store) -> None:
    for number in range(2):
        draft = started(f"r{number}").complete_node("step0")
        waits = tuple(wait(f"w{number}-{place}", settled_at=20) for place in range(WAITS_PER_RUN + number))
        await complete(store, draft, ended_at=LATE, waits=waits)

    found: list[PastRun] = list(await store.past_runs(WORKFLOW, 1, limit=9))

    assert [len(run.waits) for run in found] == [WAITS_PER_RUN, WAITS_PER_RUN]


# Plans


@pytest.mark.parametrize(
    ("name", "lookup"),
    [
        ("past_runs", "run_state USING INDEX run_state_completed (project_id=? AND workflow=? AND workflow_version=?)"),
        ("past_nodes", "run_node_state USING PRIMARY KEY (project_id=? AND run_id=? AND branch_id=?)"),
        (
            "past_waits",
            "run_waits USING INDEX sqlite_autoindex_run_waits_1 (project_id=? AND run_id=? AND branch_id=?)",
        ),
    ],
)
async def test_sqlite_finds_them_by_an_index_alone(sqlite_url: str, name: str, lookup: str) -> None:
    await (await open_store(sqlite_url)).close()
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    statement = load_queries("perdure.store.sqlite")[name]

    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * statement.count("?"))]
    connection.close()

    assert plan == [f"SEARCH {lookup}"]


@pytest.mark.parametrize("runs", [0, 40])
async def test_postgres_finds_them_by_indexes_alone(postgres_url: str, runs: int) -> None:
    store = await open_store(postgres_url)
    await save_workflow(store)
    for number in range(runs):
        await complete(store, started().complete_node("step0"), ended_at=LATE + number)
    await store.close()
    raw: Any = await asyncpg.connect(postgres_url)
    await raw.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    for mode in ("force_generic_plan", "force_custom_plan"):
        await raw.execute(f"SET plan_cache_mode = {mode}")
        await raw.execute(f"PREPARE asked AS {load_queries('perdure.store.postgres')['past_runs']}")

        rows = await raw.fetch("EXPLAIN EXECUTE asked ('default', 'letters', 1, 20, 1000)")

        await raw.execute("DEALLOCATE asked")
        plan = "\n".join(row[0] for row in rows)
        lookups = re.findall(r"Index Scan(?: Backward)? using (\w+) on", plan)
        assert sorted(lookups) == ["run_node_state_pkey", "run_state_completed", "run_waits_pkey"], plan
        assert "Seq Scan" not in plan
        assert "Sort" not in plan
    await raw.close()


def wait(wait_id: str, kind: WaitKind = WaitKind.SIGNAL, *, settled_at: int | None) -> WaitState:
    return WaitState(
        wait_id=wait_id,
        node_id=NodeId("step1"),
        branch_id=ROOT_BRANCH,
        kind=kind,
        name="n",
        status=WaitStatus.OPEN if settled_at is None else WaitStatus.SETTLED,
        signal="s" if kind is WaitKind.SIGNAL else None,
        due=7 if kind is WaitKind.SLEEP else None,
        opened_at=5,
        settled_at=settled_at,
        last_seq=Seq(1),
    )
