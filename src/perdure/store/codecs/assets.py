"""Assets: stored as their names and what describes them. Their content is never part of a value.

What is stored says by its tag that it refers to a blob, so `blob_refs` finds it and nobody reads the blob to decode it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from perdure.graph.assets import KINDS, Asset
from perdure.store.codecs.codec import Conversion, Refusal, Unreadable, damaged, expect, expect_dict
from perdure.store.codecs.wire import ASSET

_NAMES: Final = {cls: name for name, cls in KINDS.items()}


def asset_codec(wanted: Collection[type[Asset]] = ()) -> Conversion:
    """Return how assets are stored and read, where those who receive them want these kinds; none is any."""

    def from_plain(data: Any) -> Asset:
        return _from_plain(data, wanted)

    return Conversion(ASSET, Asset, _to_plain, from_plain)


def _to_plain(asset: Asset) -> dict[str, Any]:
    kind = type(asset)
    if kind not in _NAMES:
        raise Refusal(
            kind,
            "it is an asset of a kind of its own",
            f"Use {_listed(KINDS.values())}, and put what is special about it into `meta`.",
        )
    return {
        "kind": _NAMES[kind],
        "digest": asset.digest,
        "size": asset.size,
        "media_type": asset.media_type,
        "name": asset.name,
        "meta": asset.meta,
    }


def _from_plain(data: Any, wanted: Collection[type[Asset]]) -> Asset:
    fields = expect_dict(data)
    cls = KINDS.get(expect(fields["kind"], str))
    if cls is None:
        raise damaged(f"there is no kind of assets {fields['kind'][:80]!r}")
    if wanted and not issubclass(cls, tuple(wanted)):
        raise Unreadable(
            f"it is {_a(cls)}, and {_listed(wanted)} is wanted",
            f"Pass one of those: ctx.asset(…, kind={next(iter(wanted)).__name__}) makes one.",
        )
    return cls(
        expect(fields["digest"], str),
        expect(fields["size"], int),
        media_type=expect(fields["media_type"], str),
        name=expect(fields["name"], str),
        meta=expect_dict(fields["meta"]),
    )


def _a(cls: type) -> str:
    return f"{'an' if cls.__name__[0] in 'AI' else 'a'} {cls.__name__}"


def _listed(kinds: Collection[type]) -> str:
    return " or ".join(sorted(kind.__name__ for kind in kinds))
