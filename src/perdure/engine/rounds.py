"""Rounds of the loop: what happens several times in one of them is seen to together."""

from __future__ import annotations

import asyncio


class Rounds:
    """Numbers the rounds that the loop goes, as far as anybody asks."""

    def __init__(self) -> None:
        self._number = 0
        self._is_counting = False

    def current(self) -> int:
        """Return a number that is the same until whatever is ready to run by now has run."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next)
        return self._number

    def _next(self) -> None:
        self._number += 1
        self._is_counting = False
