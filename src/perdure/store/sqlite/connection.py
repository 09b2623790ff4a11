"""Opening a SQLite file safely, and saying clearly why it cannot be used."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

import apsw
import msgspec

from perdure.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)

FIRST_SAFE_VERSION = 3_051_003
"""Older ones can corrupt a WAL database when two connections write and checkpoint at the same moment."""
BUSY_TIMEOUT_MS = 5_000
CHECK_RIGHTS = "Check the rights of the file, of what lies beside it (-wal, -shm) and of its folder"
ASK_AGAIN_SECONDS = 0.001
"""How often to try again while another process writes."""
WAL_AUTOCHECKPOINT_PAGES = 1_000
REFUSALS = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)
_NETWORK_FILESYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "fuse.s3fs")
)


FATAL_IO = frozenset(
    (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_DATA)
)
"""After these nothing is tried again: the system may report a sync as done that has lost the pages of the failed one."""
_OURS = "SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations' AND sql LIKE '%number%checksum%'"
"""Finds where perdure notes its schema. Others have tables of this name, too, but not with these columns."""
_OTHERS = """
SELECT name FROM sqlite_schema
WHERE type IN ('table', 'view') AND name NOT GLOB 'sqlite_*'
  AND NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations' AND sql LIKE '%number%checksum%')
ORDER BY rowid LIMIT 1
"""
"""Finds a table in a file where that is not. In one statement: another process may create ours at this moment."""
_MISSING = re.compile(r"no such (table|column|index|view)|has no column named")
"""How SQLite says that the schema is not the one for which a statement was written."""
_NOT_WRITABLE = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where the file is and how it is written."""

    path: Path
    synchronous: Literal["FULL", "NORMAL"] = "FULL"


def parse_url(url: str) -> Location:
    """Read `sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=normal` for speed over power cuts."""
    parts = urlsplit(url if url.startswith("sqlite:///") else "")
    path = unquote(parts.path.removeprefix("/"))
    if not path or path == ":memory:":
        raise StoreUnavailable(
            f"{url!r} names no SQLite file. Write sqlite:///perdure.db for a file here, sqlite:////var/lib/perdure.db for one by "
            "its full path."
        )
    options = parse_qs(parts.query)
    synchronous = options.pop("synchronous", ["full"])[-1].upper()
    if options or synchronous not in ("FULL", "NORMAL"):
        raise StoreUnavailable(f"{url!r} has an option that is not known. The only one is synchronous=full or normal.")
    # Whatever link leads to it: what is kept beside the file is found by all of its names.
    return Location(path=Path(path).resolve(), synchronous="FULL" if synchronous == "FULL" else "NORMAL")


