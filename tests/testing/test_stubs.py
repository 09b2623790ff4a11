"""Stand-ins for bodies: of every kind of node, and gone when their block or their test is over."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Context, SyncContext, ask, inbox, workflow
from perdure.errors import InvalidDeclaration
from perdure.testing import Rehearsal
from tests.testing import flows


def test_a_function_stands_in(perdure: Rehearsal):
    perdure.answer("Publish this?", True)

    with perdure.stub(flows.fetch, lambda url: f"nothing at {url}") as stub:
        stubbed = perdure.run(flows.digest, url="x")
    real = perdure.run(flows.digest, url="x")

    assert stubbed.output == "published: NOTHING AT X"
    assert real.output == "published: TEXT OF X"
    assert stub.calls == [{"url": "x"}]


async def one_more(word: str) -> str:
    return f"{word}!"


def test_an_async_function_stands_in_for_a_mapped_one_that_blocks(perdure: Rehearsal):
    perdure.answer("Publish this?", True)
    perdure.stub(flows.shout, one_more)

    run = perdure.run(flows.digest, url="x")

    assert run.output == "published: text! of! x!"
    run.assert_ran(flows.shout, times=3)


def test_a_list_stands_in_for_a_generator(perdure: Rehearsal):
    perdure.answer("Publish this?", True)
    perdure.stub(flows.words, returns=["a", "b"])
    perdure.stub(flows.letters, lambda page: iter(page[:2]))

    assert perdure.run(flows.digest, url="x").output == "published: A B"
    assert perdure.run(flows.spelled, page="xyz").output == ["xx", "yy"]


def test_a_function_stands_in_for_a_class(perdure: Rehearsal):
    perdure.stub(flows.Repeat, lambda word: word.upper())

    assert perdure.run(flows.spelled, page="ab").output == ["A", "B"]


def test_a_function_stands_in_for_what_needs_a_process(perdure: Rehearsal):
    assert perdure.run(flows.reversed_text, text="abc").output == "cba"

    perdure.stub(flows.reverse, returns="nothing")

    assert perdure.run(flows.reversed_text, text="abc").output == "nothing"


def ask_somebody(ctx: SyncContext, url: str) -> str:
    return ctx.ask(f"What is at {url}?")


async def ask_somebody_async(ctx: Context, url: str) -> str:
    return await ctx.ask(f"What is at {url}?")


@pytest.mark.parametrize("body", [ask_somebody, ask_somebody_async])
def test_a_stand_in_may_wait(perdure: Rehearsal, body):
    perdure.stub(flows.fetch, body)
    perdure.answer("What is at x?", "gold")
    perdure.answer("Publish this?", True)

    assert perdure.run(flows.digest, url="x").output == "published: GOLD"


def test_nodes_keep_their_names_in_graphs_that_are_traced_meanwhile(perdure: Rehearsal):
    @workflow
    def fresh(text: str) -> str:
        return flows.publish(text)

    perdure.stub(flows.publish, returns="stub")

    run = perdure.run(fresh, text="x")

    assert run.output == "stub"
    run.assert_ran("publish", times=1)


def test_results_come_in_turn(perdure: Rehearsal):
    perdure.answer("Publish this?", True)
    stub = perdure.stub(flows.fetch, in_turn=[ConnectionError("down"), "up again"])

    run = perdure.run(flows.digest, url="x")

    assert run.output == "published: UP AGAIN"
    assert run.executions("fetch").attempts == run.executions("fetch").times == len(stub.calls) == 2
    assert run.executions("fetch").failures == 1


def test_an_error_is_raised_each_time(perdure: Rehearsal):
    perdure.stub(flows.fetch, raises=ConnectionError("down"))

    run = perdure.run(flows.digest, url="x")

    run.assert_failed(ConnectionError)
    run.assert_ran(flows.fetch, times=3)


async def test_a_plain_call_is_one_of_the_stub(perdure: Rehearsal):
    with perdure.stub(flows.fetch, returns="stub"), perdure.stub(flows.join, lambda parts: "-".join(parts)):
        assert await flows.fetch("x") == "stub"
        assert flows.join(["a", "b"]) == "a-b"

    assert await flows.fetch("x") == "text of x"
    assert flows.join(["a", "b"]) == "a b"


async def test_a_stub_outlives_one_that_stood_before_it(perdure: Rehearsal):
    with perdure.stub(flows.fetch, returns="first"):
        second = perdure.stub(flows.fetch, returns="second")
    assert await flows.fetch("x") == "second"

    second.remove()
    assert await flows.fetch("x") == "text of x"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (lambda: "x", "does not take 'url'"),
        (lambda url, proxy: "x", "wants 'proxy', which the node does not have"),
        ("x", "use returns="),
    ],
)
def test_a_wrong_signature_is_told_at_once(perdure: Rehearsal, body, problem: str):
    with pytest.raises(InvalidDeclaration, match=problem):
        perdure.stub(flows.fetch, body)

    assert perdure.run(flows.monthly, text="x").output == "published: x"


def test_a_stub_is_one_thing(perdure: Rehearsal):
    with pytest.raises(TypeError, match="a stub is one of"):
        perdure.stub(flows.fetch, lambda url: "x", returns="y")
    with pytest.raises(TypeError, match="a stub is one of"):
        perdure.stub(flows.fetch)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (flows.digest, r"'digest' is a workflow, which has no body: stub the nodes that it calls \(.*fetch.*\)"),
        (ask, r"`ask` has none: say perdure.answer"),
        (inbox, r"`inbox` has none: say perdure.send"),
        (len, r"put @node on the function"),
    ],
)
def test_what_has_no_body_cannot_be_stood_in_for(perdure: Rehearsal, given: Any, advice: str):
    with pytest.raises(TypeError, match=advice):
        perdure.stub(given, returns=1)
