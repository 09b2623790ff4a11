"""Assets as values: tiny, seen by whoever looks for blobs, and never read."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from perdure import Asset, Audio, Document, Image, Video
from perdure.errors import ValueNotReadable, ValueNotStorable
from perdure.graph.constants import to_constant
from perdure.ids import digest_of
from perdure.store.codecs import (
    BlobRef,
    Codecs,
    KeptBlob,
    blob_refs,
    canonical,
    content_refs,
    default_codecs,
    register_codec,
)
from perdure.store.codecs.wire import MAX_ASSETS, whole_reference, with_blobs_inside

GIGABYTE = 1_000_000_000


@pytest.fixture
def codecs() -> Codecs:
    return default_codecs()


def image(number: int = 0, **meta: Any) -> Image:
    return Image(digest_of(b"%d" % number), GIGABYTE, media_type="image/png", name=f"{number}.png", meta=meta)


def ref_of(asset: Asset) -> BlobRef:
    return BlobRef(asset.digest, asset.size)


def never(ref: BlobRef) -> bytes:
    raise AssertionError(f"{ref} was read")


@pytest.mark.parametrize("kind", [Asset, Image, Audio, Video, Document])
def test_an_asset_comes_back_as_what_it_was(codecs: Codecs, kind: type[Asset]):
    asset = kind(digest_of(b"x"), 1, media_type="x/y", name="é.bin", meta={"at": (1, 2), "$": None, "raw": b"\x00"})

    packed = codecs.pack(asset, where="here")

    for annotation in (Any, Asset, kind, kind | None):
        restored = codecs.unpack(packed.raw, annotation, read_blob=never)
        assert type(restored) is kind
        assert restored == asset
        assert restored.meta == asset.meta


def test_an_asset_is_tiny_and_is_not_read(codecs: Codecs):
    value = {"images": [image(1), image(2)], "more": {"cover": image(1)}}

    packed = codecs.pack(value, where="here")

    assert len(packed.raw) < 1_000
    assert blob_refs(packed.raw) == {ref_of(image(1)), ref_of(image(2))}
    assert content_refs(packed.raw) == set()
    assert {type(blob) for blob in packed.blobs} == {KeptBlob}
    assert {blob.ref for blob in packed.blobs} == blob_refs(packed.raw)
    assert codecs.unpack(packed.raw, read_blob=never) == value


def test_assets_inside_a_value_that_is_a_blob_itself_are_seen_and_not_read(codecs: Codecs):
    value = [image(1, notes="x" * 1_000), b"bytes" * 1_000]

    packed = codecs.pack(value, where="here", inline_max_bytes=600)

    whole = whole_reference(packed.raw)
    assert whole is not None
    contents = {BlobRef(digest_of(value[1]), 5_000), whole}  # type: ignore[arg-type]
    assert blob_refs(packed.raw) == {*contents, ref_of(image(1))}
    assert content_refs(packed.raw) == contents
    held = {blob.ref: blob.content for blob in packed.blobs if not isinstance(blob, KeptBlob)}
    assert held.keys() == contents
    assert codecs.unpack(packed.raw, read_blob=held.__getitem__) == value
    inlined = with_blobs_inside(packed.raw, held)
    assert blob_refs(inlined) == {ref_of(image(1))}
    assert codecs.decode(inlined) == value


def test_what_another_process_has_encoded_is_recorded_as_well(codecs: Codecs):
    raw = codecs.encode([image(1), "x" * 1_000], where="there")

    small, large = codecs.repack(raw), codecs.repack(raw, inline_max_bytes=100)

    assert [blob.ref for blob in small.blobs] == [ref_of(image(1))]
    assert ref_of(image(1)) in {blob.ref for blob in large.blobs}
    assert ref_of(image(1)) in blob_refs(large.raw)
    assert content_refs(large.raw) == {whole_reference(large.raw)}


def test_equal_assets_have_one_canonical_spelling(codecs: Codecs):
    one = codecs.encode(image(1, a=1, b=2), where="here")
    other = codecs.encode(image(1, b=2, a=1), where="here")

    assert canonical(one) == canonical(other)
    assert canonical(one) != canonical(codecs.encode(image(2, a=1, b=2), where="here"))


@pytest.mark.parametrize("annotation", [Audio, Audio | None, list[Audio], dict[str, Audio | Video], Audio | Document])
def test_another_kind_than_the_wanted_one_is_a_clear_error(codecs: Codecs, annotation: Any):
    raw = codecs.encode([image(1)], where="here")

    with pytest.raises(ValueNotReadable, match=r"it is an Image, and .*Audio.* is wanted"):
        codecs.decode(raw, annotation)


@dataclass
class Scene:
    cover: Image
    extras: dict[str, Any]


@pytest.mark.parametrize("annotation", [Any, list, Scene, Audio | Image, list[Any] | Audio, Asset])
def test_in_doubt_every_kind_will_do(codecs: Codecs, annotation: Any):
    raw = codecs.encode(image(1), where="here")

    assert codecs.decode(raw, annotation) == image(1)


def test_a_kind_of_ones_own_is_refused(codecs: Codecs):
    class Photo(Image):
        __slots__ = ()

    with pytest.raises(ValueNotStorable, match="`meta`"):
        codecs.encode(Photo(digest_of(b"x"), 1), where="here")


def test_assets_take_no_codec_of_the_users():
    class Mine:
        tag = "mine"
        python_type = Image

        def to_plain(self, value: Any, /) -> Any:
            return None

        def from_plain(self, data: Any, /) -> Any:
            return None

    with pytest.raises(ValueError, match="assets take no codec"):
        register_codec(Mine())


def test_too_many_assets_for_one_value_are_refused(codecs: Codecs):
    with pytest.raises(ValueNotStorable, match="more than 10,000 assets"):
        codecs.encode([image(number) for number in range(MAX_ASSETS + 1)], where="here")


@pytest.mark.parametrize(
    "change",
    [{"digest": "x"}, {"size": -1}, {"size": "1"}, {"kind": "smell"}, {"kind": 1}, {"meta": None}, {"name": None}],
)
def test_a_damaged_asset_is_a_clear_error(codecs: Codecs, change: dict[str, Any]):
    stored = msgspec.json.decode(codecs.encode(image(1), where="here"))
    stored["v"].update(change)

    with pytest.raises(ValueNotReadable):
        codecs.decode(msgspec.json.encode(stored))


def test_a_damaged_reference_of_an_asset_is_found_by_whoever_looks_for_blobs(codecs: Codecs):
    stored = msgspec.json.decode(codecs.encode(image(1), where="here"))
    stored["v"]["digest"] = "../../etc/passwd"

    with pytest.raises(ValueNotReadable):
        blob_refs(msgspec.json.encode(stored))


def test_an_asset_cannot_be_written_into_a_graph():
    with pytest.raises(ValueError, match="not JSON"):
        to_constant(image(1), Image)


def test_an_asset_does_not_change():
    asset = image(1, width=3)

    with pytest.raises(AttributeError, match="with_meta"):
        asset.name = "other"
    assert asset.with_meta(height=4) == image(1, width=3, height=4)
    assert asset == image(1, width=3)
    assert copy.deepcopy(asset) == asset == pickle.loads(pickle.dumps(asset))
    assert {asset: 1}[image(1, width=3)] == 1
    assert asset != Audio(asset.digest, asset.size, media_type="image/png", name="1.png", meta={"width": 3})
    assert repr(asset).startswith("Image('1.png', image/png, 1,000,000,000 bytes")


@pytest.mark.parametrize(("digest", "size"), [("abc", 1), (digest_of(b"x"), -1)])
def test_an_asset_has_a_digest_and_a_size(digest: str, size: int):
    with pytest.raises(ValueError, match=r"ctx\.asset"):
        Asset(digest, size)
