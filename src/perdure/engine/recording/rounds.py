"""Rounds of the loop: what happens several times in one of them is seen to together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Rounds:
    """Numbers the rounds that the loop goes, as far as anybody asks."""

    def __init__(self) -> None:
        self._number = 0
        self._is_asked = False
        """Whether the loop was asked to say when the next round has come: asking costs more than most of what is done then."""
        self._works: list[tuple[Callable[[Any], None], Any]] = []

    def current(self) -> int:
        """Return a number that is the same until whatever is ready to run by now has run."""
        self._ask()
        return self._number

    def soon(self, act: Callable[[T], None], what: T) -> None:
        """Have `act` called in the next round, with all else that is to be called then. It must not raise."""
        self._ask()
        self._works.append((act, what))

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._number += 1
        self._is_asked = False
        works, self._works = iter(self._works), []
        try:
            for act, what in works:
                act(what)
        except BaseException:  # such as what ends the program: the others are called all the same, in the next round
            if left := list(works):
                self._ask()
                self._works[:0] = left
            raise
