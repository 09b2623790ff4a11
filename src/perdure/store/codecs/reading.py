"""The way out: from the plain data of a stored JSON document to the Python value that it was."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any

from perdure.store.codecs.codec import Codec, Unreadable, damaged, expect, expect_list, type_of
from perdure.store.codecs.wire import ASSET, BLOB, PAIRS, TAG, VALUE, BlobRef, decode_json, parse_reference


class Restoring:
    """One value on its way out. Every object in it is made anew, so that no two values share one."""

    __slots__ = ("_codec_for_tag", "_read_blob")

    def __init__(self, codec_for_tag: Callable[[str], Codec], read_blob: Callable[[BlobRef], bytes] | None) -> None:
        self._codec_for_tag = codec_for_tag
        self._read_blob = read_blob

    def restore(self, node: Any) -> Any:
        """Return the value of a decoded JSON node, of whose containers it takes possession. Raises Unreadable."""
        kind = type_of(node)
        if kind is list:
            for index, item in enumerate(node):
                if type(item) is list or type(item) is dict:
                    node[index] = self.restore(item)
        elif kind is dict:
            if TAG in node:
                return self._untagged(node)
            for key, item in node.items():
                if type(item) is list or type(item) is dict:
                    node[key] = self.restore(item)
        return node

    def _untagged(self, node: dict[str, Any]) -> Any:
        tag = node[TAG]
        if type(tag) is not str or len(node) != 2 or VALUE not in node:
            raise damaged('an object with the key "$" is not a tagged value')
        if tag == BLOB:
            return self._from_blob(node[VALUE])
        data = self.restore(node[VALUE])
        own = _OWN.get(tag)
        from_plain = own if own is not None else self._codec_for_tag(tag).from_plain
        try:
            return from_plain(data)
        except Unreadable as problem:
            problem.tag = problem.tag or tag
            raise
        except Exception as error:  # A user's codec may raise anything, and ours whatever damaged data leads to.
            reason = f"the data of a {tag!r} does not fit its codec ({type(error).__name__}: {error})"
            raise damaged(reason, tag=tag) from error

    def _from_blob(self, held: Any) -> Any:
        reference = parse_reference(held)
        if self._read_blob is None:
            raise Unreadable("a part of it is in a blob", "Read it with `unpack`, which can read blobs.", tag=BLOB)
        content = self._read_blob(reference.ref)
        return self.restore(decode_json(content)) if reference.holds_json else content


def _bytes(data: Any) -> bytes:
    return binascii.a2b_base64(expect(data, str), strict_mode=True)


def _text(data: Any) -> str:
    return _bytes(data).decode("utf-8", "surrogatepass")


def _int(data: Any) -> int:
    return int(expect(data, str), 0)


def _float(data: Any) -> float:
    if data not in ("nan", "inf", "-inf"):
        raise ValueError("expected nan, inf or -inf")
    return float(data)


def _set(data: Any) -> set[Any]:
    return set(expect_list(data))


def _frozenset(data: Any) -> frozenset[Any]:
    return frozenset(expect_list(data))


def _dict(data: Any) -> dict[Any, Any]:
    return dict(expect_list(data))


# The tags that `Lowering` writes by itself.
_OWN: dict[str, Callable[[Any], Any]] = {
    "bytes": _bytes,
    "str": _text,
    "int": _int,
    "float": _float,
    "set": _set,
    "frozenset": _frozenset,
    PAIRS: _dict,
}
RESERVED_TAGS = frozenset((*_OWN, ASSET, BLOB))
