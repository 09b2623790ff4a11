"""Which versions of its workflow a run has followed, as its log tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perdure.journal import events as e


class Followed(NamedTuple):
    """A version of the run's workflow, and what it says."""

    version: int
    graph_hash: str


def followed_from(event: e.Event) -> Followed | None:
    """Return the version that a run follows from an event on; None if it tells of none."""
    match event:
        case e.RunCreated(version=version, graph_hash=graph_hash):
            return Followed(version, graph_hash)
        case e.BranchActivated(version=int(version), graph_hash=graph_hash):
            return Followed(version, graph_hash)
        case e.RunRecovered(version=int(version), graph_hash=graph_hash):
            return Followed(version, graph_hash)
        case _:
            return None


def versions_followed(events: Iterable[e.Recorded]) -> list[Followed]:
    """Return each version that a run has followed once, in the order in which it has done so last: it is with the last one."""
    found: dict[Followed, None] = {}
    for entry in events:
        if (followed := followed_from(entry.event)) is not None:
            found.pop(followed, None)
            found[followed] = None
    return list(found)
