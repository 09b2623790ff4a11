"""What every test can ask for: a database of each kind. And what is asked of all of them: to leave nothing behind.

PostgreSQL is started by the first test that wants it, once for the whole run however many worker processes share the
run, and is gone when the run ends.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from perdure.store.opening import open_store
from perdure.testing.stores import in_own_loop
from tests.servers import Databases, Server, WatchedFolder, share_postgres

# How long an example takes says nothing on a busy machine, and each run of the tests should look at other examples.
settings.register_profile(
    "perdure", deadline=None, derandomize=False, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("perdure"), max_examples=20)
settings.load_profile("perdure")

ROOT = Path(__file__).resolve().parent.parent

_SHARED_FOLDER = pytest.StashKey[WatchedFolder]()
_FOLDER_INPUT = "perdure_servers"
_ROOT_BEFORE = pytest.StashKey[set[str]]()


def pytest_configure() -> None:
    """Have signals mean what they mean in a terminal, also where whoever runs the tests ignores them, as `nohup` does: the
    programs that tests start would inherit that."""
    for signum, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, usual)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker process where the servers of this run are. The run holds that place while workers come and go."""
    stash = node.config.stash
    if _SHARED_FOLDER not in stash:
        stash[_SHARED_FOLDER] = WatchedFolder.create()
    node.workerinput[_FOLDER_INPUT] = str(stash[_SHARED_FOLDER].path)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SHARED_FOLDER in config.stash:
        config.stash[_SHARED_FOLDER].leave_and_wait()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the inner loop short: what is to hold on both databases is tried on SQLite there, and only the first such test of
    each module on PostgreSQL as well. The stores themselves (`tests/store`) are tried on both."""
    tried: set[Path] = set()
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if item.callspec.params.get("store_url") != "postgres" or item.get_closest_marker("slow"):
            continue
        if item.path in tried:
            item.add_marker(pytest.mark.slow)
        tried.add(item.path)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_ROOT_BEFORE] = _names_in_root()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Have a run fail whose tests have put something into the root of the project: each has a folder of its own."""
    if _left_in_root(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := _left_in_root(config):
        terminalreporter.section("left behind", red=True)
        terminalreporter.line(f"Tests have left {', '.join(left)} in {ROOT}. Have them work in their tmp_path.")


def _left_in_root(config: pytest.Config) -> list[str]:
    return sorted(_names_in_root() - config.stash[_ROOT_BEFORE])


def _names_in_root() -> set[str]:
    """Return what is in the root of the project, but for what tools keep there."""
    return {path.name for path in ROOT.iterdir() if not path.name.startswith((".", "__pycache__"))}


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The PostgreSQL of this run. A test that stops or kills its server starts its own with `start_postgres`."""
    worker_input = getattr(request.config, "workerinput", None)
    if worker_input is not None:
        folder = WatchedFolder(Path(worker_input[_FOLDER_INPUT]))
        yield share_postgres(folder)
        folder.leave()
    else:
        folder = request.config.stash[_SHARED_FOLDER] = WatchedFolder.create()
        yield share_postgres(folder)


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: Server) -> Databases:
    return Databases(postgres_server)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_databases: Databases, tmp_path: Path) -> Iterator[str]:
    """The URL of a PostgreSQL database without runs, for this test alone. Its tables are there already, unless the test is marked
    with `new_database`: to make them takes longer than most tests. Blobs and archives are where the test is, which is its own
    folder."""
    is_new = request.node.get_closest_marker("new_database") is not None
    database = postgres_databases.fresh() if is_new else postgres_databases.prepared(_make_tables)
    with database as url, chdir(tmp_path):
        yield url


def _make_tables(url: str) -> None:
    async def opened_and_closed() -> None:
        await (await open_store(url)).close()

    in_own_loop(opened_and_closed())


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet, for this test alone."""
    return f"sqlite:///{tmp_path / 'perdure.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a store without runs: every test that asks for it runs on both databases."""
    return request.getfixturevalue(f"{request.param}_url")
