"""Opening a PostgreSQL database: what is refused, what is warned of, and how every failure is worded."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from perdure.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from perdure.store.opening import holds_password, open_store
from perdure.store.postgres.address import parse_url
from perdure.store.postgres.failures import Trouble, translate, trouble_of
from perdure.store.postgres.store import open_postgres
from perdure.store.transitions import Committed
from tests.servers import Server, start_postgres
from tests.store.builders import engine_row, save_workflow, started
from tests.store.contents import contents_of

pytestmark = pytest.mark.new_database


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server whose settings may be changed."""
    with start_postgres() as server:
        yield server


async def test_a_database_of_a_newer_program_is_left_alone(postgres_url: str, raw: Any) -> None:
    store = await open_postgres(postgres_url)
    await store.close()
    await raw.execute("INSERT INTO schema_migrations VALUES (9000, 'later', 'x', 1)")
    before = await contents_of(postgres_url)

    with pytest.raises(StoreTooNew, match="9000"):
        await open_postgres(postgres_url)

    assert await contents_of(postgres_url) == before


async def test_a_database_that_is_not_ours_is_left_alone(postgres_url: str, raw: Any) -> None:
    await raw.execute("CREATE TABLE schema_migrations (version text)")

    with pytest.raises(StoreDamaged, match="search_path"):
        await open_postgres(postgres_url)

    assert list(await contents_of(postgres_url)) == ["schema_migrations"]


async def test_perdure_can_live_in_a_schema_of_its_own(postgres_url: str, raw: Any) -> None:
    await raw.execute("CREATE TABLE schema_migrations (version text); CREATE SCHEMA own")

    store = await open_postgres(postgres_url + "&options=-csearch_path%3Down")
    await save_workflow(store)
    assert list(await store.commit([started().transition()])) == [Committed()]
    await store.close()

    assert await raw.fetchval("SELECT count(*) FROM own.run_state") == 1


async def test_a_failed_migration_leaves_nothing(postgres_url: str, raw: Any) -> None:
    await raw.execute("CREATE TABLE run_logs (of_somebody_else text)")

    with pytest.raises(StoreError):
        await open_postgres(postgres_url)

    assert list(await contents_of(postgres_url)) == ["run_logs"]


async def test_a_user_who_may_not_write_is_told(postgres_url: str, raw: Any) -> None:
    store = await open_postgres(postgres_url)
    await store.close()
    await raw.execute(
        "DROP ROLE IF EXISTS onlooker; CREATE ROLE onlooker LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO onlooker"
    )

    store = await open_postgres(postgres_url.replace("postgres@", "onlooker@", 1))
    with pytest.raises(StoreReadOnly, match="onlooker@"):
        await store.commit([started().transition()])
    with pytest.raises(StoreReadOnly):
        await store.register_engine(engine_row(), ttl_seconds=1)
    assert list(await store.list_versions()) == []
    await store.close()
    await raw.execute("DROP OWNED BY onlooker; DROP ROLE onlooker")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("/test_", "/nothing_like_"), "does not exist"),
        (("host=", "host=/nowhere"), "cannot be used"),
        (("postgres@", "stranger@"), "does not let this user in"),
    ],
)
async def test_a_wrong_url_is_said_clearly(postgres_url: str, change: tuple[str, str], says: str) -> None:
    with pytest.raises(StoreUnavailable, match=says):
        await open_postgres(postgres_url.replace(*change, 1))


async def test_a_password_is_never_told() -> None:
    url = "postgresql://ann:s3cret@localhost:1/db?password=s3cret&sslmode=disable"

    with pytest.raises(StoreUnavailable) as caught:
        await open_postgres(url)

    assert "s3cret" not in str(caught.value)
    assert "ann@localhost:1/db" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "dsn", "pooled"),
    [
        ("postgresql://a@h/d", "postgresql://a@h/d", False),
        ("postgres://h/d?pgbouncer=1", "postgres://h/d", True),
        ("postgresql://h/d?pgbouncer=0&sslmode=require", "postgresql://h/d?sslmode=require", False),
        ("postgresql://a:b@h1:1,h2:2/d?target_session_attrs=read-write", None, False),
        ("postgresql:///d?host=/var/run&pgbouncer=true", "postgresql:/d?host=%2Fvar%2Frun", True),
    ],
)
def test_urls_are_read(url: str, dsn: str | None, pooled: bool) -> None:
    address = parse_url(url)

    assert address.dsn == (dsn or url)
    assert address.pooled is pooled


