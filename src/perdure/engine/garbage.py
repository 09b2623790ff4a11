"""Python's collector of garbage, which stops the whole process while it looks at every object there is."""

from __future__ import annotations

import gc

_OLDEST = 2
MOST_YOUNG = 100_000
"""With more new objects than this, the collector was turned off meanwhile, and the first collection would take long."""


def collect_early() -> None:
    """Make the first full collection of this process now, if there was none.

    It is due soon after a small program has loaded its modules, and would fall into the first run. In a program that is large
    enough for this to take long it has happened before, while modules were loaded.
    """
    is_due = gc.isenabled() and not gc.get_stats()[_OLDEST]["collections"]
    if is_due and gc.get_count()[0] < MOST_YOUNG:
        gc.collect()
