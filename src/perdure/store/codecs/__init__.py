"""Values as they are stored: what becomes of them on the way in, and how they come back.

A stored value is one strict JSON document. What JSON has a word for is stored as itself; everything else is a tagged
object `{"$": tag, "v": …}`, and a dict that could be taken for one, or whose keys are not all texts, is escaped.
Reading turns tags into objects by codecs and types that this process knows: a stored name is looked up, never imported.
"""

from __future__ import annotations

from perdure.store.codecs.codec import Codec
from perdure.store.codecs.registry import Codecs, default_codecs, process_codecs, register_codec, register_type
from perdure.store.codecs.wire import (
    INLINE_CAP_BYTES,
    INLINE_MAX_BYTES,
    MAX_DEPTH,
    BlobRef,
    KeptBlob,
    NewBlob,
    Packed,
    blob_refs,
    canonical,
    content_refs,
)

__all__ = [
    "INLINE_CAP_BYTES",
    "INLINE_MAX_BYTES",
    "MAX_DEPTH",
    "BlobRef",
    "Codec",
    "Codecs",
    "KeptBlob",
    "NewBlob",
    "Packed",
    "blob_refs",
    "canonical",
    "content_refs",
    "default_codecs",
    "process_codecs",
    "register_codec",
    "register_type",
]
