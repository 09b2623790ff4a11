"""Graphs that are only JSON or YAML, with node types that come with perdure: no code has to be named for them."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli

QUESTION = {
    "name": "document_question",
    "nodes": [{"id": "ok", "type": "perdure.ask", "data": {"prompt": "Publish?", "schema": {"type": "boolean"}}}],
    "edges": [{"source": "ok", "target": "$output", "targetHandle": "output"}],
}
SHORT = """
name: document_short
nodes:
  - {id: ok, handler: perdure.ask, config: {prompt: "Publish?"}}
outputs: {answer: "{{ ok }}"}
"""


@pytest.mark.slow
def test_a_document_that_asks_is_run_answered_and_resumed_without_any_code(cli: Cli) -> None:
    cli.write("question.json", json.dumps(QUESTION))

    valid = cli("validate", "question.json")
    waiting = cli("run", "question.json", "--run-id", "q")
    answered = cli("answer", "q", "true")
    shown = cli.json("show", "q")
    resumed = cli("resume", "q", "--json")

    assert valid.stdout == "✓ document_question 1 node, 1 edge\n"
    assert waiting.returncode == 3, waiting.stderr
    assert answered.returncode == 0, answered.stderr
    assert shown["status"] == "awaiting_input"  # whoever answers does not drive the run
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["outputs"] == {"output": True}


def test_what_is_wrong_with_a_trigger_in_a_document_is_told_before_it_runs(cli: Cli) -> None:
    data = {"cron": "0 7 * * *", "every": 3, "tz": "Mars/Phobos", "catch_up": "some"}
    cli.write("wrong.json", json.dumps({"name": "w", "nodes": [{"id": "t", "type": "perdure.schedule", "data": data}]}))

    (validated,) = cli.json("validate", "wrong.json")
    ran = cli("run", "wrong.json")

    assert not validated["valid"]
    assert [(fault["node"], fault["rule"]) for fault in validated["faults"]] == [("t", "invalid_property")] * 3
    assert ran.returncode == 2
    for words in ("either a cron expression or an interval", "no time zone 'Mars/Phobos'", "no catch_up 'some'"):
        assert words in ran.stderr


@pytest.mark.slow
def test_the_short_form_has_them_too(cli: Cli) -> None:
    cli.write("short.yaml", SHORT)

    waiting = cli("run", "short.yaml", "--run-id", "s")
    cli("answer", "s", "yes")
    resumed = cli.json("resume", "s")

    assert waiting.returncode == 3, waiting.stderr + waiting.stdout
    assert resumed["outputs"] == {"answer": "yes"}
