"""What a probe or a person says a node has given counts as if the node's body had given it: decisions see the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy
import pytest

from perdure import Engine, Outputs, node, unless, when, workflow
from perdure.engine.attempts.probing import Doubt
from perdure.errors import TruthUnclear
from perdure.journal.states import RunStatus
from tests.engine.engines import assert_whole

RUN = "run"
LARGE = "x" * 400_000


class Level(IntEnum):
    NONE = 0
    SOME = 1


@dataclass
class Verdict:
    text: str = ""

    def __bool__(self) -> bool:
        return self.text == "guilty"


@dataclass
class Basket:
    things: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.things)


given: Any = None
is_stuck = True
begun: asyncio.Event


@pytest.fixture(autouse=True)
def nothing_begun():
    global begun, is_stuck
    begun, is_stuck = asyncio.Event(), True


async def _given() -> Any:
    begun.set()
    if is_stuck:
        await asyncio.sleep(1_000)
    return given


@node(once=True)
async def doubtful() -> Any:
    return await _given()


async def probe(doubt: Doubt) -> Any:
    return ("done", given)


@node(once=True, probe=probe)
async def probed() -> Any:
    return await _given()


@node(once=True)
async def several() -> Outputs:
    return await _given()


@node
async def said(word: str) -> str:
    return word


@node
async def known(left: Any, right: Any) -> str:
    return f"{left!r} {right!r}"


def _asked(asked: Any) -> dict[str, Any]:
    with when(asked):
        yes = said.named("yes")("yes")
    with unless(asked):
        no = said.named("no")("no")
    return {"yes": yes, "no": no}


@workflow
def by_person() -> dict[str, Any]:
    return _asked(doubtful())


@workflow
def by_person_of_part() -> dict[str, Any]:
    return _asked(doubtful()["ok"])


@workflow
def by_probe() -> dict[str, Any]:
    return _asked(probed())


@workflow
def by_probe_of_part() -> dict[str, Any]:
    return _asked(probed()["ok"])


@workflow
def part_is_result() -> Any:
    whole = doubtful()
    return {"ok": whole["ok"]}


@workflow
def of_several() -> str:
    both = several()
    return known(both.left, both.right)


WHOLES = [
    pytest.param(value, id=repr(value)[:20])
    for value in (
        Level.NONE,
        Level.SOME,
        numpy.int64(0),
        numpy.bool_(True),
        Verdict("not guilty"),
        Verdict("guilty"),
        Basket(),
        Basket(["bread"]),
        0,
        "",
        [0],
    )
]
PARTS = [
    pytest.param(value, id=repr(value)[:20])
    for value in (
        {"ok": Level.NONE},
        {"ok": Verdict(), "text": LARGE},
        {"ok": 1, "text": LARGE},
        {"ok": 0, "text": LARGE},
        {"text": LARGE},
    )
]


async def undisturbed(url: str, flow: Any) -> Any:
    """Return what comes of the value where a body returns it."""
    global is_stuck
    is_stuck = False
    async with Engine(url) as engine:
        result = await (await engine.start(flow, run_id="undisturbed")).result()
    is_stuck = True
    begun.clear()
    return result


async def lose(url: str, flow: Any) -> None:
    """Start a run and leave its node in doubt."""
    async with Engine(url) as engine:
        await engine.start(flow, run_id=RUN)
        await begun.wait()
        await engine.stop(grace_seconds=0)


async def result_of(engine: Engine) -> Any:
    run = await engine.get(RUN)
    async with asyncio.timeout(20):
        async for _ in run.events():
            pass
    await assert_whole(engine, run)
    return await run.result()


@pytest.mark.parametrize(
    ("value", "flow"),
    [
        *(pytest.param(*case.values, by_probe, id=str(case.id)) for case in WHOLES),
        *(pytest.param(*case.values, by_probe_of_part, id=str(case.id)) for case in PARTS),
    ],
)
async def test_a_condition_sees_what_a_probe_says_as_if_the_body_had_returned_it(
    sqlite_url: str, value: Any, flow: Any
):
    global given
    given = value
    expected = await undisturbed(sqlite_url, flow)
    await lose(sqlite_url, flow)

    async with Engine(sqlite_url) as engine:
        assert await result_of(engine) == expected


@pytest.mark.parametrize(
    ("value", "flow"),
    [
        *(pytest.param(*case.values, by_person, id=str(case.id)) for case in WHOLES),
        *(pytest.param(*case.values, by_person_of_part, id=str(case.id)) for case in PARTS),
        *(pytest.param(*case.values, part_is_result, id=f"result of {case.id}") for case in PARTS[2:]),
    ],
)
async def test_a_condition_sees_what_a_person_says_as_if_the_body_had_returned_it(
    sqlite_url: str, value: Any, flow: Any
):
    global given
    given = value
    expected = await undisturbed(sqlite_url, flow)
    await lose(sqlite_url, flow)

    async with Engine(sqlite_url, recover=False) as engine:
        await (await engine.get(RUN)).resolve("doubtful", "done", output=value)
        assert await result_of(engine) == expected


@pytest.mark.parametrize("value", [{"ok": 1, "text": LARGE}, {"ok": 0, "text": LARGE}], ids=["true", "false"])
async def test_a_person_needs_none_of_the_code(store_url: str, value: Any):
    """One process has the value and not the workflow, the other one the workflow."""
    global given
    given = value
    expected = await undisturbed(store_url, by_person_of_part)
    await lose(store_url, by_person_of_part)

    async with Engine(store_url, workflows=[], recover=False) as elsewhere:
        await (await elsewhere.get(RUN)).resolve("doubtful", "done", output=value)
    async with Engine(store_url) as engine:
        assert await result_of(engine) == expected


async def test_what_is_neither_true_nor_false_is_refused_and_may_be_said_again(sqlite_url: str):
    await lose(sqlite_url, by_person)

    async with Engine(sqlite_url) as engine:
        run = await engine.get(RUN)
        with pytest.raises(TruthUnclear):
            await run.resolve("doubtful", "done", output=numpy.array([1, 2]))
        assert await run.status() is RunStatus.SUSPENDED
        await run.resolve("doubtful", "done", output=True)
        assert await result_of(engine) == {"yes": "yes", "no": None}


async def test_a_person_may_name_several_outputs(sqlite_url: str):
    await lose(sqlite_url, of_several)

    async with Engine(sqlite_url) as engine:
        await (await engine.get(RUN)).resolve("several", "done", output=Outputs(left=1, right=0))
        assert await result_of(engine) == "1 0"
