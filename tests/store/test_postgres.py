"""What only PostgreSQL can do wrong: lost connections, locks, poolers, plans that age, servers with other settings."""

from __future__ import annotations

import asyncio
import re
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest

from perdure.errors import (
    StoreUnavailable,
)
from perdure.ids import BranchId, CommandId, EngineId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.projection import fold
from perdure.store.postgres.address import parse_url
from perdure.store.postgres.documents import is_step_on
from perdure.store.postgres.schema import PACKAGE
from perdure.store.postgres.session import open_session
from perdure.store.postgres.store import READERS_AHEAD, PostgresStore, open_postgres
from perdure.store.queries import load_queries
from perdure.store.shapes import Command, LogLine, RunFilter
from perdure.store.transitions import Busy, Claim, Committed, LeaseLost, Outcome, Rejected
from tests.processes import children_of, signal_all
from tests.servers import Server, start_postgres
from tests.store.builders import ENGINE, Draft, engine_row, error, save_workflow, settle, started
from tests.store.conftest import verify_runs
from tests.store.contents import contents_of
from tests.store.interceptor import AnswerLoser, Pooler

SQL = load_queries("perdure.store.postgres")


@pytest.fixture
def store(postgres_store: PostgresStore) -> PostgresStore:
    return postgres_store


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that may be killed."""
    with start_postgres() as server:
        yield server


async def sessions_waiting_for_locks(raw: Any) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return int(await raw.fetchval(query))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look until it holds: what another process does sends no event here."""
    async with asyncio.timeout(10):
        while not await holds():
            await asyncio.sleep(0.01)


async def until_waiting(raw: Any, count: int) -> None:
    async def are_waiting() -> bool:
        return await sessions_waiting_for_locks(raw) >= count

    await until(are_waiting)


# Fencing under locks


async def test_an_old_owner_that_waits_for_the_row_during_a_takeover_writes_nothing(
    store: PostgresStore, raw: Any, postgres_url: str
) -> None:
    draft = started()
    await store.commit([draft.transition()])
    watcher = await asyncpg.connect(postgres_url)

    async with raw.transaction():
        await raw.execute("UPDATE run_state SET lease_epoch = lease_epoch + 1, owner = 'thief'")
        # What changes nothing about the run itself is written by a statement that waits for the row.
        step = msgspec.structs.replace(draft.next_node(0).transition(), only_steps=True)
        late = asyncio.create_task(settle(store, [step]))
        await until_waiting(watcher, 1)

    assert await late == [LeaseLost()]
    assert await raw.fetchval("SELECT count(*) FROM run_events WHERE seq > $1", draft.base_seq - 3) == 0
    await raw.execute("UPDATE run_state SET lease_epoch = lease_epoch - 1")
    await watcher.close()


async def test_of_a_takeover_and_a_late_commit_that_meet_a_lock_one_counts(
    store: PostgresStore, postgres_url: str, raw: Any
) -> None:
    await store.register_engine(engine_row(ENGINE), ttl_seconds=600)
    draft = started()
    await store.commit([draft.transition()])
    stored = await store.load_run(draft.run_id)
    assert stored is not None
    claim = Draft.continued(stored).claim(EngineId("thief")).transition(Claim(engine_id=EngineId("thief"), dead=ENGINE))
    late = draft.next_node(0).transition()
    another = await open_postgres(postgres_url)

    async with raw.transaction():
        await raw.execute("SELECT FROM run_state FOR UPDATE")
        met = [*await another.commit([claim]), *await store.commit([late])]
    assert [type(outcome) for outcome in met] == [Busy, Busy]
    outcomes = [*await settle(another, [claim]), *await settle(store, [late])]

    assert outcomes == [Committed(), LeaseLost()]
    stored = await store.load_run(draft.run_id)
    assert stored is not None
    assert (stored.owner, stored.run.last_seq) == ("thief", claim.run.last_seq)
    await another.close()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_row_that_changed_but_kept_its_place_is_no_lost_lease(
    store: PostgresStore, raw: Any, count: int
) -> None:
    drafts = [started() for _ in range(count)]
    await store.commit([draft.transition() for draft in drafts])
    group = [draft.next_node(0).transition() for draft in drafts]

    async with raw.transaction():
        await raw.execute("UPDATE run_state SET version = version + 1")
        committing = asyncio.create_task(settle(store, group))
        await asyncio.sleep(0.05)
        assert not committing.done()

    assert await committing == [Committed()] * count


