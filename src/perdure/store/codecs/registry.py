"""The codecs and types that a process knows, and the four ways to use them: encode, decode, pack, unpack."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

import msgspec

from perdure.errors import ValueNotStorable
from perdure.graph.assets import Asset
from perdure.graph.itemfailure import ItemFailure
from perdure.ids import digest_of, type_name
from perdure.store.codecs.arrays import ARRAY_TAG, SCALAR_TAG, array_codec, array_from_plain, scalar_from_plain
from perdure.store.codecs.assets import asset_codec
from perdure.store.codecs.codec import Codec, Conversion, Refusal, Unreadable, type_of
from perdure.store.codecs.known import assets_named, types_named
from perdure.store.codecs.models import model_codec
from perdure.store.codecs.reading import RESERVED_TAGS, Restoring
from perdure.store.codecs.standard import STANDARD
from perdure.store.codecs.wire import (
    ASSET,
    INLINE_CAP_BYTES,
    INLINE_MAX_BYTES,
    MAX_DEPTH,
    MAX_SAFE_INT,
    READ_ERRORS,
    BlobRef,
    KeptBlob,
    NewBlob,
    Packed,
    blob_refs,
    content_refs,
    decode_json,
    encode_json,
    holds_tags,
    json_reference,
    not_readable,
)
from perdure.store.codecs.writing import Lowering, is_flat

_PLAIN_TYPES: Final = frozenset((object, str, bool, type(None), int, float, dict, list))
_SHORT: Final = 1_024
"""So many characters are encoded at once, whatever else there is to do."""
_CACHE_SIZE: Final = 4_096
"""How many types or annotations are remembered; past that, memory is forgotten and built anew."""


class Codecs:
    """Turns values into stored JSON and back. Safe to use from several threads once everything is registered."""

    def __init__(self, exact: Iterable[Codec] = ()) -> None:
        """`exact` are codecs that hold for exactly their type; those that are registered hold for subclasses too."""
        self._exact: dict[type, Codec] = {codec.python_type: codec for codec in exact}
        self._registered: dict[type, Codec] = {}
        self._by_tag: dict[str, Codec] = {codec.tag: codec for codec in self._exact.values()}
        self._by_tag[ARRAY_TAG] = Conversion(ARRAY_TAG, object, _never_written, array_from_plain)
        self._by_tag[SCALAR_TAG] = Conversion(SCALAR_TAG, object, _never_written, scalar_from_plain)
        self._types: dict[str, type] = {}
        self._roots: list[type] = []
        self._found: dict[type, Codec] = {}
        self._models: dict[type, Codec] = {}
        self._named: dict[Any, dict[str, type]] = {}
        self._assets: dict[Any, Codec] = {}

    def register(self, codec: Codec) -> None:
        """Store values of the codec's type, and of its subclasses, with it. It goes before everything built in."""
        if codec.python_type in _PLAIN_TYPES:
            raise ValueError(f"{codec.python_type.__name__} is stored as itself and takes no codec.")
        kind: type[Any] = codec.python_type
        if issubclass(kind, Asset):
            raise ValueError(f"{kind.__name__} is an asset, and assets take no codec: use their `meta`.")
        if codec.tag in RESERVED_TAGS or codec.tag in self._by_tag:
            raise ValueError(f"The tag {codec.tag!r} belongs to another codec. Choose another.")
        self._registered[codec.python_type] = codec
        self._by_tag[codec.tag] = codec
        self._found.clear()

    def register_type(self, cls: type, *, former_names: Iterable[str] = ()) -> None:
        """Let stored data be read as `cls`, the types of its fields, and their subclasses.

        `former_names` are names (`module.qualname`) under which it was stored before it was moved or renamed.
        """
        if model_codec(cls) is None:
            raise ValueError(
                f"{type_name(cls)} does not say what it consists of: only dataclasses, msgspec and pydantic models, "
                "named tuples and enums can be registered like this. Register a codec for it."
            )
        self._roots.append(cls)
        self._types.update(types_named(cls))
        self._types.update(dict.fromkeys(former_names, cls))

    def know(self, *annotations: Any) -> None:
        """Let stored data be read as the types that these annotations name."""
        for annotation in annotations:
            self._types.update(self._types_in(annotation))

    def encode(self, value: Any, *, where: str) -> bytes:
        """Return the value as JSON, whole, whatever its size. `where` names node and handle.

        Raises ValueNotStorable, which names the part of the value that cannot be stored.
        """
        raw, _, _ = self._encoded(value, where, None)
        return raw

    def encode_plain(self, value: Any) -> bytes | None:
        """Return the JSON of a small value that is stored as it is, which is what most bodies return. None is "not known"."""
        kind = type_of(value)
        if kind is dict:
            if (
                not is_flat(value)
                or sum([len(part) for part in (*value, *value.values()) if type(part) is str]) > _SHORT
            ):
                return None
        elif kind is int:
            if not -MAX_SAFE_INT <= value <= MAX_SAFE_INT:
                return None
        elif not (kind is bool or value is None or (kind is str and len(value) <= _SHORT)):
            return None
        try:
            return encode_json(value)
        except UnicodeEncodeError:
            return None

    def decode(self, raw: bytes | msgspec.Raw, annotation: Any = Any, *, where: str = "The stored value") -> Any:
        """Return a fresh value, equal to the one that was encoded.

        Models and enums are those that are registered or that `annotation` names. Raises ValueNotReadable.
        """
        return self._decoded(raw, annotation, None, where)

    def pack(
        self,
        value: Any,
        *,
        where: str,
        inline_max_bytes: int = INLINE_MAX_BYTES,
        name: Callable[[bytes], str] = digest_of,
    ) -> Packed:
        """Return the value as JSON of at most about `inline_max_bytes`, and the blobs that hold the rest.

        Large bytes and arrays inside the value become blobs of their own. If what remains is still too large, it
        becomes a blob too. The blobs, among which are those of assets, must be durable before the JSON is committed.
        `name` gives what remains its digest; it may keep it meanwhile. What it raises is passed on.
        """
        if not 0 < inline_max_bytes <= INLINE_CAP_BYTES:
            raise ValueError(f"inline_max_bytes must be from 1 to {INLINE_CAP_BYTES:,}, and is {inline_max_bytes:,}.")
        # In base64 four bytes stand for three.
        raw, parts, assets = self._encoded(value, where, inline_max_bytes // 4 * 3)
        if not parts and not assets and len(raw) <= inline_max_bytes:
            return Packed(raw)
        blobs = (*parts.values(), *map(_kept, assets.values()))
        return _within(raw, blobs, [blob.ref for blob in parts.values()], assets.values(), inline_max_bytes, name)

    def repack(self, raw: bytes, *, inline_max_bytes: int = INLINE_MAX_BYTES) -> Packed:
        """Return a value that is encoded already as `pack` would, but for the parts: they stay where they are."""
        refs, contents = blob_refs(raw), content_refs(raw)
        return _within(raw, tuple(map(_kept, refs)), contents, refs - contents, inline_max_bytes)

    def unpack(
        self,
        raw: bytes | msgspec.Raw,
        annotation: Any = Any,
        *,
        read_blob: Callable[[BlobRef], bytes],
        where: str = "The stored value",
    ) -> Any:
        """Return a fresh value, equal to the one that was packed. What `read_blob` raises is passed on."""
        return self._decoded(raw, annotation, read_blob, where)

    def _encoded(self, value: Any, where: str, part_max_bytes: int | None) -> _Lowered:
        kind = type_of(value)
        try:
            if kind is str or kind is bool or value is None or (kind is int and -MAX_SAFE_INT <= value <= MAX_SAFE_INT):
                return encode_json(value), _NO_BLOBS, _NO_ASSETS
            if kind is dict and is_flat(value):
                return encode_json(value), _NO_BLOBS, _NO_ASSETS
            lowering = Lowering(self._codec_for, part_max_bytes)
            return encode_json(lowering.lower(value)), lowering.blobs, lowering.assets
        except UnicodeEncodeError:
            return self._encoded_with_surrogates(value, where, part_max_bytes)
        except Refusal as refusal:
            raise _not_storable(where, refusal) from refusal.__cause__
        except RecursionError:
            raise _not_storable(where, _too_deep(kind)) from None

    def _encoded_with_surrogates(self, value: Any, where: str, part_max_bytes: int | None) -> _Lowered:
        kind = type_of(value)
        lowering = Lowering(self._codec_for, part_max_bytes, checks_texts=True)
        try:
            return encode_json(lowering.lower(value)), lowering.blobs, lowering.assets
        except Refusal as refusal:
            raise _not_storable(where, refusal) from refusal.__cause__
        except RecursionError:
            raise _not_storable(where, _too_deep(kind)) from None

    def _decoded(
        self, raw: bytes | msgspec.Raw, annotation: Any, read_blob: Callable[[BlobRef], bytes] | None, where: str
    ) -> Any:
        content = raw if type(raw) is bytes else bytes(raw)
        try:
            document = decode_json(content)
            if not holds_tags(content):
                return document
            return Restoring(lambda tag: self._codec_for_tag(tag, annotation), read_blob).restore(document)
        except READ_ERRORS as problem:
            raise not_readable(where, problem) from problem

    def _codec_for(self, cls: type) -> Codec:
        codec = self._found.get(cls)
        if codec is None:
            if len(self._found) >= _CACHE_SIZE:
                self._found.clear()
            codec = self._found[cls] = self._find_codec(cls)
        return codec

    def _find_codec(self, cls: type[Any]) -> Codec:
        if getattr(cls, "__perdure_secret__", False) is True:
            raise Refusal(cls, "it is a secret", "Pass the secret's name on, and ask for its value where it is used.")
        if issubclass(cls, Asset):
            return _ASSETS
        for base in cls.__mro__:
            if base in self._registered:
                return self._registered[base]
        codec = self._exact.get(cls) or model_codec(cls) or array_codec(cls)
        if codec is None:
            raise Refusal(cls, "there is no codec for its type")
        return codec

    def _codec_for_tag(self, tag: str, annotation: Any) -> Codec:
        if tag == ASSET:
            return self._asset_codec(annotation)
        codec = self._by_tag.get(tag)
        if codec is not None:
            return codec
        cls = self._type_named(tag, annotation)
        if cls is None:
            raise Unreadable(
                f"it holds a {tag!r}, which this process does not know",
                "Annotate the parameter that receives it with its type, or register the type or its codec.",
                tag=tag,
            )
        return self._model_codec(cls)

    def _type_named(self, tag: str, annotation: Any) -> type | None:
        """What the receiver names goes before what is registered: a module may have been loaded twice."""
        cls = self._types_in(annotation).get(tag) or self._types.get(tag)
        if cls is None:
            # A subclass may have been declared since its base was looked at.
            cls = types_named([annotation, *self._roots]).get(tag)
            if cls is not None:
                self._named.clear()
                self._types.update(types_named(self._roots))
        return cls

    def _types_in(self, annotation: Any) -> dict[str, type]:
        if annotation is Any:
            return {}
        try:
            named = self._named.get(annotation)
        except TypeError:  # Annotated[…] with metadata that cannot be hashed
            return types_named(annotation)
        if named is None:
            if len(self._named) >= _CACHE_SIZE:
                self._named.clear()
            named = self._named[annotation] = types_named(annotation)
        return named

    def _asset_codec(self, annotation: Any) -> Codec:
        try:
            codec = self._assets.get(annotation)
        except TypeError:  # an annotation that cannot be hashed
            return asset_codec(assets_named(annotation))
        if codec is None:
            if len(self._assets) >= _CACHE_SIZE:
                self._assets.clear()
            codec = self._assets[annotation] = asset_codec(assets_named(annotation))
        return codec

    def _model_codec(self, cls: type) -> Codec:
        codec = self._models.get(cls)
        if codec is None:
            codec = model_codec(cls)
            assert codec is not None, "only types with a model codec are registered or named"
            if len(self._models) >= _CACHE_SIZE:
                self._models.clear()
            self._models[cls] = codec
        return codec


def default_codecs() -> Codecs:
    """Return codecs for plain data, models, arrays and the standard library; more can be registered."""
    codecs = Codecs(STANDARD)
    codecs.know(ItemFailure)
    return codecs


@functools.cache
def process_codecs() -> Codecs:
    """Return the codecs of this process: what modules register here when they are imported, its engines and children know."""
    return default_codecs()


def register_codec(codec: Codec) -> None:
    """Store values of the codec's type with it. Call it where the type is defined, so that every process that has the type
    has the codec."""
    process_codecs().register(codec)


def register_type(cls: type, *, former_names: Iterable[str] = ()) -> None:
    """Let stored data be read as `cls` where no annotation names it, or under names that it had before."""
    process_codecs().register_type(cls, former_names=former_names)


_Lowered = tuple[bytes, Mapping[str, NewBlob], Mapping[str, BlobRef]]
"""A value as JSON, the blobs of its parts, and the blobs of assets in it."""
_NO_BLOBS: Final[Mapping[str, NewBlob]] = {}
_NO_ASSETS: Final[Mapping[str, BlobRef]] = {}
_ASSETS: Final = asset_codec()


def _never_written(_: Any) -> NoReturn:
    raise AssertionError("arrays are found by their type")


def _too_deep(kind: type) -> Refusal:
    return Refusal(kind, f"it is nested deeper than {MAX_DEPTH} levels, or contains itself", "Store a flatter value.")


def _not_storable(where: str, refusal: Refusal) -> ValueNotStorable:
    return ValueNotStorable(where, refusal.path(), type_name(refusal.kind), refusal.reason, refusal.remedy)


def _kept(ref: BlobRef) -> KeptBlob:
    return KeptBlob(ref.digest, b"", ref.size)


def _within(
    raw: bytes,
    blobs: tuple[NewBlob, ...],
    contents: Iterable[BlobRef],
    assets: Iterable[BlobRef],
    inline_max_bytes: int,
    name: Callable[[bytes], str] = digest_of,
) -> Packed:
    if len(raw) <= inline_max_bytes:
        return Packed(raw, blobs)
    whole = NewBlob(name(raw), raw)
    return Packed(encode_json(json_reference(whole.ref, contents, assets)), (*blobs, whole))
