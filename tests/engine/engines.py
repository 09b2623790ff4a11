"""Engines for tests of what an engine does: on a file, in virtual time, with everything on the loop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from perdure import Engine, EngineSettings
from perdure.engine.inspect import verify_run
from perdure.engine.run import Run
from perdure.journal import events as e
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.loop import VirtualClock

SETTINGS = EngineSettings(heartbeat_in_thread=False)


def engine_on(url: Any, **options: Any) -> Engine:
    """Return an engine for a virtual loop. Options that are settings of engines are those."""
    settings = {name: options.pop(name) for name in EngineSettings.__struct_fields__ if name in options}
    return Engine(
        url,
        settings=msgspec.structs.replace(SETTINGS, **settings),
        clock=options.pop("clock", None) or VirtualClock(),
        dispatch=options.pop("dispatch", None) or InlineDispatch(),
        **options,
    )


async def log_of(run: Run[Any]) -> list[e.Recorded]:
    """Return the run's log as it is."""
    return [entry async for entry in run.events(follow=False)]


async def counted(run: Run[Any]) -> Counter[type[e.Event]]:
    """Return how often each type of event occurs in the run's log."""
    return Counter(type(entry.event) for entry in await log_of(run))


async def assert_whole(engine: Engine, *runs: Run[Any]) -> None:
    for run in runs:
        assert await verify_run(engine, run.run_id) == []
