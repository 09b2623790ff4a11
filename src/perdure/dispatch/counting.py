"""How often a body has called for the same thing: it is what tells those calls apart when the body runs again."""

from __future__ import annotations

import threading
from collections import Counter

from perdure.dispatch.base import StepCall


class Counting:
    """Belongs to one attempt. Parts of the body may count in several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._checkpoints = 0

    def step(self, name: str) -> StepCall:
        """Count a step."""
        with self._lock:
            self._steps[name] += 1
            return StepCall(name=name, occurrence=self._steps[name] - 1, checkpoints=self._checkpoints)

    def wait(self, name: str) -> int:
        """Count a wait, and return how often it came before."""
        with self._lock:
            self._waits[name] += 1
            return self._waits[name] - 1

    def begin_anew(self) -> None:
        """Note a checkpoint: a body that goes on from there counts from there."""
        with self._lock:
            self._checkpoints += 1
            self._steps.clear()
            self._waits.clear()
