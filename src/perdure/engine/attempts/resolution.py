"""What a person or a probe says about an attempt in doubt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from perdure.journal import events as e
from perdure.journal.states import NodeState
from perdure.store.transitions import BlobUse


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a `resolve` command. Outputs are encoded values as text."""

    node_id: str
    resolution: Literal["done", "retry", "fail"]
    attempt: int | None = None
    """The attempt that this is about; None is whichever is in doubt."""
    outputs: dict[str, str] = {}
    blobs: tuple[BlobUse, ...] = ()
    by: str = ""

    def event_for(self, node: NodeState) -> e.NodeResolved:
        """Return what is recorded about the node."""
        return e.NodeResolved(
            node_id=node.node_id,
            attempt=node.attempt,
            resolution=self.resolution,
            outputs={name: msgspec.Raw(value.encode()) for name, value in self.outputs.items()},
            by=self.by,
        )


def done(node: NodeState, outputs: Mapping[str, e.Encoded], blobs: tuple[BlobUse, ...], *, by: str) -> Resolution:
    """Return the word that the attempt in doubt has had its effect, and that the node has given this."""
    return Resolution(
        node_id=node.node_id,
        resolution="done",
        attempt=node.attempt,
        outputs={name: bytes(value).decode() for name, value in outputs.items()},
        blobs=blobs,
        by=by,
    )
