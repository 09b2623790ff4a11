"""Random workflows with streams, and what each must come to: worked out in plain Python while the graph is drawn.

One seed is one workflow. It mixes sources of every kind, maps (ordered or not, few or many at once, failing, leaving items out),
generators that are mapped, joins, readers, broadcasts and several outputs.

A fickle source yields something else at every attempt. To tell whose items a result is made of, each value carries a *tag* above
the modulus: the attempt of the fickle source it comes from, or none. What bodies compute does not depend on it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import msgspec

from perdure import Backoff, Context, NodeType, Outputs, Stream, SyncContext, collect, node, workflow
from perdure.testing.graphs import TICK_SECONDS, Reference
from perdure.testing.ledger import effect

MODULUS = 1_009
LARGE = 1_500
"""Longer than what stays inline in the worlds of crash tests."""


async def _pause(x: int, salt: int) -> None:
    await asyncio.sleep((x * 7 + salt) % 4 * TICK_SECONDS)


def _number(n: int, salt: int, tag: int = 0) -> int:
    return (n * n * 3 + n + salt) % MODULUS + tag * MODULUS


def _plain(x: int) -> int:
    return x % MODULUS


def _as(x: int, *of: int) -> int:
    """Return a number with the tag of others."""
    return x % MODULUS + max(other // MODULUS for other in of) * MODULUS


def _mapped(x: int, salt: int) -> int:
    return _as(_plain(x) * 31 + salt, x)


def _is_wrong(x: int) -> bool:
    return _plain(x) % 4 == 1


def _halves(x: int, salt: int) -> int:
    return _as(_half(x, salt) + _half(x, salt + 1), x)


def _half(x: int, salt: int) -> int:
    return (_plain(x) + salt) // 2


def _added(x: int, y: int) -> int:
    return _as(_plain(x) + 2 * _plain(y), x, y)


def _folded(so_far: int, x: int, factor: int) -> int:
    return _as(_plain(so_far) * factor + _plain(x), so_far, x)


def _nested(x: int, salt: int, most: int) -> list[int]:
    return [_mapped(_as(_plain(x) + index, x), salt) for index in range(_plain(x) % most)]


# Sources


@node
async def numbers(ctx: Context, n: int, salt: int) -> AsyncIterator[int]:
    effect(ctx)
    for index in range(n):
        await _pause(index, salt)
        yield _number(index, salt)


@node
def plain_numbers(ctx: SyncContext, n: int, salt: int) -> Iterator[int]:
    effect(ctx)
    for index in range(n):
        yield _number(index, salt)


@node(replay="hold")
async def held_numbers(ctx: Context, n: int, salt: int) -> AsyncIterator[int]:
    effect(ctx)
    for index in range(n):
        await _pause(index, salt)
        yield _number(index, salt)


@node
async def fickle_numbers(ctx: Context, n: int, salt: int) -> AsyncIterator[int]:
    effect(ctx)
    for index in range(n):
        await _pause(index, salt)
        yield _number(index, salt, ctx.attempt)


@node
async def saved_numbers(ctx: Context, n: int, salt: int) -> AsyncIterator[int]:
    start: int = ctx.restored or 0
    effect(ctx)
    for index in range(start, n):
        yield _number(index, salt)
        if index % 2 == salt % 2:
            await ctx.checkpoint(index + 1)


@node(retries=2, backoff=Backoff(first=Backoff().first / 50, jitter=False))
async def shaky_numbers(ctx: Context, n: int, salt: int) -> AsyncIterator[int]:
    effect(ctx)
    for index in range(n):
        await _pause(index, salt)
        if index == n // 2 and ctx.attempt == 1:
            raise ConnectionError("the source is not there")
        yield _number(index, salt)


@node
async def listed(ctx: Context, n: int, salt: int) -> list[int]:
    effect(ctx)
    await _pause(n, salt)
    return [_number(index, salt) for index in range(n)]


class Parts(Outputs):
    even: int
    odd: int


@node
async def parted(ctx: Context, n: int, salt: int) -> AsyncIterator[Parts]:
    effect(ctx)
    for index in range(n):
        await _pause(index, salt)
        number = _number(index, salt)
        if number % 5 == 0:
            yield Parts(even=number, odd=number)
        else:
            yield Parts(even=number) if number % 2 == 0 else Parts(odd=number)


# Maps


def _maps() -> Iterator[NodeType[..., Any]]:
    for concurrency in range(1, 5):
        for ordered in (True, False):
            for pure in (True, False):
                name = f"map_{concurrency}{'' if ordered else '_unordered'}{'_pure' if pure else ''}"

                @node(name=name, concurrency=concurrency, ordered=ordered, pure=pure)
                async def call(ctx: Context, x: int, salt: int) -> int:
                    effect(ctx)
                    await _pause(x, salt)
                    return _mapped(x, salt)

                yield call


MAPS = tuple(_maps())


@node(concurrency=2)
def plain_map(ctx: SyncContext, x: int, salt: int) -> int:
    effect(ctx)
    return _mapped(x, salt)


@node(concurrency=2, retries=2, backoff=Backoff(first=Backoff().first / 50, jitter=False))
async def shaky_map(ctx: Context, x: int, salt: int) -> int:
    effect(ctx)
    await _pause(x, salt)
    if ctx.attempt <= _plain(x) % 3:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return _mapped(x, salt)


@node(concurrency=3, on_item_error="skip")
async def lenient_map(ctx: Context, x: int, salt: int) -> int:
    effect(ctx)
    await _pause(x, salt)
    if _is_wrong(x):
        raise ValueError(f"{x} is wrong")
    return _mapped(x, salt)


@node(concurrency=2)
async def stepping_map(ctx: Context, x: int, salt: int) -> int:
    effect(ctx)
    half = await ctx.step(_half, x, salt)
    return _as(half + await ctx.step(_half, x, salt + 1), x)


@node(concurrency=2)
async def large_map(ctx: Context, x: int) -> str:
    effect(ctx)
    await _pause(x, 1)
    return f"{x:08}" * (LARGE // 8)


@node(concurrency=2)
async def small_map(ctx: Context, text: str) -> int:
    effect(ctx)
    return int(text[:8])


@node(concurrency=3)
async def nested_map(ctx: Context, x: int, salt: int) -> AsyncIterator[int]:
    effect(ctx)
    for part in _nested(x, salt, 3):
        await _pause(part, salt)
        yield part


@node(concurrency=2)
def plain_nested_map(ctx: SyncContext, x: int, salt: int) -> Iterator[int]:
    effect(ctx)
    yield from _nested(x, salt, 4)


class Quotient(Outputs):
    whole: int
    rest: int


@node(concurrency=2)
async def divide(ctx: Context, x: int) -> Quotient:
    effect(ctx)
    await _pause(x, 0)
    whole, rest = divmod(_plain(x), 3)
    return Quotient(whole=_as(whole, x), rest=_as(rest, x)) if rest else Quotient(whole=_as(whole, x))


@node(concurrency=2)
async def add(ctx: Context, x: int, y: int) -> int:
    effect(ctx)
    await _pause(x, y)
    return _added(x, y)


# Readers


@node
async def sums(ctx: Context, xs: Stream[int]) -> AsyncIterator[int]:
    effect(ctx)
    so_far = 0
    async for x in xs:
        so_far = _folded(so_far, x, 3)
        if _plain(x) % 3:
            yield so_far


@node
async def saved_sums(ctx: Context, xs: Stream[int]) -> AsyncIterator[int]:
    so_far: int = ctx.restored or 0
    effect(ctx)
    async for x in xs:
        so_far = _folded(so_far, x, 3)
        if _plain(x) % 3:
            yield so_far
        if _plain(x) % 2:
            await ctx.checkpoint(so_far)


@node
async def folded(ctx: Context, xs: Stream[int]) -> int:
    effect(ctx)
    so_far = 0
    async for x in xs:
        so_far = _folded(so_far, x, 5)
    return so_far


@node
async def first_two(ctx: Context, xs: Stream[int]) -> list[int]:
    effect(ctx)
    found: list[int] = []
    async for x in xs:
        found.append(x)
        if len(found) == 2:
            break
    return found


@node
async def total(ctx: Context, xs: list[int]) -> dict[str, Any]:
    effect(ctx)
    return {"sum": sum(map(_plain, xs)), "tags": sorted({x // MODULUS for x in xs})}


# Graphs


class _Lane(msgspec.Struct, kw_only=True):
    """A stream of the graph, and what it must hold."""

    ref: Any
    entries: list[int | None]
    """By position; None where its node gave nothing. Of a stream without order, in any order."""
    root: object
    """The same for streams that go together item by item."""
    is_ordered: bool = True

    @property
    def items(self) -> list[int]:
        return [entry for entry in self.entries if entry is not None]


class _Drawing:
    def __init__(self, draw: random.Random, *, is_fickle: bool) -> None:
        self._draw = draw
        self._is_fickle = is_fickle
        self._lanes: list[_Lane] = []
        self._count = 0
        self.certain: set[str] = set()
        self.possible: set[str] = set()
        self.results: dict[str, Any] = {}
        self.expected: dict[str, Any] = {}

    def graph(self, size: int) -> dict[str, Any]:
        if self._is_fickle:
            salt = self._salt()
            source = cast("Any", self._named(fickle_numbers, 1))(5, salt)
            self._add(_Lane(ref=source, entries=[_number(index, salt) for index in range(5)], root=object()))
        for _ in range(self._draw.randint(1, 3)):
            self.source()
        for _ in range(size):
            self._draw.choice(_STEPS)(self)
        for lane in self._lanes[-3:]:
            self._end(lane)
        return self.results

    def _named(self, node_type: NodeType[..., Any], calls: int) -> NodeType[..., Any]:
        self._count += 1
        name = f"{node_type.name.rpartition('.')[2].rpartition(':')[2]}_{self._count}"
        (self.certain if calls else self.possible).add(name)
        return node_type.named(name)

    def _salt(self) -> int:
        return self._draw.randint(0, 9)

    def _some(self, *, ordered: bool = False) -> _Lane | None:
        lanes = [lane for lane in self._lanes if lane.is_ordered or not ordered]
        return self._draw.choice(lanes) if lanes else None

    def _add(self, lane: _Lane) -> None:
        self._lanes.append(lane)

    # What a step may be

    def source(self) -> None:
        n, salt = self._draw.choice((0, 1, 2, 3, 5, 8)), self._salt()
        entries: list[int | None] = [_number(index, salt) for index in range(n)]
        source = self._draw.choice((numbers, plain_numbers, held_numbers, saved_numbers, shaky_numbers, listed, parted))
        ref: Any = cast("Any", self._named(source, 1))(n, salt)
        if source is listed:
            call = cast("Any", self._named(MAPS[5], n))
            salt = self._salt()
            self._add(_Lane(ref=call.map(ref, salt=salt), entries=_each(entries, _mapped, salt), root=object()))
        elif source is parted:
            even = [x for x in entries if x is not None and (x % 5 == 0 or x % 2 == 0)]
            odd = [x for x in entries if x is not None and (x % 5 == 0 or x % 2)]
            self._add(_Lane(ref=ref.even, entries=[*even], root=object()))
            self._add(_Lane(ref=ref.odd, entries=[*odd], root=object()))
        else:
            self._add(_Lane(ref=ref, entries=entries, root=object()))

    def map_one(self) -> None:
        if (lane := self._some()) is None:
            return
        salt = self._salt()
        call = self._draw.choice((*MAPS, plain_map, shaky_map, lenient_map, stepping_map))
        ref = cast("Any", self._named(call, len(lane.items))).map(lane.ref, salt=salt)
        if call is lenient_map:
            entries = [None if x is None or _is_wrong(x) else _mapped(x, salt) for x in lane.entries]
        elif call is stepping_map:
            entries = _each(lane.entries, _halves, salt)
        else:
            entries = _each(lane.entries, _mapped, salt)
        is_ordered = lane.is_ordered and call.policy.ordered
        self._add(
            _Lane(
                ref=ref,
                entries=entries,
                root=lane.root if call.policy.ordered else object(),
                is_ordered=is_ordered,
            )
        )

    def large(self) -> None:
        if (lane := self._some()) is None:
            return
        large = cast("Any", self._named(large_map, len(lane.items))).map(lane.ref)
        ref = cast("Any", self._named(small_map, len(lane.items))).map(large)
        self._add(_Lane(ref=ref, entries=list(lane.entries), root=lane.root, is_ordered=lane.is_ordered))

    def nested(self) -> None:
        if (lane := self._some()) is None:
            return
        salt = self._salt()
        call, most = self._draw.choice(((nested_map, 3), (plain_nested_map, 4)))
        ref = cast("Any", self._named(call, len(lane.items))).map(lane.ref, salt=salt)
        entries: list[int | None] = [part for x in lane.items for part in _nested(x, salt, most)]
        self._add(_Lane(ref=ref, entries=entries, root=object(), is_ordered=lane.is_ordered))

    def divide(self) -> None:
        if (lane := self._some()) is None:
            return
        ref = cast("Any", self._named(divide, len(lane.items))).map(lane.ref)
        whole = [None if x is None else x // 3 for x in lane.entries]
        rest = [None if x is None or x % 3 == 0 else x % 3 for x in lane.entries]
        self._add(_Lane(ref=ref.whole, entries=whole, root=lane.root, is_ordered=lane.is_ordered))
        self._add(_Lane(ref=ref.rest, entries=rest, root=lane.root, is_ordered=lane.is_ordered))

    def aligned(self) -> None:
        if (left := self._some(ordered=True)) is None:
            return
        right = self._draw.choice([lane for lane in self._lanes if lane.root is left.root and lane.is_ordered])
        if right.ref is left.ref:
            return
        pairs = list(zip(left.entries, right.entries, strict=True))
        entries = [None if x is None or y is None else _added(x, y) for x, y in pairs]
        calls = sum(entry is not None for entry in entries)
        ref = cast("Any", self._named(add, calls)).map(left.ref, right.ref)
        self._add(_Lane(ref=ref, entries=entries, root=left.root))

    def zip_two(self) -> None:
        if (left := self._some(ordered=True)) is None:
            return
        fitting = [
            lane
            for lane in self._lanes
            if lane.is_ordered and lane.ref is not left.ref and len(lane.items) == len(left.items)
        ]
        if not fitting:
            return
        right = self._draw.choice(fitting)
        entries: list[int | None] = [_added(x, y) for x, y in zip(left.items, right.items, strict=True)]
        ref = cast("Any", self._named(add, len(entries))).map(left.ref, right.ref, join="zip")
        self._add(_Lane(ref=ref, entries=entries, root=object()))

    def reader(self) -> None:
        if (lane := self._some(ordered=True)) is None:
            return
        reader = self._draw.choice((sums, saved_sums))
        so_far, entries = 0, list[int | None]()
        for x in lane.items:
            so_far = _folded(so_far, x, 3)
            if x % 3:
                entries.append(so_far)
        ref = cast("Any", self._named(reader, 1))(lane.ref)
        self._add(_Lane(ref=ref, entries=entries, root=object()))

    def value(self) -> None:
        if (lane := self._some(ordered=True)) is None:
            return
        if self._draw.random() < 0.5:
            self._result(cast("Any", self._named(first_two, 1))(lane.ref), lane.items[:2])
            return
        so_far = 0
        for x in lane.items:
            so_far = _folded(so_far, x, 5)
        self._result(cast("Any", self._named(folded, 1))(lane.ref), so_far)

    def _end(self, lane: _Lane) -> None:
        if lane.is_ordered and self._draw.random() < 0.5:
            self._result(collect(lane.ref), lane.items)
        else:
            self._result(cast("Any", self._named(total, 1))(collect(lane.ref)), {"sum": sum(lane.items)})

    def end_some(self) -> None:
        if (lane := self._some()) is not None:
            self._end(lane)

    def _result(self, ref: Any, expected: Any) -> None:
        name = f"r{len(self.results)}"
        self.results[name] = ref
        self.expected[name] = expected


def _each(entries: list[int | None], function: Callable[[int, int], int], salt: int) -> list[int | None]:
    return [None if x is None else function(x, salt) for x in entries]


_STEPS: tuple[Callable[[Any], None], ...] = (
    _Drawing.source,
    *(_Drawing.map_one,) * 4,
    _Drawing.large,
    *(_Drawing.nested,) * 2,
    _Drawing.divide,
    *(_Drawing.aligned,) * 2,
    *(_Drawing.zip_two,) * 2,
    *(_Drawing.reader,) * 2,
    _Drawing.value,
    _Drawing.end_some,
)


def random_streams(seed: int, *, is_fickle: bool = False) -> tuple[Reference, dict[str, Any]]:
    """Return the workflow that belongs to a seed, and its result, without tags."""
    draw = random.Random(seed)
    drawing = _Drawing(draw, is_fickle=is_fickle)
    chosen = draw.randint(2, 9)

    @workflow(name=f"{'fickle' if is_fickle else 'random'}_streams_{seed}")
    def flow(x: int) -> dict[str, Any]:
        return drawing.graph(chosen)

    assert flow.graph.nodes, "the graph is drawn when it is asked for"
    reference = Reference(
        workflow=flow,
        inputs={"x": seed},
        certain=frozenset(drawing.certain),
        possible=frozenset(drawing.possible),
    )
    return reference, drawing.expected


def untagged(value: Any, tags: set[int]) -> Any:
    """Return a result without its tags, and add those to a set."""
    match value:
        case list():
            return [untagged(part, tags) for part in cast("list[Any]", value)]
        case {"sum": total, "tags": found}:
            tags.update(found)
            return {"sum": total}
        case _:
            tags.add(value // MODULUS)
            return value % MODULUS
