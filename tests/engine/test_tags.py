"""Tags: runs are found by them, and they go with a run wherever it goes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import Engine, EngineSettings, node, workflow
from perdure.errors import RunNotFound
from perdure.ids import RunId
from tests.engine.engines import assert_whole, log_of


@node
async def tagged_number(n: int) -> int:
    return n


@workflow
def tagged_flow(n: int) -> int:
    return tagged_number(n)


@workflow
def tagged_other(n: int) -> int:
    return tagged_number(n)


async def found(engine: Engine, **which: str) -> list[str]:
    return [run.run_id for run in await engine.list(**which)]


async def test_runs_are_found_by_their_tags(store_url: str):
    async with Engine(store_url) as engine:
        for name, tags in (("a", ["x", "y", "x"]), ("b", ["y"]), ("c", [])):
            await (await engine.start(tagged_flow, n=1, run_id=name, tags=tags)).result()
        other = await engine.start(tagged_other, n=1, run_id="d", tags=["y"])
        await other.result()

        assert await found(engine, tag="x") == ["a"]
        assert await found(engine, tag="y") == ["d", "b", "a"]
        assert await found(engine, tag="y", workflow="tagged_flow", status="completed") == ["b", "a"]
        assert await found(engine, tag="y", id_prefix="b") == ["b"]
        assert await found(engine, tag="z") == []
        first, second = (await engine.list(tag="y", limit=2))[:2]
        rest = await engine.list(tag="y", before=(second.created_at, second.run_id))
        assert [first.run_id, second.run_id, *(run.run_id for run in rest)] == ["d", "b", "a"]
        assert {run.run_id: run.tags for run in await engine.list()} == {
            "a": ("x", "y"),
            "b": ("y",),
            "c": (),
            "d": ("y",),
        }


async def test_tags_change_at_any_time_and_are_no_part_of_history(store_url: str):
    async with Engine(store_url) as engine:
        run = await engine.start(tagged_flow, n=1, run_id="run")
        await run.result()
        log = await log_of(run)

        await run.tag("one", "two")
        await run.tag("two", "Grüße, 世界")
        await run.untag("one", "unknown")

        assert await run.tags() == ["Grüße, 世界", "two"]
        assert await log_of(run) == log
        await engine.start(tagged_flow, n=1, run_id="run", tags=["three"])
        assert await run.tags() == ["Grüße, 世界", "three", "two"]
        with pytest.raises(RunNotFound):
            await engine.store.tag_run(RunId("nobody"), ["one"])
        await assert_whole(engine, run)


@pytest.mark.parametrize("tags", [[""], [" "], ["a\nb"], ["x" * 201], ["\x00"], ["\ud800"], "abc"], ids=repr)
async def test_what_is_no_tag_is_refused_before_anything_starts(sqlite_url: str, tags: Sequence[str]):
    async with Engine(sqlite_url) as engine:
        with pytest.raises(ValueError, match="tag"):
            await engine.start(tagged_flow, n=1, run_id="run", tags=tags)
        assert await engine.list() == []


async def test_tags_go_with_a_run(store_url: str, tmp_path: Path):
    settings = EngineSettings(archive_folder=str(tmp_path / "archive"))
    async with Engine(store_url, settings=settings) as engine:
        run = await engine.start(tagged_flow, n=1, run_id="run", tags=["one", "two"])
        await run.result()
        await run.export(tmp_path / "run.bundle")
        copy = await engine.import_run(tmp_path / "run.bundle", run_id="copy")
        assert await copy.tags() == ["one", "two"]
        await engine.archive(older_than=timedelta(0))
        assert await found(engine, tag="one") == []
        await engine.unarchive("run")
        assert await found(engine, tag="one") == ["run"]
        await run.delete()
        assert await run.tags() == ["one", "two"]
