"""How long to wait before another attempt."""

from __future__ import annotations

from perdure.graph.policy import Backoff
from perdure.ids import Chance

LONGEST_PAUSE_SECONDS = 100 * 365 * 86_400.0
"""What a pause is cut down to: anything longer is no time that a database could keep."""


def pause_micros(backoff: Backoff, failures: int, chance: Chance) -> int:
    """Exponential, with full jitter: many runs that failed together do not come back together."""
    longest = min(backoff.cap.total_seconds(), LONGEST_PAUSE_SECONDS)
    try:
        seconds = min(backoff.first.total_seconds() * float(backoff.factor) ** failures, longest)
    except OverflowError:
        seconds = longest if backoff.first else 0.0
    if backoff.jitter:
        seconds *= chance.uniform(0.5, 1.0)
    return int(seconds * 1_000_000)
