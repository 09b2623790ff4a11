"""Items that have failed for good, where the others go on: what `failures` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

ERRORS: Final = "errors"
"""The output on which a node with `on_item_error="collect"` gives them."""


@dataclass(frozen=True)
class ItemFailure:
    """An item for which a node was called in vain."""

    position: int
    """Of the item, from 0."""
    item: Any
    """The item itself; a dict by parameter if the node is mapped over several."""
    error: str
    """The type of the error."""
    message: str
    attempts: int
