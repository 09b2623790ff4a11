"""Runs that another run has started, on the command line: their ids have colons, and their code is found again."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.slow

REPORT = """
from perdure import ask, node, text, workflow

@node
def shout(said: str) -> str:
    return said.upper()

@workflow
def report(day: str, who: str = "nobody") -> str:
    return shout(ask.named("what")(text("What of ", day, ", ", who, "?")))
"""

DOCUMENT = """
name: reports
nodes:
  - {id: days, type: perdure.inbox, data: {schema: {type: string}}}
  - {id: each, type: perdure.start, data: {workflow: report, who: Ada}}
edges:
  - {source: days, target: each, targetHandle: day, mode: map}
  - {source: each, target: $output, targetHandle: output, mode: collect}
"""


def test_started_runs_are_listed_shown_answered_and_resumed(cli: Cli) -> None:
    cli.write("code.py", REPORT)
    cli.write("reports.yaml", DOCUMENT)
    missing = cli("validate", "reports.yaml")
    begun = cli("run", "reports.yaml", "--import", "code.py", "--run-id", "r")
    assert begun.returncode == 3, begun.stderr
    for number, day in enumerate(("monday", "tuesday")):
        assert cli("send", "r", "days", day, "--id", str(number)).returncode == 0
    assert cli("send", "r", "days", "--close").returncode == 0

    driven = cli("resume", "r")  # which finds the file of the workflow that it starts
    listed = cli.json("list", "r:")
    first, second = "r:each:0", "r:each:1"
    asked = cli.json("answer")
    answered = cli("answer", f"{second}/what/1", "rain")
    by_prefix = cli("answer", "r:each:0", "sun")
    resumed = [cli.json("resume", run) for run in (first, second)]
    shown = cli("show", second, "--result")
    everything = cli.json("list")

    assert missing.returncode == 2
    assert "Node 'each' starts workflow 'report', which is not declared here" in missing.stdout
    assert driven.returncode == 0, driven.stderr
    assert {run["run_id"] for run in listed} == {first, second}
    assert {question["interaction_id"] for question in asked} == {f"{first}/what/1", f"{second}/what/1"}
    assert answered.returncode == by_prefix.returncode == 0
    assert [run["outputs"] for run in resumed] == [{"output": "SUN"}, {"output": "RAIN"}]
    assert shown.stdout.strip() == "RAIN"
    assert len(everything) == 3
    assert cli("verify").returncode == 0
