"""Tags: words by which people find runs again. They are no part of a run's history, and may change at any time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure.ids import is_text

MOST_CHARACTERS: Final = 200


def checked_tags(tags: Iterable[str]) -> list[str]:
    """Return tags, each once. Raises ValueError for one that is empty, too long, or no text that a database can hold."""
    if isinstance(tags, str):
        raise ValueError(f"tags={tags!r} is one text: give a list of them")
    found = sorted(set(tags))
    for tag in found:
        if not tag.strip() or len(tag) > MOST_CHARACTERS or not is_text(tag) or not tag.isprintable():
            raise ValueError(
                f"{tag[:MOST_CHARACTERS]!r} is no tag: give a text in one line of 1 to {MOST_CHARACTERS} characters"
            )
    return found
