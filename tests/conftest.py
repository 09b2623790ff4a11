"""What every test can ask for: an empty database of each kind.

PostgreSQL is started by the first test that wants it, once for the whole run however many worker processes share the
run, and is gone when the run ends.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import Databases, Server, WatchedFolder, share_postgres

# How long an example takes says nothing on a busy machine, and each run of the tests should look at other examples.
settings.register_profile(
    "perdure", deadline=None, derandomize=False, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("perdure"), max_examples=20)
settings.load_profile("perdure")

_SHARED_FOLDER = pytest.StashKey[WatchedFolder]()
_FOLDER_INPUT = "perdure_servers"


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
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, for this test alone."""
    with postgres_databases.fresh() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet, for this test alone."""
    return f"sqlite:///{tmp_path / 'perdure.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store: every test that asks for it runs on both databases."""
    return request.getfixturevalue(f"{request.param}_url")
