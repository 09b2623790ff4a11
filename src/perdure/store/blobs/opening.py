"""Which place for blobs a URL means: the one place that decides."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from perdure.clock import Clock
from perdure.errors import StoreUnavailable
from perdure.store.blobs.base import BlobStore
from perdure.store.blobs.folder import FolderBlobs


def open_blobs(url: str, *, clock: Clock | None = None) -> BlobStore:
    """Return the place that `url` names: `file:///…` is a folder, anything else an object store such as `s3://…`."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file" if parts.netloc in ("", "localhost") and parts.path:
            return FolderBlobs(unquote(parts.path), clock=clock)
        case "" | "file":
            raise StoreUnavailable(
                f"{url!r} names no place for blobs. Write file:///an/absolute/path for a folder, or the URL of an "
                "object store such as s3://bucket/prefix."
            )
        case _:
            return _open_objects(url, _without_credentials(parts), clock)


def _open_objects(url: str, place: str, clock: Clock | None) -> BlobStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        from perdure.store.blobs.objects import ObjectBlobs
    except ImportError:
        raise StoreUnavailable(
            f"Blobs in {place} need the package obstore, which is not installed. Run: pip install obstore."
        ) from None
    try:
        return ObjectBlobs(from_url(url), place, clock=clock)
    except (BaseError, ValueError) as error:
        problem = str(error).partition("\n")[0].replace(url, place)
        raise StoreUnavailable(f"{place} names no place for blobs that can be used: {problem}") from None


def _without_credentials(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
