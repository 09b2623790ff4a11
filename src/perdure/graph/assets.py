"""Assets: references to large things (images, audio, video, documents) that travel between nodes instead of the things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, Self

from perdure.ids import is_digest

DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"


class Asset:
    """A file that is kept with the run. What it holds is read and written through a body's context, or through an engine.

    Equal assets have equal content, and are described by the same words.
    """

    __slots__ = ("digest", "media_type", "meta", "name", "size")

    digest: str
    """The sha256 of the content, in hexadecimal."""
    size: int
    """In bytes."""
    media_type: str
    name: str
    """What the file is called, for people and for programs that go by its extension; empty if it has no name."""
    meta: dict[str, Any]
    """Whatever else is worth knowing: width and height, duration, language. Anything that can be stored."""

    def __init__(
        self,
        digest: str,
        size: int,
        *,
        media_type: str = DEFAULT_MEDIA_TYPE,
        name: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if not is_digest(digest) or size < 0:
            raise ValueError(
                "An asset is named by a sha256 in lower-case hexadecimal and a size: ctx.asset(…) makes one."
            )
        for field, value in (
            ("digest", digest),
            ("size", size),
            ("media_type", media_type),
            ("name", name),
            ("meta", dict(meta or {})),
        ):
            object.__setattr__(self, field, value)

    def with_meta(self, **meta: Any) -> Self:
        """Return the same asset with more that is worth knowing about it."""
        return type(self)(
            self.digest, self.size, media_type=self.media_type, name=self.name, meta={**self.meta, **meta}
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Asset) or type(other) is not type(self):
            return False
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((self.digest, self.size))

    def __repr__(self) -> str:
        called = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}({called}{self.media_type}, {self.size:,} bytes, sha256 {self.digest[:12]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), *self._facts())

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"An asset does not change: {name!r} cannot be set. with_meta(…) gives another one.")

    def _facts(self) -> tuple[Any, ...]:
        return self.digest, self.size, self.media_type, self.name, self.meta


class Image(Asset):
    """An asset that is a picture."""

    __slots__ = ()


class Audio(Asset):
    """An asset that is a sound."""

    __slots__ = ()


class Video(Asset):
    """An asset that is a film."""

    __slots__ = ()


class Document(Asset):
    """An asset that is something to read: a text, a PDF, a table."""

    __slots__ = ()


KINDS: Final[Mapping[str, type[Asset]]] = {
    "asset": Asset,
    "image": Image,
    "audio": Audio,
    "video": Video,
    "document": Document,
}
"""All kinds of assets, by the names under which they are stored."""


def _restored(cls: type[Asset], digest: str, size: int, media_type: str, name: str, meta: dict[str, Any]) -> Asset:
    return cls(digest, size, media_type=media_type, name=name, meta=meta)
