"""Where the streams and lists meet over which a node is mapped: what one call gets of each.

Streams that come from one source item by item, and those that are zipped, go together: the n-th call gets the n-th of each, and
all must be equally long, unless what is left of the longer ones is dropped. With `latest`, every further item of any of them
makes a call with the last item of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from perdure.engine.streams.entries import Item
from perdure.errors import StreamsUneven
from perdure.graph.model import Leftovers

Met = Mapping[str, Item]
"""What a call gets, by handle."""


class Source(Protocol):
    """Items that arrive at one handle."""

    taken: int

    @property
    def has_item(self) -> bool: ...

    @property
    def total(self) -> int | None:
        """How many items there are in all, once that is known."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether everything was taken that will ever come."""
        ...

    def take(self) -> Item: ...

    def want(self) -> None:
        """Say that there is nothing left to do without more."""
        ...

    def leave(self) -> None: ...


class ListSource:
    """The items of a list, all at hand."""

    def __init__(self, items: Sequence[bytes], *, start: int) -> None:
        self.taken = start
        self._items = items

    @property
    def has_item(self) -> bool:
        return self.taken < len(self._items)

    @property
    def total(self) -> int | None:
        return len(self._items)

    @property
    def is_over(self) -> bool:
        return not self.has_item

    def take(self) -> Item:
        self.taken += 1
        return self._items[self.taken - 1]

    def want(self) -> None:
        """There is nothing more to want."""

    def leave(self) -> None:
        """Nobody waits for a reader of a list."""


class Meeting(Protocol):
    """Says what the next call gets."""

    position: int
    """Of the next call."""

    def take(self) -> Met | None:
        """Return what the next call gets; None if that is not at hand. Raises StreamsUneven."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether no call follows."""
        ...

    @property
    def total(self) -> int | None:
        """How many calls there will have been in the end, once that is known."""
        ...

    @property
    def is_starved(self) -> bool:
        """Whether the next call waits for an item."""
        ...

    @property
    def consumed(self) -> dict[str, int]:
        """How many items of each handle were taken, where the positions of the calls do not tell."""
        ...

    def leave(self) -> None:
        """Read no more."""
        ...


class Together:
    """One item of each, in step."""

    def __init__(self, node_id: str, sources: Mapping[str, Source], *, start: int, leftovers: Leftovers) -> None:
        self.position = start
        self._node_id = node_id
        self._leftovers = leftovers
        self._sources = dict(sources)
        for source in self._sources.values():
            source.want()

    def take(self) -> Met | None:
        sources = self._sources
        for source in sources.values():
            if not source.has_item:
                if self._leftovers == "fail":
                    self._refuse_leftovers()
                return None
        self.position += 1
        return {handle: source.take() for handle, source in sources.items()}

    @property
    def is_over(self) -> bool:
        over = (source.is_over for source in self._sources.values())
        return any(over) if self._leftovers == "drop" else all(over)

    @property
    def total(self) -> int | None:
        return next((source.total for source in self._sources.values() if source.total is not None), None)

    @property
    def is_starved(self) -> bool:
        return not self.is_over and not all(source.has_item for source in self._sources.values())

    @property
    def consumed(self) -> dict[str, int]:
        return {}

    def leave(self) -> None:
        for source in self._sources.values():
            source.leave()

    def _refuse_leftovers(self) -> None:
        ended = [handle for handle, source in self._sources.items() if source.is_over]
        left = [handle for handle, source in self._sources.items() if source.has_item]
        if ended and left:
            raise StreamsUneven(self._node_id, ended[0], left[0], self.position)


class Latest:
    """The last item of each, whenever one has a further item. The first call waits until each has one."""

    def __init__(self, sources: Mapping[str, Source], *, position: int, has_begun: bool) -> None:
        self.position = position
        self._sources = dict(sources)
        self._current: dict[str, Item] = {}
        self._has_begun = has_begun
        """Whether calls were made with the items that each source gives first: then they are no news."""
        for source in self._sources.values():
            source.want()

    def take(self) -> Met | None:
        if len(self._current) < len(self._sources):
            if not all(source.has_item for source in self._sources.values()):
                return None
            self._current = {handle: source.take() for handle, source in self._sources.items()}
            if not self._has_begun:
                return self._met()
        for handle, source in self._sources.items():
            if source.has_item:
                self._current[handle] = source.take()
                return self._met()
        return None

    @property
    def is_over(self) -> bool:
        if len(self._current) < len(self._sources):
            return any(source.is_over for source in self._sources.values())
        return all(source.is_over for source in self._sources.values())

    @property
    def total(self) -> int | None:
        totals = [source.total for source in self._sources.values()]
        known = [total for total in totals if total is not None]
        if len(known) < len(totals):
            return None
        return sum(known) - len(known) + 1 if all(known) else 0  # the first call takes one of each

    @property
    def is_starved(self) -> bool:
        return not self.is_over and not any(source.has_item for source in self._sources.values())

    @property
    def consumed(self) -> dict[str, int]:
        return {handle: source.taken for handle, source in self._sources.items()}

    def leave(self) -> None:
        for source in self._sources.values():
            source.leave()

    def _met(self) -> Met:
        self.position += 1
        return dict(self._current)
