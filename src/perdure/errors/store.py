"""The database, and the place where blobs are kept."""

from __future__ import annotations

from perdure.errors.base import PerdureError


class StoreError(PerdureError):
    """The database cannot be used."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be reached, or not opened, or belongs to another program."""

    code = "store_unavailable"


class StoreLocked(StoreError):
    """Another process holds the database and does not let go."""

    code = "store_locked"


class StoreReadOnly(StoreError):
    """The database cannot be written to."""

    code = "store_read_only"


class StoreFull(StoreError):
    """There is no room left where the database is kept."""

    code = "store_full"


class StoreTooNew(StoreError):
    """The database was written by a newer version of perdure."""

    code = "store_too_new"


class StoreDamaged(StoreError):
    """The database is not one, or its pages or tables are damaged."""

    code = "store_damaged"


class BlobMissing(StoreError):
    """A stored value refers to a blob that is not where blobs are kept."""

    code = "blob_missing"

    def __init__(self, digest: str, place: str) -> None:
        super().__init__(
            f"Blob {digest} is not in {place}. Check that this is the place where the run's blobs were written, "
            "or restore it from a backup: any copy with this digest will do."
        )
        self.digest = digest
        self.place = place


class BlobDamaged(StoreError):
    """What is kept under a blob's digest is not what was stored."""

    code = "blob_damaged"

    def __init__(self, digest: str, place: str, problem: str) -> None:
        super().__init__(
            f"Blob {digest} in {place} is damaged: {problem}. Restore it from a backup: any copy with this digest will do."
        )
        self.digest = digest
        self.place = place
        self.problem = problem