@pytest.mark.parametrize("count", [1, 5, 60])
async def test_a_locked_run_holds_up_no_other(store: PostgresStore, raw: Any, count: int) -> None:
    drafts = [started(f"run-{number}") for number in range(count)]
    await store.commit([draft.transition() for draft in drafts])
    group = [draft.next_node(0).transition() for draft in drafts]
    locked = count // 2

    async with raw.transaction():
        await raw.execute(f"SELECT FROM run_state WHERE run_id = 'run-{locked}' FOR UPDATE")
        async with asyncio.timeout(2):
            outcomes = list(await store.commit(group))
        busy = outcomes.pop(locked)
        assert isinstance(busy, Busy)
        assert "locked" in busy.problem
        assert outcomes == [Committed()] * (count - 1)
        # It is known by then: nothing waits for it any more, with company or without.
        for company in ([], [started().transition()]):
            began = asyncio.get_running_loop().time()
            again, *others = await store.commit([group[locked], *company])
            assert isinstance(again, Busy)
            assert others == [Committed()] * len(company)
            assert asyncio.get_running_loop().time() - began < 0.15

    assert list(await store.commit(group)) == [Committed()] * count
    for draft in drafts:
        stored = await store.load_run(draft.run_id)
        assert stored is not None
        assert stored.run == draft.projection.run


async def test_a_living_owner_is_no_lock(store: PostgresStore, raw: Any) -> None:
    await store.register_engine(engine_row(ENGINE), ttl_seconds=600)
    draft = started()
    await store.commit([draft.transition()])
    stored = await store.load_run(draft.run_id)
    assert stored is not None
    claim = Draft.continued(stored).claim(EngineId("thief")).transition()

    assert list(await store.commit([claim])) == [LeaseLost()]
    async with raw.transaction():
        await raw.execute("SELECT FROM run_state FOR UPDATE")
        assert list(await store.commit([claim])) == [LeaseLost()]


async def test_a_locked_table_is_not_taken_for_many_locked_runs(store: PostgresStore, raw: Any) -> None:
    drafts = [started() for _ in range(30)]
    await store.commit([draft.transition() for draft in drafts])
    group = [draft.next_node(0).transition() for draft in drafts]

    async with raw.transaction():
        await raw.execute("LOCK TABLE run_state")
        async with asyncio.timeout(4):
            outcomes = await store.commit(group)
        assert {type(outcome) for outcome in outcomes} == {Busy}

    assert list(await store.commit(group)) == [Committed()] * 30


async def test_groups_in_any_order_do_not_deadlock(store: PostgresStore, postgres_url: str, raw: Any) -> None:
    another = await open_postgres(postgres_url)
    for turn in range(10):
        drafts = [started() for _ in range(40)]
        await store.commit([draft.transition() for draft in drafts])
        mine = [draft.next_node(0).transition() for draft in drafts]
        born = [started().transition() for _ in range(10)]
        theirs = [Draft.continued(stored).complete_node("step0", turn).begin_node("other").transition()
                  for draft in drafts if (stored := await store.load_run(draft.run_id)) is not None]  # fmt: skip

        first, second = await asyncio.gather(settle(store, mine + born), settle(another, born[::-1] + theirs[::-1]))

        for one, other in zip(first[:40], reversed(second[10:]), strict=True):
            assert sorted((type(one).__name__, type(other).__name__)) == ["Committed", "LeaseLost"]
        assert set(first[40:]) == set(second[:10]) == {Committed()}
    assert await raw.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    await another.close()