@pytest.mark.parametrize(
    "url",
    ["sqlite:///x", "postgresql://h/d?pgbouncer=perhaps", "postgresql://u:a@b:1/c@h/d", "postgresql://u:a@b?c@h/d"],
)
def test_urls_that_mean_nothing_are_refused(url: str) -> None:
    with pytest.raises(StoreUnavailable):
        parse_url(url)


def test_an_option_may_have_an_at_sign() -> None:
    url = "postgresql://h/d?user=app@cloud"

    assert parse_url(url).where == "postgresql://h/d?user=app%40cloud"


@pytest.mark.parametrize(
    ("url", "holds"),
    [
        ("sqlite:///perdure.db", False),
        ("postgresql://ann@h/d?user=app%40cloud", False),
        ("postgresql://ann:s3cret@h/d", True),
        ("postgresql://ann@h/d?password=s3cret", True),
        ("postgresql://ann:s3/cret@h/d", True),
    ],
)
def test_it_is_known_which_urls_must_not_be_shown(url: str, holds: bool) -> None:
    assert holds_password(url) is holds


@pytest.mark.parametrize("url", ["ann:s3cret@h:5432/d", "postgres//ann:s3cret@h/d", "s3cret@ann:h://d"])
async def test_a_password_is_not_told_of_what_is_no_url(url: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await open_store(url)

    assert "s3cret" not in str(caught.value)


async def test_a_missing_driver_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(StoreUnavailable, match=r"pip install asyncpg\.$"):
        await open_postgres("postgresql://localhost/db")


async def test_a_database_that_cannot_hold_every_text_is_refused(own_server: Server) -> None:
    own_server.psql(
        "DROP DATABASE IF EXISTS latin",
        "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
    )

    with pytest.raises(StoreUnavailable, match="LATIN1"):
        await open_postgres(own_server.url_of("latin"))


async def test_a_server_that_may_lose_commits_is_warned_of(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.psql("DROP DATABASE IF EXISTS careless", "CREATE DATABASE careless")
    own_server.psql("ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()")
    try:
        async with asyncio.timeout(10):
            while own_server.psql("SHOW full_page_writes").strip() != "off":
                await asyncio.sleep(0.05)
        with caplog.at_level(logging.WARNING, logger="perdure"):
            store = await open_postgres(own_server.url_of("careless"))
        await store.close()
    finally:
        own_server.psql("ALTER SYSTEM RESET full_page_writes", "SELECT pg_reload_conf()")

    assert [record.message for record in caplog.records] == ["postgres_may_lose_commits"]


# Judging what the driver raises


@pytest.mark.parametrize(
    ("error", "trouble", "translated"),
    [
        (asyncpg.UniqueViolationError("x"), Trouble.REFUSED, StoreUnavailable),
        (asyncpg.NumericValueOutOfRangeError("x"), Trouble.REFUSED, StoreUnavailable),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), Trouble.REFUSED, StoreUnavailable),
        (asyncpg.SerializationError("x"), Trouble.BUSY, StoreLocked),
        (asyncpg.DeadlockDetectedError("x"), Trouble.BUSY, StoreLocked),
        (asyncpg.LockNotAvailableError("x"), Trouble.BLOCKED, StoreLocked),
        (asyncpg.QueryCanceledError("x"), Trouble.BLOCKED, StoreUnavailable),
        (asyncpg.AdminShutdownError("x"), Trouble.LOST, StoreUnavailable),
        (asyncpg.ConnectionDoesNotExistError("x"), Trouble.LOST, StoreUnavailable),
        (asyncpg.TooManyConnectionsError("x"), Trouble.LOST, StoreUnavailable),
        (asyncpg.InterfaceError("connection is closed"), Trouble.LOST, StoreUnavailable),
        (ConnectionRefusedError("x"), Trouble.LOST, StoreUnavailable),
        (TimeoutError(), Trouble.LOST, StoreUnavailable),
        (asyncpg.DiskFullError("x"), Trouble.FATAL, StoreFull),
        (asyncpg.ReadOnlySQLTransactionError("x"), Trouble.FATAL, StoreReadOnly),
        (asyncpg.InsufficientPrivilegeError("x"), Trouble.FATAL, StoreReadOnly),
        (asyncpg.UndefinedTableError("x"), Trouble.FATAL, StoreDamaged),
        (asyncpg.DataCorruptedError("x"), Trouble.FATAL, StoreDamaged),
        (asyncpg.InvalidPasswordError("x"), Trouble.FATAL, StoreUnavailable),
    ],
)
def test_errors_are_judged_and_translated(error: Exception, trouble: Trouble, translated: type[StoreError]) -> None:
    assert trouble_of(error) is trouble
    assert type(translate(error, "postgresql://h/d")) is translated
    assert "postgresql://h/d" in str(translate(error, "postgresql://h/d"))
