"""`perdure compact`: what it says, and what it refuses."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli

PROGRAM = """
from perdure import Context, node, workflow

@node
async def jotted(ctx: Context, places: int) -> int:
    for place in range(places):
        await ctx.checkpoint(place)
    return places

@workflow
def jots(places: int) -> int:
    return jotted(places)
"""


@pytest.mark.slow
def test_a_long_log_is_made_compact_and_reads_as_before(cli: Cli) -> None:
    cli.write("flow.py", PROGRAM)
    cli("run", "flow.py", "--run-id", "long", "-i", "places=2500")
    before = cli("events", "long", "--json").stdout

    planned = cli("compact", "long", "--dry-run")
    done = cli("compact", "long")
    again = cli.json("compact", "long")

    assert planned.stdout == "1,000 events of 1 run would be made compact.\n"
    assert done.stdout == "✓ 1,000 events of 1 run made compact.\n"
    assert again == {"dry_run": False, "runs": 0, "events": 0, "refused": []}
    assert cli("events", "long", "--json").stdout == before
    assert cli("verify", "long").returncode == 0


def test_of_all_runs_only_those_with_long_logs(cli: Cli) -> None:
    cli.write("flow.py", PROGRAM)
    cli("run", "flow.py", "--run-id", "long", "-i", "places=2500")

    assert cli.json("compact") == {"dry_run": False, "runs": 0, "events": 0, "refused": []}
    done = cli.json("compact", "--longer-than", "2000")
    assert done == {"dry_run": False, "runs": 1, "events": 1000, "refused": []}


def test_one_of_several_that_is_refused_holds_up_no_other(cli: Cli) -> None:
    cli.write("flow.py", PROGRAM)
    cli("run", "flow.py", "--run-id", "long", "-i", "places=2500")

    done = cli("compact", "nobody", "long")
    told = cli.json("compact", "nobody", "long")

    assert done.returncode == 2
    assert done.stdout == "✓ 1,000 events of 1 run made compact.\n"
    assert done.stderr.startswith("Error: ")
    assert [(one["run_id"], one["error"]["code"]) for one in told["refused"]] == [("nobody", "run_not_found")]


def test_wrong_use_is_refused(cli: Cli) -> None:
    nowhere = cli("compact")
    cli.write("flow.py", PROGRAM)
    cli("run", "flow.py", "--run-id", "short", "-i", "places=1")

    assert nowhere.returncode == 2
    assert "There is no store" in nowhere.stderr
    assert "nobody" in cli("compact", "nobody").stderr
    assert cli("compact", "--longer-than", "10").returncode == 2
    assert cli("compact", "short", "--longer-than", "3000").returncode == 2
