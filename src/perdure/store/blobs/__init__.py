"""Where large values are kept: content-addressed, in a folder or in an object store.

A blob is named by the sha256 of its content and by nothing else. It is durable before anything that refers to it is
committed, and it is checked whenever it is read: a blob that is missing or altered is an error, never a wrong value.
"""

from __future__ import annotations

from perdure.store.blobs.base import BlobStore, StoredBlob
from perdure.store.blobs.folder import FolderBlobs
from perdure.store.blobs.opening import open_blobs

__all__ = ["BlobStore", "FolderBlobs", "StoredBlob", "open_blobs"]
