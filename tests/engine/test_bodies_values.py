"""What bodies give on its way to the store: blobs that are out of reach, values that take long to encode, and keys."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perdure import Context, Engine, node, workflow
from perdure.engine.attempts.weight import is_light
from perdure.errors import StoreError, StoreFull, StoreUnavailable
from perdure.journal import events as e
from perdure.store.blobs.folder import FolderBlobs
from perdure.store.codecs import default_codecs
from perdure.testing.loop import run_virtual
from tests.engine.engines import assert_whole, counted, engine_on

LARGE = 300_000

calls: Counter[str] = Counter()


@node(once=True)
async def pays(x: int) -> str:
    calls["pays"] += 1
    return "z" * LARGE


@node
async def saves(ctx: Context, x: str) -> int:
    calls["saves"] += 1
    await ctx.checkpoint("y" * LARGE)
    return len(x) + await ctx.step(_length, x)


async def _length(x: str) -> int:
    return len(x)


@workflow
def paying(x: int) -> int:
    return saves(pays(x))


def _refusing(real: Callable[..., Any], error: StoreError, times: int) -> Callable[..., Any]:
    """Return a way to blobs that is barred at first."""
    refused: Counter[str] = Counter()

    def work(self: Any, digest: str, *args: Any) -> Any:
        refused[digest] += 1
        if refused[digest] <= times:
            raise error
        return real(self, digest, *args)

    return work


@pytest.mark.parametrize(
    ("way", "error"),
    [("_put", StoreFull("no room")), ("_put", StoreUnavailable("gone")), ("_get", StoreUnavailable("gone"))],
)
def test_blobs_that_are_out_of_reach_for_a_moment_fail_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, way: str, error: StoreError
):
    calls.clear()
    monkeypatch.setattr(FolderBlobs, way, _refusing(getattr(FolderBlobs, way), error, 4))
    # Nothing is remembered, so that every blob is read.
    monkeypatch.setattr("perdure.engine.attempts.values.CACHE_BYTES", 0)

    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(paying, x=1)
            assert await run.result() == 2 * LARGE
            assert (await counted(run))[e.NodeFailed] == 0
            monkeypatch.undo()
            await assert_whole(engine, run)

    run_virtual(main())
    assert calls == {"pays": 1, "saves": 1}


def test_blobs_that_stay_out_of_reach_cost_the_run_its_engine_and_no_failure(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FolderBlobs, "_put", _refusing(FolderBlobs._put, StoreFull("no room"), 10**6))  # pyright: ignore[reportPrivateUsage]

    async def main() -> None:
        async with engine_on(sqlite_url, recover=False) as engine:
            run = await engine.start(paying, x=1)
            with pytest.raises(StoreFull):
                await run.result()
            assert (await counted(run))[e.NodeFailed] == 0

    run_virtual(main())


class Slow:
    """A value whose codec tells in which thread it works."""


class SlowCodec:
    tag = "slow"
    python_type = Slow

    def __init__(self) -> None:
        self.threads: list[int] = []

    def to_plain(self, value: Slow, /) -> str:
        self.threads.append(threading.get_ident())
        return "slow"

    def from_plain(self, data: Any, /) -> Slow:
        return Slow()


@node
async def gives_async(ctx: Context) -> Any:
    await ctx.checkpoint(Slow())
    return Slow()


@node
def gives_in_thread(x: int) -> tuple[int, Any]:
    return threading.get_ident(), Slow()


@workflow
def slow() -> Any:
    return gives_async()


@workflow
def slow_in_thread(x: int) -> Any:
    return gives_in_thread(x)


async def test_codecs_of_users_never_work_on_the_loop(sqlite_url: str):
    codecs = default_codecs()
    codec = SlowCodec()
    codecs.register(codec)
    async with Engine(sqlite_url, codecs=codecs) as engine:
        await (await engine.start(slow)).result()
        assert len(codec.threads) == 2
        assert threading.get_ident() not in codec.threads

        codec.threads.clear()
        body, _ = await (await engine.start(slow_in_thread, x=1)).result()
        assert codec.threads == [body]


class Page(msgspec.Struct):
    words: list[str]


@pytest.mark.parametrize(
    "value", [1, "text", {"a": 1}, {"a": [{"b": "c"}]}, [1.5] * 900, Page(["a"]), (1, {2}), msgspec.Raw(b"1"), None]
)
def test_small_plain_values_are_light(value: Any):
    assert is_light(value)


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, [0] * 2_000, [[0] * 500] * 3, {"a": b"x" * 100_000}, Page(["word"] * 2_000), Slow(), _endless()],
)
def test_what_is_large_or_unknown_is_not_light(value: Any):
    assert not is_light(value)


@node
async def key(ctx: Context) -> str:
    return ctx.idempotency_key


@workflow
def keyed() -> str:
    return key()


def test_keys_of_different_attempts_never_collide(sqlite_url: str):
    async def main() -> set[str]:
        async with engine_on(sqlite_url) as engine:
            ids = ("a", "a/b", "a%2Fb", "a%b", "a/key/0")
            runs = [await engine.start(keyed, run_id=run_id) for run_id in ids]
            return {await run.result() for run in runs}

    keys = run_virtual(main())
    assert len(keys) == 5
    assert all(key.count("/") == 2 for key in keys)
    assert "a/key/1" in keys
