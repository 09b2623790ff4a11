"""Which database a URL means: the one place that decides."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from perdure.clock import Clock
from perdure.errors import StoreUnavailable
from perdure.ids import DEFAULT_PROJECT
from perdure.store.base import Store

DEFAULT_URL = "sqlite:///perdure.db"


async def open_store(url: str, *, project_id: str = DEFAULT_PROJECT, clock: Clock | None = None) -> Store:
    """Open the store that `url` names, creating it or bringing its schema up to date."""
    scheme = url.partition(":")[0]
    match scheme:
        case "sqlite":
            from perdure.store.sqlite.store import open_sqlite

            return await open_sqlite(url, project_id=project_id, clock=clock)
        case "postgresql" | "postgres":
            from perdure.store.postgres.store import open_postgres

            return await open_postgres(url, project_id=project_id, clock=clock)
        case _:
            is_path = url and "://" not in url and "@" not in url
            meant = f"sqlite:///{url}" if is_path else DEFAULT_URL
            shown = url if is_path or not url else f"{scheme}://…" if "@" not in scheme else "…"  # no password
            raise StoreUnavailable(
                f"{shown!r} names no store that perdure knows. Write {meant} for a file, or postgresql://user@host/database."
            )


def holds_password(url: str) -> bool:
    """Whether a URL must not be shown to people."""
    if url.startswith("sqlite:"):
        return False
    from perdure.store.postgres.address import parse_url

    try:
        return parse_url(url).has_secret
    except StoreUnavailable:
        return True


def is_there(url: str) -> bool:
    """Whether the store exists. Only a file can be told to be missing without opening it."""
    if not url.startswith("sqlite:"):
        return True
    from perdure.store.sqlite.connection import parse_url

    return parse_url(url).path.exists()


def is_prepared(url: str) -> bool:
    """Whether the store that is there has been opened before, so that opening it creates nothing. Only a file can be told not to
    have been; one that cannot be read is for whoever opens it."""
    if not url.startswith("sqlite:"):
        return True
    from perdure.store.sqlite.connection import holds_tables, parse_url

    return holds_tables(parse_url(url).path)


def place_of(url: str) -> str:
    """Return which database a URL means, without who asks and how: the same for all who mean the same one, if they are on one
    machine."""
    if url.startswith("sqlite:"):
        from perdure.store.sqlite.connection import parse_url

        return str(parse_url(url).path)
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path


def default_archive_folder(store_url: str) -> Path:
    """Return where runs are archived unless something else is said: a folder beside the file, or in the current folder."""
    if store_url.startswith("sqlite:"):
        from perdure.store.sqlite.connection import parse_url

        path = parse_url(store_url).path
        return path.with_name(path.name + "-archive")
    return Path("perdure-archive").absolute()


def default_blobs_url(store_url: str) -> str:
    """Return where large values go unless something else is said: a folder beside the file, or in the current folder."""
    if store_url.startswith("sqlite:"):
        from perdure.store.sqlite.connection import parse_url

        path = parse_url(store_url).path
        return path.with_name(path.name + "-blobs").as_uri()
    return Path("perdure-blobs").absolute().as_uri()