# Lost answers and lost connections


async def test_a_commit_whose_answer_is_lost_is_looked_up(postgres_url: str, folder: Path) -> None:
    front = AnswerLoser(postgres_url, folder)
    async with front.serving():
        store = await open_postgres(front.url)
        await save_workflow(store)
        draft = started()
        kinds = [
            draft.transition(),
            draft.next_node(0).transition(),
            draft.step("step1", "s", 1).next_node(1).transition(),
            draft.claim().transition(Claim(engine_id=ENGINE, dead=ENGINE)),
            draft.complete_node("step2").end().transition(),
        ]
        for transition in kinds:
            front.lose_answer_to(transition.events[0].id)
            assert list(await store.commit([transition])) == [Committed()]
        others = [started() for _ in range(5)]
        front.lose_answer_to(others[3].run_id)
        assert list(await store.commit([other.transition() for other in others])) == [Committed()] * 5

        assert front.lost == len(kinds) + 1
        await verify_runs(store)
        assert len(await store.list_runs(RunFilter(), before=None, limit=10)) == 6
        await store.close()


async def test_a_command_whose_answer_is_lost_was_added(postgres_url: str, folder: Path) -> None:
    front = AnswerLoser(postgres_url, folder)
    async with front.serving():
        store = await open_postgres(front.url)
        await save_workflow(store)
        draft = started()
        await store.commit([draft.transition()])
        command = Command(command_id=CommandId("command-7"), run_id=draft.run_id, kind="pause")

        front.lose_answer_to("command-7")
        assert await store.add_command(command)
        assert not await store.add_command(command)

        stored = await store.load_run(draft.run_id)
        assert stored is not None
        assert stored.commands == (command,)
        assert front.lost == 1
        await store.close()


async def test_connections_that_are_cut_at_any_moment_lose_and_double_nothing(store: PostgresStore, raw: Any) -> None:
    drafts = [started() for _ in range(4)]
    await store.commit([draft.transition() for draft in drafts])
    cut = 0

    for number in range(60):
        group = [draft.next_node(number).transition() for draft in drafts[: 1 + number % 4]]
        committing = asyncio.create_task(settle(store, group))
        await asyncio.sleep(number % 10 * 0.0004)
        cut += await raw.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'perdure'"
        )
        assert await committing == [Committed()] * len(group)
        for draft in drafts[1 + number % 4 :]:
            await store.commit([draft.next_node(number).transition()])

    assert cut >= 30
    for draft in drafts:
        stored = await store.load_run(draft.run_id)
        assert stored is not None
        assert stored.run == draft.projection.run


@pytest.mark.slow
async def test_a_server_that_is_restarted_is_waited_for(own_server: Server) -> None:
    own_server.psql("DROP DATABASE IF EXISTS restarted", "CREATE DATABASE restarted")
    store = await open_postgres(own_server.url_of("restarted"))
    await save_workflow(store)
    draft = started()
    await store.commit([draft.transition()])
    outcomes: list[Outcome] = []

    async def write() -> None:
        for number in range(400):
            outcomes.extend(await store.commit([draft.next_node(number).transition()]))

    async def has_begun() -> bool:
        return len(outcomes) >= 50

    writing = asyncio.create_task(write())
    await until(has_begun)
    await asyncio.to_thread(own_server.restart, immediate=True)
    await writing

    assert outcomes == [Committed()] * 400
    await verify_runs(store)
    await store.close()


