"""What is said to a run in its JSON form reaches nodes as what their parameters say, as inputs of workflows do."""

from __future__ import annotations

import asyncio
import enum
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from perdure import Engine, ItemFailure, Stream, Trigger, TriggerInput, ask, collect, failures, inbox, node, workflow


class Urgency(enum.Enum):
    HIGH = "high"


class Place(msgspec.Struct):
    street: str


@dataclass
class Shipment:
    number: int
    leaves: datetime
    goes_to: Place
    urgency: Urgency = Urgency.HIGH


PLAIN = {"number": 1, "leaves": "2026-01-31T12:00:00Z", "goes_to": {"street": "Quay 1"}, "urgency": "high"}
MEANT = Shipment(1, datetime(2026, 1, 31, 12, tzinfo=UTC), Place("Quay 1"))


@node
async def label_on_loop(shipment: Shipment) -> str:
    return repr(shipment)


@node
def label_in_thread(shipment: Shipment) -> str:
    return repr(shipment)


@node(executor="process")
def label_in_process(shipment: Shipment) -> str:
    return repr(shipment)


@node
async def labels_of_stream(shipments: Stream[Shipment]) -> AsyncIterator[str]:
    async for shipment in shipments:
        yield repr(shipment)


@node
async def labels_of_list(shipments: list[Shipment]) -> list[str]:
    return [repr(shipment) for shipment in shipments]


@node(on_item_error="collect")
async def refuse(shipment: Shipment) -> str:
    raise ValueError("no room")


@node
async def refused(failure: ItemFailure) -> str:
    return repr(failure.item)


@workflow
def shipped_in_parts(shipments: Stream[Shipment]) -> dict[str, Any]:
    return {
        "loop": collect(label_on_loop.map(shipments)),
        "thread": collect(label_in_thread.map(shipments)),
        "process": collect(label_in_process.map(shipments)),
        "stream": collect(labels_of_stream(shipments)),
        "list": labels_of_list(collect(shipments)),
        "failed": collect(refused.map(failures(refuse.map(shipments)))),
    }


@workflow
def shipped_to_inbox() -> list[str]:
    return collect(label_on_loop.map(inbox.named("shipments")(Shipment)))


@workflow
def shipped_as_answered() -> str:
    return label_on_loop(ask("What is to be shipped?", schema=Shipment))


@node
class Shipments(Trigger[int, Shipment]):
    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, Any]]:
        if cursor is None:
            yield TriggerInput(PLAIN, id="1", cursor=1)
        await asyncio.sleep(3_600)


@node
async def any_label(shipment: Any) -> str:
    return repr(shipment)


@workflow
def shipped_by_trigger() -> list[str]:
    return collect(any_label.map(Shipments()))


@pytest.mark.parametrize("given", [PLAIN, MEANT], ids=["as JSON", "as it is meant"])
async def test_items_that_are_sent_are_what_parameters_say_wherever_they_are_read(sqlite_url: str, given: Any) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(shipped_in_parts)
        await run.send("shipments", given)
        await run.close("shipments")

        assert set(map(tuple, (await run.result()).values())) == {(repr(MEANT),)}


async def test_an_item_that_is_too_large_for_its_row_is_what_its_parameter_says(sqlite_url: str) -> None:
    street = "x" * 600_000
    async with Engine(sqlite_url) as engine:
        run = await engine.start(shipped_to_inbox)
        assert await run.deliver("shipments", {**PLAIN, "goes_to": {"street": street}}, id="1")
        await run.stop()

        assert await run.result() == [repr(Shipment(1, MEANT.leaves, Place(street)))]


@pytest.mark.parametrize("given", [PLAIN, MEANT], ids=["as JSON", "as it is meant"])
async def test_what_is_delivered_without_the_code_is_what_parameters_say(store_url: str, given: Any) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(shipped_to_inbox)
        async with Engine(store_url, workflows=(), recover=False) as other:
            assert await other.deliver(run.run_id, "shipments", given, id="1")
        await run.stop()

        assert await run.result() == [repr(MEANT)]


async def test_an_answer_is_what_the_parameter_of_the_next_node_says(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(shipped_as_answered)
        async with asyncio.timeout(5):
            while not (asked := await run.questions()):
                await asyncio.sleep(0.01)
        await run.answer(asked[0].interaction_id, PLAIN)

        assert await run.result() == repr(MEANT)


async def test_a_trigger_gives_what_it_says(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(shipped_by_trigger)
        async with asyncio.timeout(5):
            while not any(found.stream and found.stream.entries for found in (await run.load()).nodes):
                await asyncio.sleep(0.01)
        await run.stop()

        assert await run.result() == [repr(MEANT)]


# Questions


@node
async def next_shipment() -> Shipment:
    return MEANT


@workflow
def asks_about_shipments() -> list[str]:
    return [ask.named("one")("Send it?", show=next_shipment()), ask.named("other")("And this?", show={"number": 2})]


ASKED_ELSEWHERE = """
import asyncio, json, sys
from perdure import Engine

async def main(url):
    async with Engine(url, workflows=(), recover=False) as engine:
        run = await engine.get("outside")
        for questions in (await engine.questions(), await run.questions()):
            print(json.dumps({question.node_id: question.show for question in questions}))
        await run.answer("outside/one/1", "yes")

asyncio.run(main(sys.argv[1]))
"""


async def test_who_answers_needs_none_of_the_classes_of_what_is_shown(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(asks_about_shipments, run_id="outside")
        await run.wait()
        command = [sys.executable, "-c", ASKED_ELSEWHERE, store_url]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()

        (other,) = await run.questions()
        assert other.show == {"number": 2}
        of_all, of_run = map(json.loads, output.splitlines())

    assert of_all == of_run
    assert "Shipment" in json.dumps(of_all["one"])
    assert "Quay 1" in json.dumps(of_all["one"])
    assert of_all["other"] == {"number": 2}


async def test_who_knows_the_classes_of_what_is_shown_is_given_what_it_is(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(asks_about_shipments)
        await run.wait()

        shown = [question.show for question in await run.questions()]

        assert MEANT in shown
