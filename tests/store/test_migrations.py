"""What every store promises of older databases: they end with the same tables as a fresh one, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import asyncpg
import pytest
from msgspec.structs import replace

from perdure.errors import StoreTooNew
from perdure.ids import ROOT_BRANCH, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.states import CheckpointState, RunStatus, SignalState, WaitKind, WaitState
from perdure.store import migrate
from perdure.store.opening import open_store
from perdure.store.shapes import Wakings
from perdure.store.transitions import Claim, Committed
from tests.servers import Databases
from tests.store.builders import ENGINE, Draft, encoded
from tests.store.conftest import verify_runs
from tests.store.contents import contents_of, schema_of

ROWS = {int(file.stem): file.read_text(encoding="utf-8") for file in (Path(__file__).parent / "schemas").iterdir()}
"""What programs have left behind, in both databases, by the last schema that they knew."""


pytestmark = pytest.mark.new_database

NOTHING = {None, "", "[]", "{}", 0}


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    """The URL of another empty database of the same kind."""
    if url.startswith("sqlite"):
        yield url.replace("perdure.db", "fresh.db")
        return
    databases: Databases = request.getfixturevalue("postgres_databases")
    with databases.fresh() as fresh:
        yield fresh


@pytest.fixture(params=sorted(ROWS), ids="schema {}".format)
async def old_url(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database with an older schema and runs in it."""
    number: int = request.param

    def known(package: str) -> list[migrate.Migration]:
        return migrate.read_migrations(package)[:number]

    with monkeypatch.context() as old_program:
        for module in ("sqlite.file", "postgres.schema"):
            old_program.setattr(f"perdure.store.{module}.read_migrations", known)
        await (await open_store(url)).close()
    script = ROWS[number]
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(script)
        connection.close()
    else:
        raw = await asyncpg.connect(url)
        await raw.execute(script)
        await raw.close()
    return url


async def test_an_older_database_is_brought_to_the_tables_of_a_fresh_one(old_url: str, fresh_url: str) -> None:
    await (await open_store(fresh_url)).close()
    assert await schema_of(old_url) != await schema_of(fresh_url)

    await (await open_store(old_url)).close()

    assert await schema_of(old_url) == await schema_of(fresh_url)


async def test_an_older_database_keeps_what_it_holds(old_url: str) -> None:
    before = await contents_of(old_url)

    await (await open_store(old_url)).close()

    after = await contents_of(old_url)
    assert {row[0] for row in after["schema_migrations"]} > {row[0] for row in before["schema_migrations"]}
    for name in before.keys() - {"schema_migrations"}:
        # Columns are only added behind, and what is added to a row that was there says nothing.
        kept = [row[: len(old)] for row, old in zip(after[name], before[name], strict=True)]
        assert kept == before[name]
        added = {value for row, old in zip(after[name], before[name], strict=True) for value in row[len(old) :]}
        assert added <= NOTHING


async def test_runs_of_an_older_database_are_read_and_go_on(old_url: str) -> None:
    store = await open_store(old_url)
    ended, moving = await store.load_run(RunId("ended")), await store.load_run(RunId("moving"))
    assert ended is not None
    assert moving is not None
    assert (ended.run.status, [step.name for step in ended.steps]) == (RunStatus.COMPLETED, ["fetch"])
    assert (moving.run.status, [command.kind for command in moving.commands]) == (RunStatus.RUNNING, ["pause"])
    assert {node.stream for node in (*ended.nodes, *moving.nodes)} == {None}
    await verify_runs(store)

    draft = Draft.continued(moving).claim()
    row = draft.batch("step1", 0, "item")
    assert list(await store.commit([draft.transition(items=[row])])) == [Committed()]
    page = await store.load_items(draft.run_id, ROOT_BRANCH, NodeId("step1"), after=(-1, -1), in_order=True, limit=9)
    assert list(page) == [row]
    assert list(await store.commit([draft.complete_node("step1").end().transition()])) == [Committed()]

    await verify_runs(store)
    await store.close()


async def test_runs_of_an_older_database_can_wait(old_url: str) -> None:
    store = await open_store(old_url)
    for run_id in ("ended", "moving"):
        stored = await store.load_run(RunId(run_id))
        assert stored is not None
        assert (stored.waits, stored.signals, stored.run.wake_at) == ((), (), None)
    draft = Draft.continued(stored).claim().add(e.RunSuspended(wake_at=7))
    wait = WaitState(
        wait_id="w",
        node_id=NodeId("step1"),
        branch_id=ROOT_BRANCH,
        kind=WaitKind.SLEEP,
        name="sleep",
        due=7,
        opened_at=6,
        last_seq=draft.projection.run.last_seq,
    )
    signal = SignalState(signal_id="s", name="go", value=encoded(1), received_at=5, seq=draft.projection.run.last_seq)
    commands = [command.command_id for command in stored.commands]
    resting = draft.transition(Claim(engine_id=ENGINE, lets_go=True), waits=[wait], signals=[signal], commands=commands)

    resting = replace(resting, run=replace(resting.run, wake_at=7))
    assert list(await store.commit([resting])) == [Committed()]

    found = await store.load_run(draft.run_id)
    assert found is not None
    assert (found.waits, found.signals, found.run.wake_at) == ((wait,), (signal,), 7)
    assert await store.find_woken(now=6, limit=9) == Wakings(runs=(), next_at=7)
    assert [one.wait for one in await store.list_waits(run_id=draft.run_id, limit=9)] == [wait]
    await store.close()


async def test_runs_of_an_older_database_can_have_checkpoints(old_url: str) -> None:
    store = await open_store(old_url)
    stored = await store.load_run(RunId("moving"))
    assert stored is not None
    assert await store.last_checkpoint(RunId("moving")) is None
    assert stored.run.settings.checkpoint_every_seconds is None
    draft = Draft.continued(stored).claim()
    seq = draft.projection.run.last_seq
    saved = CheckpointState(name="here", branch_id=ROOT_BRANCH, seq=seq, event_seq=Seq(seq + 1), saved_at=7)
    naming = draft.add(e.CheckpointSaved(name="here", seq=seq)).transition()

    assert list(await store.commit([replace(naming, checkpoints=(saved,))])) == [Committed()]

    assert await store.load_checkpoint(RunId("moving"), "here") == saved
    await verify_runs(store)
    await store.close()


def test_a_program_that_lacks_a_schema_in_between_refuses_the_database() -> None:
    """Schemas of two lines of development come together out of order."""
    one, between, last = (
        migrate.Migration(number=number, name="some", sql="", checksum=str(number)) for number in (1, 2, 3)
    )
    applied = {1: "1", 2: "2", 3: "3"}

    assert migrate.plan({1: "1", 3: "3"}, [one, between, last], where="here") == [between]
    with pytest.raises(StoreTooNew, match="has schema 2"):
        migrate.plan(applied, [one, last], where="here")
