"""A wish to go back to items, or to what a run was, is for whoever takes the run up: what is needed for that is read then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perdure.engine.driving.goingback import has_to_be_loaded
from perdure.ids import CommandId, RunId
from perdure.journal.states import RunStatus
from perdure.store.shapes import Command


@pytest.mark.parametrize(
    ("kind", "items", "status", "loaded", "expected"),
    [
        ("jump", [3], RunStatus.PAUSED, (), True),
        ("jump", [3], RunStatus.PAUSED, ("wish",), False),
        ("jump", [3], RunStatus.RUNNING, (), False),
        ("jump", [], RunStatus.PAUSED, (), False),
        ("restore", [], RunStatus.PAUSED, (), True),
        ("restore", [], RunStatus.COMPLETED, ("wish",), False),
        ("restore", [], RunStatus.RUNNING, (), False),
        ("retry", [], RunStatus.FAILED, (), False),
    ],
)
def test_one_who_still_has_the_run_leaves_it_to_others(
    kind: str, items: list[int], status: RunStatus, loaded: tuple[str, ...], expected: bool
) -> None:
    command = Command(command_id=CommandId("wish"), run_id=RunId("run"), kind=kind, payload={"items": items})
    run = SimpleNamespace(status=status)
    known: dict[str, None] = dict.fromkeys(loaded)
    by_kind = {"reopenings": known, "returnings": {}} if kind == "jump" else {"reopenings": {}, "returnings": known}
    driver: Any = SimpleNamespace(projection=SimpleNamespace(run=run), **by_kind)

    assert has_to_be_loaded(command, driver) is expected
