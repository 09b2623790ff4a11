"""What tests of durable workflows stand on: crashes at every commit, virtual time, effects that are counted.

Everything here is for tests; nothing that is shipped imports it. For users' tests there is the fixture `perdure`, which is a
`Rehearsal`:

    rehearsal    run workflows in virtual time, answer, stub, crash and kill
    watched      a run that a test watches, and claims about it
    script       what others do about runs
    stubs        stand-ins for the bodies of nodes
    survival     a crash at every commit of a workflow
    kills        a run whose process is killed; `child` is that process
    stage        where all of that takes place

and below it, for ours as well:

    loop         a loop whose time is virtual, and which can shuffle what is ready
    dispatch     bodies on the loop, all of them
    bodies       bodies where an engine runs them, counted
    stores       stores on a virtual loop, one for each test
    process      an engine that can be killed at any moment, as a process can
    crashes      a store that dies, fails or is taken over at a chosen commit
    faults       a store whose n-th operation fails
    awaits       a coroutine that is disturbed at its n-th suspension
    ledger       the effects of bodies, kept outside of the database
    graphs       reference workflows and what they must come to
    world        all of these together: run a workflow through crashes, and judge what became of it
    simulation   several engines, in virtual time, with everything going wrong that can
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.rehearsal import Rehearsal
    from perdure.testing.stage import NeverRests
    from perdure.testing.stubs import Stub
    from perdure.testing.survival import Crash
    from perdure.testing.watched import Executions, WatchedRun

__all__ = ["Crash", "Executions", "NeverRests", "Rehearsal", "Stub", "WatchedRun"]

_LATE = {
    "Crash": "perdure.testing.survival",
    "Executions": "perdure.testing.watched",
    "NeverRests": "perdure.testing.stage",
    "Rehearsal": "perdure.testing.rehearsal",
    "Stub": "perdure.testing.stubs",
    "WatchedRun": "perdure.testing.watched",
}
"""Names whose modules load an engine: those who want one module of this package do not need them."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
