"""The stored form itself: its words and limits, references to blobs inside it, and its canonical spelling.

A reference to a blob is `{"$": "blob", "v": {"sha256": …, "size": …}}` and stands for the bytes of the blob. With
`"json": true` the blob holds a whole stored value, and `"refs"` and `"assets"` list the blobs to which that value refers in
turn, so that all references of a value can be seen without reading blobs.

An asset, `{"$": "asset", "v": {"digest": …, "size": …, …}}`, refers to a blob as well, but stands for itself: its content
is not part of the value, and nobody reads it to decode the value.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from perdure.errors import ValueNotReadable
from perdure.ids import is_digest
from perdure.store.codecs.codec import Unreadable, damaged, type_of

TAG = "$"
VALUE = "v"
BLOB = "blob"
ASSET = "asset"
PAIRS = "dict"
"""The tag of an escaped dict: its value is a list of key and value pairs."""

MAX_DEPTH = 100
"""How deeply a value may be nested, as its user sees it."""
MAX_CONTAINERS = 2_000_000
"""How many lists, dicts and sets a value may have. A small value that holds another twice, which holds another twice,
and so on, would fill the memory when it is written out."""
MAX_PART_BLOBS = 1_000
"""How many parts of one value become blobs of their own. Bounds the list of references, which is always inline."""
MAX_ASSETS = 10_000
"""How many assets one value may hold. Bounds the list of references in the same way."""
MAX_SAFE_INT = 2**53 - 1
"""Beyond it many readers of JSON lose digits."""
INLINE_MAX_BYTES = 256 * 1024
"""The default for what is kept with the run; anything larger goes to a blob."""
INLINE_CAP_BYTES = 1024 * 1024
"""The most that may be configured to stay inline."""

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode
encode_sorted = msgspec.json.Encoder(order="sorted").encode

READ_ERRORS = (Unreadable, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What damaged or foreign data can raise while it is read."""


class BlobRef(msgspec.Struct, frozen=True):
    """Names a blob: the sha256 of its content in hexadecimal, and its length in bytes."""

    digest: str
    size: int


class NewBlob(msgspec.Struct, frozen=True):
    """A blob that must be durable before the value that refers to it is committed."""

    digest: str
    content: bytes

    @property
    def ref(self) -> BlobRef:
        return BlobRef(self.digest, len(self.content))


class KeptBlob(NewBlob, frozen=True):
    """A blob that was durable before the value was packed, such as that of an asset: it must still be there."""

    size: int

    @property
    def ref(self) -> BlobRef:
        return BlobRef(self.digest, self.size)


class Reference(msgspec.Struct, frozen=True):
    """A reference to a blob as it stands in a value."""

    ref: BlobRef
    holds_json: bool
    contents: list[BlobRef]
    """Blobs that are parts of the value in that JSON."""
    assets: list[BlobRef]
    """Blobs of assets in that JSON."""


class Packed(msgspec.Struct, frozen=True):
    """A value ready to be stored: what is committed with the run, and the blobs to which it refers."""

    raw: bytes
    blobs: tuple[NewBlob, ...] = ()


def blob_refs(raw: bytes | msgspec.Raw) -> set[BlobRef]:
    """Return every blob to which a stored value refers, directly or through a blob that holds JSON."""
    content = bytes(raw)
    if not holds_tags(content) or (b'"blob"' not in content and b'"asset"' not in content):
        return set()
    return {ref for ref, _ in _checked_refs(content)}


def content_refs(raw: bytes | msgspec.Raw) -> set[BlobRef]:
    """Return the blobs that are parts of a stored value: those that must be read to decode it. Assets are none."""
    content = bytes(raw)
    if not holds_tags(content) or b'"blob"' not in content:
        return set()
    return {ref for ref, is_content in _checked_refs(content) if is_content}


def whole_reference(raw: bytes | msgspec.Raw) -> BlobRef | None:
    """Return the blob that holds all of a stored value, if one does."""
    content = bytes(raw)
    if content[:11] != b'{"$":"blob"':
        return None
    try:
        reference = parse_reference(decode_json(content)[VALUE])
    except READ_ERRORS as problem:
        raise not_readable("The stored value", problem) from problem
    return reference.ref if reference.holds_json else None


def with_blobs_inside(raw: bytes | msgspec.Raw, content_of: Mapping[BlobRef, bytes]) -> bytes:
    """Return the same value with the blobs that are parts of it inside it, for a reader who has no blobs."""
    try:
        return encode_json(_inlined(decode_json(bytes(raw)), content_of))
    except READ_ERRORS as problem:
        raise not_readable("The stored value", problem) from problem