@pytest.mark.slow
async def test_a_server_that_is_gone_is_reported_in_time(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.postgres.commit.PATIENCE_SECONDS", 0.5)
    own_server.psql("DROP DATABASE IF EXISTS gone", "CREATE DATABASE gone")
    store = await open_postgres(own_server.url_of("gone"))
    await save_workflow(store)
    own_server.stop(immediate=True)
    try:
        async with asyncio.timeout(15):
            with pytest.raises(StoreUnavailable, match="server"):
                await store.commit([started().transition()])
            with pytest.raises(StoreUnavailable):
                await store.list_engines()
            assert not await store.wait_for_news(0.2)
            with pytest.raises(StoreUnavailable):
                await open_postgres(own_server.url_of("gone"))
    finally:
        own_server.start()

    draft = started()
    assert list(await store.commit([draft.transition()])) == [Committed()]
    await store.close()


@pytest.mark.slow
async def test_a_server_that_does_not_answer_is_not_waited_for_without_end(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {
        "lanes.CALL_SECONDS": 0.5,
        "session.CALL_SECONDS": 0.5,
        "commit.PATIENCE_SECONDS": 1.0,
        "session.CONNECT_SECONDS": 0.5,
    }.items():
        monkeypatch.setattr(f"perdure.store.postgres.{name}", seconds)
    own_server.psql("DROP DATABASE IF EXISTS stopped", "CREATE DATABASE stopped")
    store = await open_postgres(own_server.url_of("stopped"))
    await save_workflow(store)
    draft = started()
    await store.commit([draft.transition()])
    transition = draft.next_node(0).transition()
    stopped = [own_server.pid, *children_of(own_server.pid)]
    signal_all(stopped, signal.SIGSTOP)
    try:
        async with asyncio.timeout(15):
            with pytest.raises(StoreUnavailable, match="in time"):
                await store.commit([transition])
            with pytest.raises(StoreUnavailable):
                await store.load_run(draft.run_id)
    finally:
        signal_all(stopped, signal.SIGCONT)

    # The answer was not known; what was sent then may have arrived since. Offered again, it counts once.
    monkeypatch.undo()
    assert await settle(store, [transition]) == [Committed()]
    await verify_runs(store)
    await store.close()


async def test_a_connection_is_cut_off_for_a_long_call_and_not_for_many_short_ones(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.postgres.session.CALL_SECONDS", 0.3)
    sql = {**load_queries(PACKAGE), "sleep": "SELECT pg_sleep($1)"}
    session = await open_session(parse_url(postgres_url), sql)

    for seconds in (0.1,) * 5:
        await session.write("sleep", seconds)
        await asyncio.sleep(seconds)
    assert session.is_idle
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await session.write("sleep", 10.0)
    assert 0.2 < asyncio.get_running_loop().time() - began < 5
    assert not session.is_idle
    await session.close()


async def test_what_a_short_lived_process_did_is_told_before_it_ends(store: PostgresStore, postgres_url: str) -> None:
    draft = started()
    await store.commit([draft.transition()])
    hearing = asyncio.create_task(store.wait_for_news(30))
    number = 0
    while not hearing.done():
        caller = await open_postgres(postgres_url)
        await caller.add_command(Command(command_id=CommandId(str(number)), run_id=draft.run_id, kind="cancel"))
        await caller.close()
        await asyncio.wait([hearing], timeout=0.2)
        number += 1

    assert await hearing
    assert number < 20


# Sessions


async def test_every_session_is_durable_whatever_the_database_says(postgres_url: str, raw: Any) -> None:
    database = urlsplit(postgres_url).path.removeprefix("/")
    for setting in ("synchronous_commit = off", "lock_timeout = 0", "statement_timeout = 0"):
        await raw.execute(f"ALTER DATABASE {database} SET {setting}")

    session = await open_session(parse_url(postgres_url), {**SQL, "show": "SELECT current_setting($1)"})

    assert await session.rows("show", "synchronous_commit") == [("on",)]
    assert await session.rows("show", "idle_in_transaction_session_timeout") == [("5s",)]
    assert await session.rows("show", "lock_timeout") == [("3s",)]
    assert await session.rows("show", "statement_timeout") == [("15s",)]
    await session.close()


async def test_a_stronger_durability_is_left_to_the_operator(postgres_url: str, raw: Any) -> None:
    database = urlsplit(postgres_url).path.removeprefix("/")
    await raw.execute(f"ALTER DATABASE {database} SET synchronous_commit = remote_apply")

    session = await open_session(parse_url(postgres_url), {**SQL, "show": "SELECT current_setting($1)"})

    assert await session.rows("show", "synchronous_commit") == [("remote_apply",)]
    await session.close()


async def test_closing_ends_every_connection(postgres_url: str, raw: Any) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    store = await open_postgres(postgres_url)
    await save_workflow(store)
    drafts = [started() for _ in range(8)]
    await asyncio.gather(*(store.commit([draft.transition()]) for draft in drafts))
    await asyncio.gather(*(store.dump_run(draft.run_id) for draft in drafts), store.renew_engine(ENGINE, ttl_seconds=1))
    await store.wait_for_news(0.1)
    cancelled = asyncio.create_task(store.load_run(drafts[0].run_id))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await raw.fetchval(count) >= 4

    await store.close()

    async def are_gone() -> bool:
        return await raw.fetchval(count) == 0

    await until(are_gone)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.load_run(drafts[0].run_id)


async def test_a_slow_list_does_not_keep_an_engine_from_renewing(store: PostgresStore, raw: Any) -> None:
    await store.register_engine(engine_row(ENGINE), ttl_seconds=600)
    async with raw.transaction():
        await raw.execute("LOCK TABLE workflow_versions IN ACCESS EXCLUSIVE MODE")
        slow = [asyncio.create_task(store.list_versions()) for _ in range(12)]
        async with asyncio.timeout(2):
            assert await store.renew_engine(ENGINE, ttl_seconds=600)
    await asyncio.gather(*slow)


async def test_behind_a_transaction_pooler_nothing_relies_on_a_session(postgres_url: str, folder: Path) -> None:
    front = Pooler(postgres_url, folder)
    async with front.serving():
        with pytest.raises(StoreUnavailable, match="pgbouncer=1"):
            await open_postgres(front.url)

        store = await open_postgres(front.url + "&pgbouncer=1")
        await save_workflow(store)
        drafts = [started() for _ in range(3)]
        assert list(await store.commit([draft.transition() for draft in drafts])) == [Committed()] * 3
        assert list(await store.commit([drafts[0].next_node(0).transition()])) == [Committed()]
        assert list(await store.commit([drafts[0].next_node(1).transition()])) == [Committed()]
        bad = drafts[1].next_node(0).transition()
        ended = drafts[2].complete_node("step0").end().transition()
        broken = type(bad)(
            run_id=bad.run_id,
            epoch=bad.epoch,
            base_seq=bad.base_seq,
            run=bad.run,
            events=bad.events * 2,
            nodes=bad.nodes,
        )
        outcomes = list(await store.commit([broken, ended]))
        assert isinstance(outcomes[0], Rejected)
        assert outcomes[1] == Committed()
        command = Command(command_id=CommandId("c"), run_id=drafts[0].run_id, kind="pause")
        assert await store.add_command(command)
        assert not await store.add_command(command)
        line = LogLine(run_id=drafts[0].run_id, branch_id=drafts[0].projection.run.branch_id, node_id=bad.nodes[0].node_id,
                       attempt=1, at=1, level="info", message="m")  # fmt: skip
        await store.append_logs([line])
        assert [found for _, found in await store.load_logs(drafts[0].run_id, after=0, limit=5)] == [line]
        await store.register_engine(engine_row(ENGINE), ttl_seconds=60)
        assert await store.renew_engine(ENGINE, ttl_seconds=60)
        await store.retire_engine(ENGINE)
        assert not await store.wait_for_news(0.01)
        await verify_runs(store)
        await store.close()


# Connections


async def test_only_who_registers_has_connections_ready_and_none_is_in_a_transaction(
    store: PostgresStore, raw: Any
) -> None:
    asked = """
        SELECT state FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
        """
    before = await raw.fetch(asked)

    await store.register_engine(engine_row(ENGINE), ttl_seconds=600)

    after = await raw.fetch(asked)
    assert len(before) == 1
    assert len(after) == READERS_AHEAD + 2  # for commits, and for news
    assert {row["state"] for row in after} == {"idle"}


async def test_a_store_that_is_closed_while_an_engine_registers_leaves_no_connection(
    postgres_url: str, raw: Any
) -> None:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    for moment in range(12):
        store = await open_postgres(postgres_url)
        registering = asyncio.ensure_future(store.register_engine(engine_row(ENGINE), ttl_seconds=600))
        await asyncio.sleep(moment / 1_000)
        async with asyncio.timeout(10):
            await store.close()
            await asyncio.wait((registering,))
        if not registering.cancelled():
            registering.exception()  # whatever it was, it has ended

    async with asyncio.timeout(10):
        while await raw.fetchval(asked + " AND backend_type = 'client backend'"):
            await asyncio.sleep(0.05)


async def test_a_row_that_changes_just_before_it_is_locked_is_written_at_once(store: PostgresStore, raw: Any) -> None:
    one, other = started(), started()
    await store.commit([one.transition(), other.transition()])
    slow = SQL["commit_group"].replace(
        "FROM jsonb_array_elements($2::jsonb) AS m", "FROM jsonb_array_elements($2::jsonb) AS m, pg_sleep(0.3)"
    )
    assert slow != SQL["commit_group"]
    another = await open_postgres(store.url)
    another._sql["commit_group"] = slow  # pyright: ignore[reportPrivateUsage]
    transitions = [draft.complete_node("step0", 1).transition() for draft in (one, other)]

    async with asyncio.TaskGroup() as group:
        committing = group.create_task(another.commit(transitions))
        await asyncio.sleep(0.15)
        await raw.execute("UPDATE run_state SET owner = NULL WHERE run_id = $1", one.run_id)

    await another.close()
    assert committing.result() == [Committed(), Committed()]
    assert (
        await raw.fetchval("SELECT count(*) FROM run_events WHERE run_id = $1", one.run_id)
        == transitions[0].run.last_seq
    )


# Steps


def failed_before(draft: Draft) -> Draft:
    node_id = NodeId("a")
    failed = e.NodeFailed(node_id=node_id, attempt=1, error=error(), final=False)
    return draft.begin_node("a").add(failed).begin_node("a", attempt=2)


STEPS: dict[str, tuple[bool, Callable[[Draft], Draft], Callable[[Draft], Draft]]] = {
    "ordinary": (True, lambda draft: draft.begin_node("a"), lambda draft: draft.complete_node("a", 1).begin_node("b")),
    "completed after a failure": (True, failed_before, lambda draft: draft.complete_node("a", 1, 2).begin_node("b")),
    "with a checkpoint": (
        True,
        lambda draft: draft.begin_node("a").checkpoint("a", {"at": 7}),
        lambda draft: draft.complete_node("a", 1).begin_node("b"),
    ),
    "with texts that PostgreSQL cannot hold": (
        True,
        lambda draft: draft.begin_node("\x00a\ufdd0"),
        lambda draft: draft.complete_node("\x00a\ufdd0", "\x00 and \ufdd01 \\u0000").begin_node("\ufdd0b\x00"),
    ),
    "started again": (
        False,
        lambda draft: failed_before(draft).begin_node("b"),
        lambda draft: draft.complete_node("b", 1).add(
            e.NodeFailed(node_id=NodeId("a"), attempt=2, error=error(), final=False),
            e.NodeScheduled(node_id=NodeId("a"), attempt=3),
        ),
    ),
    "two that began": (
        False,
        lambda draft: draft.begin_node("a"),
        lambda draft: draft.complete_node("a", 1).begin_node("b").begin_node("c"),
    ),
    "scheduled and not started": (
        False,
        lambda draft: draft.begin_node("a"),
        lambda draft: draft.complete_node("a", 1).add(
            e.NodeScheduled(node_id=NodeId("b"), attempt=1), e.NodeScheduled(node_id=NodeId("c"), attempt=1)
        ),
    ),
    "a stream that began": (
        False,
        lambda draft: draft.begin_node("a"),
        lambda draft: draft.complete_node("a", 1).add(
            e.NodeScheduled(node_id=NodeId("b"), attempt=1), e.NodeStarted(node_id=NodeId("b"), attempt=1, streams=True)
        ),
    ),
    "scheduled before": (
        False,
        lambda draft: draft.begin_node("a").add(e.NodeScheduled(node_id=NodeId("b"), attempt=1)),
        lambda draft: draft.complete_node("a", 1).add(e.NodeStarted(node_id=NodeId("b"), attempt=1)),
    ),
}


@pytest.mark.parametrize("name", STEPS)
async def test_what_is_written_of_a_step_is_what_was_decided(store: PostgresStore, name: str) -> None:
    is_plain, before, after = STEPS[name]
    draft = before(Draft.create().start())
    await store.commit([draft.transition()])
    step = msgspec.structs.replace(after(draft).transition(), only_steps=True)

    assert is_step_on(step) is is_plain
    assert await store.commit([step]) == [Committed()]
    assert await store.commit([step]) == [Committed()]  # as when the answer was lost

    stored = await store.load_run(draft.run_id)
    assert stored is not None
    assert stored.run == draft.projection.run
    assert {node.node_id: node for node in stored.nodes} == draft.projection.nodes
    events = await store.load_events(draft.run_id, after=Seq(0), limit=100)
    assert tuple(events[-len(step.events) :]) == step.events
    assert fold(draft.run_id, events).nodes == draft.projection.nodes


async def test_a_node_that_begins_on_a_branch_has_a_row_already(store: PostgresStore) -> None:
    draft = Draft.create().start().begin_node("a")
    on_branch = msgspec.structs.replace(draft.complete_node("a", 1).begin_node("b").transition(), only_steps=True)
    done, begun = on_branch.nodes

    assert not is_step_on(
        msgspec.structs.replace(
            on_branch, nodes=(done, msgspec.structs.replace(begun, branch_id=BranchId(2), generation=2))
        )
    )


# Plans


@pytest.mark.parametrize("is_analysed", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 300])
@pytest.mark.new_database
async def test_plans_made_for_small_tables_are_right_for_large_ones(
    store: PostgresStore, raw: Any, rows: int, is_analysed: bool
) -> None:
    if rows:
        await store.commit([started().transition() for _ in range(rows)])
    if is_analysed:
        await raw.execute("VACUUM ANALYZE")
    await raw.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    foreign_key = "SELECT 1 FROM ONLY run_state x WHERE project_id = $1 AND run_id = $2 FOR KEY SHARE OF x"
    found_in = {
        SQL["step_run"]: {"run_state"},
        SQL["step_on"]: {"run_state", "run_node_state"},
        SQL["commit_group"]: {"run_state", "run_commands", "run_archives", "run_steps", "run_inbox_messages"},
        SQL["commit_audited"]: {"run_state", "run_commands", "run_archives", "run_steps", "run_inbox_messages"},
        SQL["look_up"]: {"run_state", "run_events"},
        SQL["look_up_audited"]: {"run_state"},
        foreign_key: {"run_state"},
    }

    for mode in ("force_generic_plan", "force_custom_plan"):
        await raw.execute(f"SET plan_cache_mode = {mode}")
        for statement, tables in found_in.items():
            plan = await _plan(raw, statement)
            scans = re.findall(r"Scan using (\w+) on (run_\w+).*\n\s+(.*)", plan)
            assert {table for _, table, _ in scans} == tables, plan
            for index, table, condition in scans:
                assert index == f"{table}_pkey", plan
                assert re.match(r"Index Cond: .*(\brun_id = |ROW\(project_id, run_id\) >= )", condition), plan
            assert "Seq Scan" not in plan
            assert "Bitmap Heap Scan on run_" not in plan


@pytest.mark.parametrize("is_analysed", [False, True])
@pytest.mark.parametrize("streams", [0, 1, 40])
@pytest.mark.new_database
async def test_streams_are_found_by_their_keys(store: PostgresStore, raw: Any, streams: int, is_analysed: bool) -> None:
    for _ in range(streams):
        draft = started()
        await store.commit(
            [draft.transition(items=[draft.batch("step0", position, position) for position in range(9)])]
        )
    if is_analysed:
        await raw.execute("VACUUM ANALYZE")
    await raw.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    of_stream = ("run_id = ", "branch_id = ", "node_id = ")
    expected = {
        "commit_group": ("run_inbox_messages_pkey", of_stream),
        "load_items_by_position": ("run_inbox_messages_pkey", (*of_stream, '"position" > ')),
        "load_items_by_seq": ("run_inbox_messages_by_seq", (*of_stream, 'ROW(seq, "position") > ')),
        "load_ranges": ("run_inbox_messages_pkey", ("run_id = ",)),
    }

    for mode in ("force_generic_plan", "force_custom_plan"):
        await raw.execute(f"SET plan_cache_mode = {mode}")
        for name, (index, conditions) in expected.items():
            plan = await _plan(raw, SQL[name])
            lookups = re.findall(r"Scan using (\w+) on run_inbox_messages.*\n\s+Index Cond: (.*)", plan)
            assert [found for found, _ in lookups] == [index], plan
            assert all(condition in lookups[0][1] for condition in conditions), plan
            assert "Sort" not in plan or name == "commit_group", plan


async def test_items_in_flight_are_shown_in_a_view(store: PostgresStore, raw: Any) -> None:
    draft = started("r")
    await store.commit([draft.transition(items=[draft.batch("step0", 3, "a", "b")])])

    row = await raw.fetchrow("SELECT * FROM run_inbox")

    assert (row["message_id"], row["position"], row["count"]) == ("r/1/step0/3", 3, 2)


async def _plan(raw: Any, statement: str) -> str:
    await raw.execute(f"PREPARE asked AS {statement}")
    types = await raw.fetchval("SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'asked'")
    values = {
        "text": "'default'",
        "bigint": "1",
        "jsonb": "'[[]]'",
        "text[]": "'{a}'",
        "bigint[]": "'{1}'",
        "boolean[]": "'{f}'",
    }
    rows = await raw.fetch(f"EXPLAIN EXECUTE asked ({', '.join(values[kind] for kind in types)})")
    await raw.execute("DEALLOCATE asked")
    return "\n".join(row[0] for row in rows)


@pytest.mark.new_database
async def test_the_samples_for_statistics_are_gone(postgres_url: str) -> None:
    store = await open_postgres(postgres_url)
    await store.close()

    contents = await contents_of(postgres_url)

    assert {name for name, rows in contents.items() if rows} == {"schema_migrations"}


async def test_the_projection_view_shows_a_run_in_one_row(store: PostgresStore, raw: Any) -> None:
    draft = started().complete_node("step0", "nul \x00 and \ud7ff").begin_node("step1")
    await store.commit([draft.transition()])

    row = await raw.fetchrow("SELECT status, last_event_seq, node_states FROM run_projections")

    assert (row["status"], row["last_event_seq"]) == ("running", draft.projection.run.last_seq)
    assert '"step0"' in row["node_states"]
    leases = await raw.fetch("SELECT * FROM run_leases")
    assert leases == []


async def test_a_text_that_is_none_is_rejected_alone(store: PostgresStore) -> None:
    bad, good = started(), started()
    await store.commit([bad.transition(), good.transition()])
    broken = bad.add(e.RunPausing(reason="lone \ud800 surrogate")).transition()

    outcomes = list(await store.commit([broken, good.next_node(0).transition()]))

    assert isinstance(outcomes[0], Rejected)
    assert outcomes[1] == Committed()
