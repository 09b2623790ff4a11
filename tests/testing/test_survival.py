"""Crashes at every commit of users' workflows: those that are told truly survive, and what changes is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Context, node, workflow
from perdure.testing import Rehearsal
from tests.testing import flows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_workflow_survives(database: str, request: pytest.FixtureRequest, tmp_path: Path):
    store = "sqlite" if database == "sqlite" else request.getfixturevalue("postgres_url")
    with Rehearsal(tmp_path, store=store) as perdure:
        perdure.answer("Publish this?", True)

        perdure.assert_survives(flows.digest, url="x")


@pytest.mark.parametrize(
    ("flow", "inputs"),
    [
        (flows.monthly_in_thread, {"text": "x"}),
        (flows.monthly_without_care, {"text": "x"}),
        (flows.reversed_text, {"text": "abc"}),
        (flows.spelled, {"page": "abc"}),
        (flows.asking_twice, {}),
        (flows.payment, {}),
        (flows.legal, {}),
        (flows.fed, {}),
        (flows.failing, {"text": "x"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_workflows_of_every_kind_survive(perdure: Rehearsal, flow, inputs):
    perdure.answer("How many?", 1, 2)
    perdure.signal("paid", 3)
    perdure.resume("told", "yes")
    perdure.send("items", "a", "b", close=True)

    perdure.assert_survives(flow, **inputs)


def test_each_crash_can_be_looked_at(perdure: Rehearsal):
    perdure.answer("Publish this?", True)

    crashes = list(perdure.crashes(flows.digest, url="x"))

    assert len(crashes) > 15
    assert {crash.kind for crash in crashes} == {"before", "after", "reply_lost"}
    assert all(crash.run.output == "published: TEXT OF X" for crash in crashes)
    assert any(crash.run.executions("fetch").times > 1 for crash in crashes)
    assert all(crash.run.executions("fetch").times == 1 for crash in crashes if crash.kind == "reply_lost")


@node
async def drafted(ctx: Context) -> int:
    """Do what a body should not: give something else when it is tried again."""
    return ctx.attempt


@workflow
def drafting() -> int:
    return drafted()


def test_what_a_crash_changes_is_told(perdure: Rehearsal):
    with pytest.raises(AssertionError) as failure:
        perdure.assert_survives(drafting)

    message = str(failure.value)
    assert message.startswith("2 of 6 crashes changed something\n\nthe engine died after commit 1:\n")
    assert "without a crash it came to completed with 1, and with it to completed with 2" in message
    assert "drafted  completed  2         2" in message


def test_a_crash_that_leaves_a_doubt_is_told(perdure: Rehearsal):
    with pytest.raises(AssertionError) as failure:
        perdure.assert_survives(flows.paying, amount=3)

    assert "with it to suspended (in doubt: pay)" in str(failure.value)
    assert "pay   in_doubt  1         1" in str(failure.value)


def test_a_run_that_waits_cannot_show_that_it_survives(perdure: Rehearsal):
    with pytest.raises(AssertionError, match=r"has to end: answer what it asks\n\nrun .* asks 'Publish this\?'"):
        perdure.assert_survives(flows.digest, url="x")
