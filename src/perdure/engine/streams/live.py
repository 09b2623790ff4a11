"""How the streams of a run flow at this moment: facts that only whoever drives it has, and that nobody records.

They are pulled by whoever wants to show them. Nothing is counted for them while items flow.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.ids import NodeId


class EdgeFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stream on its way from the node that gives it to one that reads it."""

    source: NodeId
    target: NodeId
    target_handle: str
    taken: int
    """How many items the reader has taken, those of earlier attempts included."""
    buffered: int
    """How many items are at hand for it."""
    behind: int
    """How many entries are only in the store, because it has fallen behind: it reads them back."""
    is_over: bool
    """Whether it has taken everything that will ever come."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node at work that reads or gives a stream."""

    running: int | None = None
    """How many calls run at once; None unless it is called once per item."""
    total: int | None = None
    """How many calls there will have been in the end, once that is known."""
    is_blocked: bool = False
    """It waits because those who read its stream have enough to do."""
    is_starved: bool = False
    """It waits for items."""


class LiveStreams(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All streams of a run that flow."""

    nodes: Mapping[NodeId, NodeFacts]
    edges: tuple[EdgeFacts, ...]
