"""The drawings of the state machines are those of the law in the code."""

from __future__ import annotations

import re
from typing import get_args

from perdure.journal.events import AnyEvent
from perdure.journal.states import NODE_LAW, RUN_LAW, NodeStatus, RunStatus
from tests.docs.drawings import draw_nodes, draw_runs, wide_moves
from tests.docs.pages import ROOT, blocks_of

PAGE = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "perdure"
DECISIONS = ("checkpoints", "decide", "mending", "readiness", "repairing", "resting", "standing", "streaming")
WRITERS = (*(SOURCE / "journal" / f"{name}.py" for name in DECISIONS), *(SOURCE / "engine").rglob("*.py"))
"""The modules in which events are made."""

EVENTS = {event.__name__ for event in get_args(AnyEvent)}


def test_the_drawings_are_made_from_the_law():
    drawn = [block.text for block in blocks_of(PAGE) if block.language == "mermaid"]

    assert drawn == [draw_runs(), draw_nodes()]


def test_moves_that_are_not_drawn_are_listed():
    listed = [line.removeprefix("- ") for line in PAGE.splitlines() if line.startswith("- `")]

    assert listed == [*wide_moves(RUN_LAW), *wide_moves(NODE_LAW)]


def test_every_status_is_explained():
    explained = re.findall(r"`(\w+)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `")))

    assert set(explained) >= {status.value for status in (*RunStatus, *NodeStatus)}


def test_the_events_that_are_listed_are_those_that_are_written():
    table = PAGE[PAGE.index("## The log") :]
    subjects = "Run|Node|Attempt|Step|Stage|Outbox|Item|Branch|Interaction|Timer|Signal|Trigger|Jump|Checkpoint|Version"
    listed = set(re.findall(rf"`((?:{subjects})\w+)`", table))

    made = {name for module in WRITERS for name in re.findall(r"\b(?:e\.)?(\w+)\(", module.read_text(encoding="utf-8"))}

    assert listed == {name for name in made if name in EVENTS}
