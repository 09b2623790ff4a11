"""The way in: from a Python value to the plain data that becomes its JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import isfinite
from typing import Any, Final

from perdure.ids import digest_of
from perdure.store.codecs.codec import Codec, Refusal, type_of
from perdure.store.codecs.wire import (
    ASSET,
    MAX_ASSETS,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_PART_BLOBS,
    MAX_SAFE_INT,
    PAIRS,
    TAG,
    VALUE,
    BlobRef,
    NewBlob,
    bytes_reference,
    encode_json,
)

_TEXT: Final = frozenset[type]((str,))
_INTEGERS: Final = frozenset[type]((int,))
_FLOATS: Final = frozenset[type]((float,))
_ALWAYS_PLAIN: Final = frozenset[type]((str, bool, type(None)))
# int() and str() refuse more than 4,300 decimal digits, and take quadratic time long before; hexadecimal has no limit.
_DECIMAL_MAX_BITS: Final = 1_024
_FLAT_MAX_SIZE: Final = 20


class Lowering:
    """One value on its way in. It never changes the value, and what it returns shares no container with it.

    Texts with lone surrogates are rare and looking for them is not free: `checks_texts=False` leaves them in, and
    encoding the result raises UnicodeEncodeError. Then the value is lowered once more with `checks_texts=True`.
    """

    __slots__ = ("_checks_texts", "_codec_for", "_containers_left", "_part_max_bytes", "assets", "blobs")

    def __init__(
        self, codec_for: Callable[[type], Codec], part_max_bytes: int | None, *, checks_texts: bool = False
    ) -> None:
        self._codec_for = codec_for
        self._part_max_bytes = part_max_bytes
        self._checks_texts = checks_texts
        self._containers_left = MAX_CONTAINERS
        self.blobs: dict[str, NewBlob] = {}
        """By digest: the parts that were larger than `part_max_bytes`."""
        self.assets: dict[str, BlobRef] = {}
        """By digest: the blobs of assets in the value."""

    def lower(self, value: Any, depth: int = 0) -> Any:
        """Return the value as plain data in which everything else is tagged. Raises Refusal."""
        kind = type_of(value)
        if kind is str:
            return value if not self._checks_texts or _is_clean(value) else _tagged_text(value)
        if kind is bool or value is None:
            return value
        if kind is int:
            return value if -MAX_SAFE_INT <= value <= MAX_SAFE_INT else _tagged_int(value)
        if kind is float:
            return value if isfinite(value) else {TAG: "float", VALUE: repr(value)}
        if kind is dict:
            return self._dict(value, depth)
        if kind is list:
            return self._list(value, depth)
        if kind is bytes:
            return self._bytes(value)
        if kind is set or kind is frozenset:
            return self._set(value, depth)
        return self._converted(value, kind, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        self._enter(value, depth)
        # All keys first: turning back half-way would lower the same values twice, at every level.
        if (
            TAG in value
            or not _TEXT.issuperset(map(type, value))
            or (self._checks_texts and not all(map(_is_clean, value)))
        ):
            return {TAG: PAIRS, VALUE: self._pairs(value, depth)}
        lowered: dict[str, Any] = {}
        key = None
        try:
            for key, item in value.items():
                lowered[key] = item if type(item) is str and not self._checks_texts else self.lower(item, depth + 1)
        except Refusal as refusal:
            refusal.steps.append(_key_step(key))
            raise
        return lowered

    def _pairs(self, value: dict[Any, Any], depth: int) -> list[Any]:
        pairs: list[Any] = []
        for key, item in value.items():
            try:
                plain_key = self.lower(key, depth + 1)
            except Refusal as refusal:
                refusal.steps.append("{a key}")
                raise
            try:
                pairs.append([plain_key, self.lower(item, depth + 1)])
            except Refusal as refusal:
                refusal.steps.append(_key_step(key))
                raise
        return pairs

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        self._enter(value, depth)
        if not self._checks_texts and _is_flat_and_plain(value):
            return value.copy()
        lowered: list[Any] = []
        try:
            for item in value:
                lowered.append(self.lower(item, depth + 1))
        except Refusal as refusal:
            refusal.steps.append(f"[{len(lowered)}]")
            raise
        return lowered

    def _bytes(self, value: bytes) -> dict[str, Any]:
        limit = self._part_max_bytes
        if limit is None or len(value) <= limit or len(self.blobs) >= MAX_PART_BLOBS:
            return {TAG: "bytes", VALUE: value}
        digest = digest_of(value)
        blob = self.blobs.setdefault(digest, NewBlob(digest, value))
        return bytes_reference(blob.ref)

    def _set(self, value: set[Any] | frozenset[Any], depth: int) -> dict[str, Any]:
        """In the order of their encoding, because the order of a set differs from process to process."""
        self._enter(value, depth)
        try:
            items = sorted([self.lower(item, depth + 1) for item in value], key=encode_json)
        except Refusal as refusal:
            refusal.steps.append("{an item}")
            raise
        return {TAG: type(value).__name__, VALUE: items}

    def _converted(self, value: Any, kind: type, depth: int) -> dict[str, Any]:
        codec = self._codec_for(kind)
        try:
            plain = codec.to_plain(value)
        except Refusal:
            raise
        except Exception as error:  # A user's codec may raise anything.
            raise Refusal(
                kind, f"its codec failed with {type(error).__name__}: {error}", "Correct the codec."
            ) from error
        if codec.tag == ASSET:
            self._refer(kind, BlobRef(plain["digest"], plain["size"]))
        return {TAG: codec.tag, VALUE: self.lower(plain, depth)}

    def _refer(self, kind: type, ref: BlobRef) -> None:
        self.assets[ref.digest] = ref
        if len(self.assets) > MAX_ASSETS:
            raise Refusal(kind, f"the value has more than {MAX_ASSETS:,} assets", "Yield them as a stream.")

    def _enter(self, container: Collection[Any], depth: int) -> None:
        self._containers_left -= 1
        if depth >= MAX_DEPTH:
            raise Refusal(
                type(container),
                f"the value is nested deeper than {MAX_DEPTH} levels, or contains itself",
                "Store a flatter value: a list of parts that refer to each other by name, for example.",
            )
        if self._containers_left < 0:
            raise Refusal(
                type(container),
                f"the value has more than {MAX_CONTAINERS:,} lists, dicts and sets",
                "Yield the parts as a stream, or use a numpy array.",
            )


def is_flat(value: dict[Any, Any]) -> bool:
    """Whether a small dict is stored as it is: what most bodies return. False is no more than "not known"."""
    if len(value) > _FLAT_MAX_SIZE or TAG in value or not _TEXT.issuperset(map(type, value)):
        return False
    return _is_flat_and_plain(value.values())


def _is_flat_and_plain(items: Collection[Any]) -> bool:
    kinds: frozenset[type] = frozenset(map(type, items))
    if kinds <= _ALWAYS_PLAIN:
        return True
    if kinds == _INTEGERS:
        return bool(min(items) >= -MAX_SAFE_INT and max(items) <= MAX_SAFE_INT)
    return kinds == _FLOATS and all(map(isfinite, items))


def _is_clean(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tagged_text(text: str) -> dict[str, Any]:
    return {TAG: "str", VALUE: text.encode("utf-8", "surrogatepass")}


def _tagged_int(number: int) -> dict[str, Any]:
    digits = str(number) if number.bit_length() <= _DECIMAL_MAX_BITS else hex(number)
    return {TAG: "int", VALUE: digits}


def _key_step(key: Any) -> str:
    """Only what is plainly harmless is shown: the text of other keys may be long, or a secret."""
    if type(key) is str:
        shown = key if len(key) <= 40 else key[:39] + "…"
        return f".{shown}" if shown.isidentifier() else f"[{shown!r}]"
    return f"[{key!r}]" if type(key) in (int, float, bool) and abs(key) <= MAX_SAFE_INT else f"[a {type(key).__name__}]"