def connect(location: Location, *, read_only: bool = False) -> apsw.Connection:
    """Open a connection with durable settings. The file is created for its owner alone; one of another program is left alone."""
    _require_safe_library()
    _require_local_folder(location.path)
    with translated(location.path):
        if not location.path.exists() and not read_only:
            os.close(os.open(location.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = apsw.Connection(str(location.path), flags=apsw.SQLITE_OPEN_READWRITE)
        set_patience(connection, BUSY_TIMEOUT_MS / 1_000)
        require_ours(connection, location.path)
        if not connection.execute("PRAGMA page_count").get:
            # Only a file without any page takes this, and others would be written to: room can be given back in portions.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _require_wal(connection, location.path)
        connection.execute(f"PRAGMA synchronous = {location.synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")
        # What is removed is overwritten where that costs nothing: whoever deletes the values of a run counts on it.
        connection.execute("PRAGMA secure_delete = FAST")
        connection.execute("PRAGMA temp_store = MEMORY")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        # Only the writer checkpoints: a reader that does so while another process writes is the dangerous case.
        connection.wal_autocheckpoint(0 if read_only else WAL_AUTOCHECKPOINT_PAGES)
    return connection


def connect_without_writing(path: Path, *, immutable: bool) -> apsw.Connection:
    """Open a file that cannot be written to. `immutable` takes no locks and reads no log: for a file that nobody changes."""
    _require_safe_library()
    _require_local_folder(path)
    with translated(path):
        query = "immutable=1" if immutable else "mode=ro"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(f"file:{quote(str(path))}?{query}", flags=flags)
        set_patience(connection, BUSY_TIMEOUT_MS / 1_000)
        return connection


def require_ours(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file that holds tables of another program, which must not find ours among them."""
    if (name := connection.execute(_OTHERS).get) is None:
        return
    connection.close()  # before the file gets a log that it may not have had
    raise StoreUnavailable(
        f"The database {path} is another program's: it holds tables ({name!r} is one), but not the one in which perdure "
        "notes its schema. None of its data was changed. Name another file, such as sqlite:///perdure.db."
    )


def holds_tables(path: Path) -> bool:
    """Whether tables of perdure's are in a file. True if that cannot be told: whoever opens it hears why."""
    try:
        # Where there is a log, looking without locks could miss what is in it; where there is none, with locks it makes one.
        with closing(connect_without_writing(path, immutable=not log_of(path).exists())) as connection:
            found = connection.execute(_OURS).get
    except (StoreError, apsw.Error):
        return True
    return bool(found)


def log_of(path: Path) -> Path:
    """Return where SQLite keeps what was committed and is not in the file yet."""
    return beside(path, "-wal")


def beside(path: Path, ending: str) -> Path:
    """Return a file that SQLite keeps with another: beside the file itself, whatever link leads there."""
    file = path.resolve()
    return file.with_name(file.name + ending)


def can_write(path: Path) -> bool:
    """Whether this process may write the file and its log, which are made anew where they are not there."""
    if not path.exists():
        return True
    others = (log_of(path), beside(path, "-shm"))
    return _may_write(path) and (_may_write(path.resolve().parent) or all(map(_may_write, others)))


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one that has taken its name; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_fatal(error: apsw.Error) -> bool:
    """Whether the connection must not be written to after this error."""
    return getattr(error, "extendedresult", 0) in FATAL_IO


class Patience:
    """How long a connection waits for a lock that another process holds; zero seconds is not at all.

    SQLite's own way of waiting comes to ask ten times a second only, and can miss the gaps that a busy writer leaves for
    seconds on end.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = 0.0

    def __call__(self, asked_before: int) -> bool:
        """Return whether SQLite is to ask once more. It has asked so often for the same lock."""
        if not asked_before:
            self._deadline = time.monotonic() + self.seconds
        if time.monotonic() >= self._deadline:
            return False
        time.sleep(ASK_AGAIN_SECONDS)  # noqa: TID251 -- called by SQLite, which knows no loop
        return True


def set_patience(connection: apsw.Connection, seconds: float) -> Patience:
    """Have the connection wait so long for others. What is returned can be changed."""
    patience = Patience(seconds)
    connection.set_busy_handler(patience)
    return patience


@contextmanager
def translated(path: Path) -> Generator[None]:
    """Turn what SQLite raises into what a user can act upon. What it refuses to hold is the caller's to judge."""
    try:
        yield
    except REFUSALS:
        raise
    except apsw.Error as error:
        raise translate(error, path) from error
    except OSError as error:
        if error.errno in _NOT_WRITABLE:
            raise StoreReadOnly(
                f"The database {path} cannot be opened for writing: {error.strerror}. Check who owns the file and its folder, or "
                "choose another --store."
            ) from error
        raise StoreUnavailable(f"The database {path} cannot be opened: {error.strerror}.") from error


def translate(error: apsw.Error, path: Path) -> StoreError:
    """Return the error of ours that says what SQLite said."""
    match error:
        case apsw.FullError():
            return StoreFull(
                f"There is no room left for the database {path}. Free some space; nothing that was recorded is lost."
            )
        case apsw.BusyError() | apsw.LockedError():
            return StoreLocked(
                f"The database {path} is locked by another process, which has held it for over {BUSY_TIMEOUT_MS / 1000:g} s"
                f"{_holders(path)}. Wait for that process, or end it."
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreReadOnly(f"The database {path} is read-only. {CHECK_RIGHTS}.")
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreDamaged(
                f"{path} is not a usable SQLite database: {error}. Restore it from a backup, or choose another --store."
            )
        case _ if is_fatal(error):
            return StoreDamaged(
                f"The disk failed while the database {path} was made durable: {error}. Nothing more is written to it by this "
                "process, because what the disk has lost would not be noticed. Check the disk, then start again: what is stored "
                "then is what counts."
            )
        case apsw.SQLError() if _MISSING.search(str(error)):
            return StoreDamaged(
                f"The database {path} is not as perdure left it: {error}. Restore it from a backup, or choose another --store."
            )
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"The database {path} cannot be opened: {error}. Check that it is a file, that its folder exists, and that "
                "both can be written."
            )
        case _:
            return StoreUnavailable(f"The database {path} failed: {type(error).__name__}: {error}.")


def _require_safe_library() -> None:
    if apsw.SQLITE_VERSION_NUMBER < FIRST_SAFE_VERSION:
        raise StoreUnavailable(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt databases that two processes share. Install apsw with a SQLite of "
            "3.51.3 or later: pip install -U apsw."
        )


def _require_local_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise StoreUnavailable(f"The folder {path.parent} does not exist. Create it, or choose another --store.")
    filesystem = _filesystem_of(path.parent)
    if filesystem in _NETWORK_FILESYSTEMS and not os.environ.get("PERDURE_ALLOW_NETWORK_FILESYSTEM"):
        raise StoreUnavailable(
            f"{path.parent} is on a network filesystem ({filesystem}), where SQLite's locks do not hold. Use a local folder or "
            "PostgreSQL; PERDURE_ALLOW_NETWORK_FILESYSTEM=1 overrides this at your own risk."
        )


def _filesystem_of(folder: Path) -> str:
    """Return the type of the filesystem that holds `folder`, or nothing where the system does not say."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    resolved = str(folder.resolve())
    best, filesystem = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = fields[1].replace("\\040", " ")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, filesystem = point, fields[2]
    return filesystem


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _require_wal(connection: apsw.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode").get
    if mode != "wal":
        mode = connection.execute("PRAGMA journal_mode = WAL").get
    if mode != "wal":
        raise StoreUnavailable(f"The database {path} cannot use a write-ahead log here (it stays in mode {mode}).")


def _holders(path: Path) -> str:
    """Name the processes that hold a lock on the file, where the system tells."""
    try:
        inode = path.stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    pids = {line.split()[4] for line in locks if f":{inode} " in line and "WRITE" in line} | {
        line.split()[4] for line in locks if f":{_inode(beside(path, '-shm'))} " in line and "WRITE" in line
    }
    others = sorted(pid for pid in pids if pid != str(os.getpid()))
    return f" (process {', '.join(others)})" if others else ""


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1
