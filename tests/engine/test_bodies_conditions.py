"""Conditions: what Python's `bool` says of what a body returned decides, wherever the body ran."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest

from perdure import Engine, first, node, unless, when, workflow
from perdure.errors import RunFailed
from perdure.journal import events as e
from perdure.testing.loop import run_virtual
from tests.engine.engines import assert_whole, engine_on, log_of


class Number(enum.IntEnum):
    NONE = 0
    ONE = 1


class Right(enum.Flag):
    READ = 1


class Word(enum.StrEnum):
    EMPTY = ""


@dataclasses.dataclass
class Balance:
    cents: int

    def __bool__(self) -> bool:
        return self.cents > 0


class Basket(msgspec.Struct):
    items: list[int]

    def __len__(self) -> int:
        return len(self.items)


VALUES: dict[str, Callable[[], Any]] = {
    "numpy false": lambda: np.bool_(False),
    "numpy true": lambda: np.bool_(True),
    "numpy zero": lambda: np.float64(-0.0),
    "array of false": lambda: np.array([False]),
    "int enum": lambda: Number.NONE,
    "int enum that is true": lambda: Number.ONE,
    "flag": lambda: Right(0),
    "str enum": lambda: Word.EMPTY,
    "dataclass": lambda: Balance(0),
    "dataclass that is true": lambda: Balance(1),
    "struct": lambda: Basket([]),
    "ordered dict": OrderedDict,
    "decimal": lambda: Decimal("0.00"),
    "list": list,
    "text": lambda: "no",
    "part of a dict": lambda: {"ok": np.bool_(False)},
    "array of two": lambda: np.array([True, False]),
}


@node
async def give(name: str) -> Any:
    return VALUES[name]()


@node
def give_in_thread(name: str) -> Any:
    return VALUES[name]()


@node(executor="process")
def give_in_process(name: str) -> Any:
    return VALUES[name]()


@node
async def yes(name: str) -> str:
    return "when"


@node
async def no(name: str) -> str:
    return "unless"


def _branching(given: Any, name: Any) -> Any:
    with when(given):
        one = yes(name)
    with unless(given):
        other = no(name)
    return first(one, other)


@workflow
def on_loop(name: str) -> str:
    return _branching(give(name), name)


@workflow
def in_thread(name: str) -> str:
    return _branching(give_in_thread(name), name)


@workflow
def in_process(name: str) -> str:
    return _branching(give_in_process(name), name)


@workflow
def part(name: str) -> str:
    return _branching(give(name)["ok"], name)


@pytest.mark.parametrize("name", [name for name in VALUES if name != "array of two"])
def test_a_condition_is_what_bool_says(sqlite_url: str, name: str):
    async def main() -> Any:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(on_loop, name=name)
            result = await run.result()
            await assert_whole(engine, run)
            return result

    assert run_virtual(main()) == ("when" if VALUES[name]() else "unless")


async def test_a_condition_is_what_bool_says_in_threads_and_processes_too(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        for wherever in (in_thread, in_process):
            for name in ("numpy false", "int enum", "int enum that is true", "dataclass"):
                run = await engine.start(wherever, name=name)
                assert await run.result() == ("when" if VALUES[name]() else "unless")
                await assert_whole(engine, run)


def test_a_condition_on_a_part_is_what_bool_says_of_the_part(sqlite_url: str):
    async def main() -> Any:
        async with engine_on(sqlite_url) as engine:
            return await (await engine.start(part, name="part of a dict")).result()

    assert run_virtual(main()) == "unless"


async def test_what_is_neither_true_nor_false_fails_its_node_and_says_so(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        for wherever in (on_loop, in_thread, in_process):
            run = await engine.start(wherever, name="array of two")
            with pytest.raises(RunFailed, match="neither true nor false"):
                await run.result()
            (failed,) = [entry.event for entry in await log_of(run) if isinstance(entry.event, e.NodeFailed)]
            assert (failed.error.error_class, failed.error.retryable) == (e.ErrorClass.BUG, False)


def test_nothing_is_recorded_beside_what_tells_by_itself(sqlite_url: str):
    async def main() -> Any:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(on_loop, name="text")
            await run.result()
            return [set(node.outputs or ()) for node in (await run.load()).nodes if node.node_id == "give"]

    assert run_virtual(main()) == [{"output"}]