def _inlined(node: Any, content_of: Mapping[BlobRef, bytes]) -> Any:
    kind = type_of(node)
    if kind is list:
        return [_inlined(item, content_of) for item in node]
    if kind is not dict:
        return node
    if node.get(TAG) != BLOB:
        return {key: _inlined(item, content_of) for key, item in node.items()}
    reference = parse_reference(node.get(VALUE))
    content = content_of[reference.ref]
    if reference.holds_json:
        return _inlined(decode_json(content), content_of)
    return {TAG: "bytes", VALUE: binascii.b2a_base64(content, newline=False).decode()}


def canonical(raw: bytes | msgspec.Raw) -> bytes:
    """Return the same value in its one canonical spelling: equal values have equal bytes, whatever their dict order."""
    content = bytes(raw)
    try:
        document = decode_json(content)
        return encode_sorted(_with_sorted_pairs(document) if holds_tags(content) else document)
    except READ_ERRORS as problem:
        raise not_readable("The stored value", problem) from problem


def not_readable(where: str, problem: Exception) -> ValueNotReadable:
    """Return the error that a user sees for one of READ_ERRORS."""
    if isinstance(problem, Unreadable):
        return ValueNotReadable(where, problem.reason, problem.remedy, tag=problem.tag)
    if isinstance(problem, RecursionError):
        reason = "it is nested too deeply"
    else:
        reason = f"it is not the JSON that perdure writes ({problem})"
    unreadable = damaged(reason)
    return ValueNotReadable(where, unreadable.reason, unreadable.remedy)


def holds_tags(content: bytes) -> bool:
    """Return whether there may be tagged objects in a JSON document. We never write the escape; others may."""
    # One byte is found in a hundredth of the time that several take, and most values hold neither.
    return (b"$" in content and b'"$"' in content) or (b"\\" in content and b"\\u0024" in content)


def bytes_reference(ref: BlobRef) -> dict[str, Any]:
    """Return what stands in a value for bytes that are in a blob."""
    return {TAG: BLOB, VALUE: {"sha256": ref.digest, "size": ref.size}}


def json_reference(ref: BlobRef, contents: Iterable[BlobRef], assets: Iterable[BlobRef]) -> dict[str, Any]:
    """Return what stands for a whole value that is in a blob and refers to these blobs."""
    held: dict[str, Any] = {"sha256": ref.digest, "size": ref.size, "json": True}
    for name, refs in (("refs", contents), ("assets", assets)):
        if inner := [[inner_ref.digest, inner_ref.size] for inner_ref in refs]:
            held[name] = inner
    return {TAG: BLOB, VALUE: held}


def parse_reference(held: Any) -> Reference:
    """Return what a reference says. Raises Unreadable."""
    if type_of(held) is not dict:
        raise damaged("a reference to a blob is not an object", tag=BLOB)
    return Reference(
        ref=_checked_ref([held.get("sha256"), held.get("size")]),
        holds_json=held.get("json") is True,
        contents=_checked_list(held.get("refs", [])),
        assets=_checked_list(held.get("assets", [])),
    )


def _checked_list(inner: Any) -> list[BlobRef]:
    if type_of(inner) is not list:
        raise damaged("a reference to a blob lists no other blobs", tag=BLOB)
    return [_checked_ref(pair) for pair in inner]


def _checked_ref(pair: Any) -> BlobRef:
    match pair:
        case [str(digest), int(size)] if is_digest(digest) and size >= 0:
            return BlobRef(digest, size)
        case _:
            raise damaged("a reference to a blob has no valid digest and size", tag=BLOB)


def _checked_refs(content: bytes) -> set[tuple[BlobRef, bool]]:
    try:
        return set(_refs_in(decode_json(content)))
    except READ_ERRORS as problem:
        raise not_readable("The stored value", problem) from problem


def _refs_in(node: Any) -> Iterator[tuple[BlobRef, bool]]:
    """Yield every reference, and whether it is a part of the value."""
    kind = type_of(node)
    if kind is dict and node.get(TAG) == BLOB:
        reference = parse_reference(node.get(VALUE))
        yield reference.ref, True
        for ref in reference.contents:
            yield ref, True
        for ref in reference.assets:
            yield ref, False
    elif kind is dict:
        if node.get(TAG) == ASSET and type_of(held := node.get(VALUE)) is dict:
            yield _checked_ref([held.get("digest"), held.get("size")]), False
        for item in node.values():
            yield from _refs_in(item)
    elif kind is list:
        for item in node:
            yield from _refs_in(item)


def _with_sorted_pairs(node: Any) -> Any:
    kind = type_of(node)
    if kind is list:
        return [_with_sorted_pairs(item) for item in node]
    if kind is not dict:
        return node
    rebuilt: dict[str, Any] = {key: _with_sorted_pairs(item) for key, item in node.items()}
    if rebuilt.get(TAG) == PAIRS:
        if not isinstance(rebuilt.get(VALUE), list):
            raise damaged("the pairs of a dict are not a list", tag=PAIRS)
        rebuilt[VALUE] = sorted(rebuilt[VALUE], key=encode_sorted)
    return rebuilt
