"""What the body of one attempt waits for at this moment, and what it has yet to come back to because it waited for it before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any
from weakref import ReferenceType

from perdure.journal.states import WaitState, WaitStatus

WaitName = tuple[str, int]
Strand = ReferenceType[asyncio.Task[Any]] | str
"""One of several things that a body does at once: a task of its own, or, where its threads are not told apart, its scope."""


class Recall:
    """Belongs to one attempt, from the first time that its body waits."""

    def __init__(self, recorded: Iterable[WaitState], scope_of: Callable[[str], str]) -> None:
        """`recorded` are the waits of the node from before. What is called for items of a node is told apart by its scope."""
        self.awaited: dict[str, str] = {}
        """The ids of what the body waits for at this moment, with the scope of each."""
        self.asked: dict[str, None] = {}
        """The ids of waits that are being recorded: the body has asked for them, and does not wait yet."""
        self._given: dict[Strand, tuple[str, float]] = {}
        """Who was given what has come and has not waited since, with the scope and the moment of that."""
        self._left: dict[str, dict[WaitName, None]] = {}
        for wait in recorded:
            if wait.status in (WaitStatus.OPEN, WaitStatus.SETTLED):
                self._left.setdefault(scope_of(wait.name), {})[wait.name, wait.occurrence] = None
        self._came_back = asyncio.Event()

    def __len__(self) -> int:
        """Return how many calls wait."""
        return len(set(self.awaited.values()))

    def came_back(self, scope: str, name: str, occurrence: int) -> None:
        """Note that the body waits for this, again or for the first time."""
        left = self._left.get(scope)
        if left is None:
            return
        left.pop((name, occurrence), None)
        if not left:
            del self._left[scope]
            self._came_back.set()

    def comes_to_wait(self, strand: Strand, *, anew: bool) -> None:
        """Note that something the body does waits, for the first time (`anew`) or again: it is done with what it was given."""
        if anew or not isinstance(strand, str):  # of several threads, another may still be at work
            self._given.pop(strand, None)

    def given(self, strand: Strand, scope: str, *, at: float, forget_before: float) -> None:
        """Note that something the body does was given what has come. What was given long ago is forgotten."""
        self._given = {one: told for one, told in self._given.items() if told[1] >= forget_before}
        self._given[strand] = (scope, at)

    def was_given_since(self, moment: float) -> bool:
        """Whether something that the body does was given what has come, and has not waited since: it may be at work with it."""
        return any(at >= moment for _, at in self._given.values())

    async def is_complete(self, scope: str) -> None:
        """Return when the body has come back to everything that it has waited for before."""
        while scope in self._left:
            self._came_back.clear()
            await self._came_back.wait()

    def forget(self) -> None:
        """Note a checkpoint: the body does not come back to what was before it."""
        self._left.clear()
        self._came_back.set()

    def ended(self, scope: str) -> None:
        """Note that a call is over: the body does not wait for what is left of it."""
        for wait_id in [wait_id for wait_id, waiting in self.awaited.items() if waiting == scope]:
            del self.awaited[wait_id]
        self._given = {strand: told for strand, told in self._given.items() if told[0] != scope}

    def left(self, scope: str) -> Sequence[str]:
        """Return the names of what the body has not come back to."""
        return [name for name, _ in self._left.get(scope, ())]

    def all_left(self) -> Iterator[WaitName]:
        """Return what the body has not come back to, in whatever scope."""
        return chain.from_iterable(self._left.values())

    @contextmanager
    def asking(self, wait_id: str) -> Generator[None]:
        """Note, meanwhile, that the body has asked for this."""
        self.asked[wait_id] = None
        try:
            yield
        finally:
            self.asked.pop(wait_id, None)

    @contextmanager
    def waiting_for(self, wait_id: str, scope: str) -> Generator[None]:
        """Note, meanwhile, that the body waits for this."""
        self.awaited[wait_id] = scope
        try:
            yield
        finally:
            self.awaited.pop(wait_id, None)
