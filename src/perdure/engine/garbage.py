"""Python's collector of garbage, which stops the whole process while it looks at every object there is."""

from __future__ import annotations

import gc

_OLDEST = 2


def collect_early() -> None:
    """Make the first full collection of this process now, if there was none.

    It is due soon after a small program has loaded its modules, and would fall into the first run. In a program that is large
    enough for this to take long it has happened before, while modules were loaded.
    """
    if gc.isenabled() and not gc.get_stats()[_OLDEST]["collections"]:
        gc.collect()
