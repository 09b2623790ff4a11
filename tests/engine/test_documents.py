"""Graphs that are only documents: built-in node types are there for them though no program has imported any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine
from perdure.engine.inspect import verify_run
from perdure.errors import InvalidGraph, RunFailed
from perdure.graph.forms import graph_from_json
from tests.engine.test_triggers import nightly_all

TICKS = {
    "name": "document_ticks",
    "nodes": [{"id": "often", "type": "perdure.schedule", "data": {"every": 0.05, "catch_up": "all"}}],
    "edges": [{"source": "often", "target": "$output", "targetHandle": "output", "mode": "collect"}],
}

PROGRAM = """
import asyncio, json, sys
from perdure import Engine
from perdure.graph.forms import graph_from_json

async def count(run):
    return len([entry async for entry in run.events(follow=False) if type(entry.event).__name__ == "TriggerInputReceived"])

async def main(url, graph):
    async with Engine(url) as engine:
        run = await engine.start(graph_from_json(graph), run_id="ticks") if graph else await engine.get("ticks")
        before = await count(run)
        async with asyncio.timeout(20):
            while await count(run) < before + 2:
                await asyncio.sleep(0.02)
        result = None
        if not graph:
            await run.stop()
            result = [tick.at.isoformat() for tick in await run.result()]
    loaded = sorted(name for name in sys.modules if name.startswith("perdure.nodes.") or name in ("redis", "apsw"))
    print(json.dumps([result, loaded]))

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


def lived(url: str, graph: Any, folder: Path) -> Any:
    """Start a document in a process that has imported nothing, or go on with it; return what came of it, and what it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, json.dumps(graph)], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_document_runs_and_is_adopted_in_processes_that_have_imported_nothing(store_url: str, tmp_path: Path) -> None:
    _, loaded = lived(store_url, TICKS, tmp_path)
    times, _ = lived(store_url, None, tmp_path)

    assert "perdure.nodes.schedule" in loaded
    assert {"perdure.nodes.folder", "perdure.nodes.redis_stream", "redis"}.isdisjoint(loaded)
    assert len(times) >= 4
    assert times == sorted(set(times))


async def test_a_wrong_document_is_refused_where_it_would_be_started(sqlite_url: str) -> None:
    wrong = graph_from_json(TICKS | {"nodes": [{"id": "often", "type": "perdure.schedule", "data": {"cron": "often"}}]})
    async with Engine(sqlite_url) as engine:
        with pytest.raises(InvalidGraph, match=r"Node 'often' cannot run: 'often' is no cron expression"):
            await engine.start(wrong)


async def test_what_shows_only_in_the_run_fails_the_node_clearly(sqlite_url: str) -> None:
    given = {"source": "$input", "sourceHandle": "cron", "target": "often", "targetHandle": "cron"}
    document = TICKS | {
        "inputs": [{"name": "cron", "schema": {"type": "string"}}],
        "nodes": [{"id": "often", "type": "perdure.schedule"}],
        "edges": [*TICKS["edges"], given],
    }
    async with Engine(sqlite_url) as engine:
        run = await engine.start(graph_from_json(document), cron="every now and then")
        with pytest.raises(RunFailed, match=r"often.*'every now and then' is no cron expression"):
            await run.result()
        assert await verify_run(engine, run.run_id) == []


async def test_an_engine_with_workflows_of_its_own_has_built_in_types_and_one_with_none_drives_nothing(
    sqlite_url: str,
) -> None:
    inbox = {
        "name": "document_inbox",
        "nodes": [{"id": "letters", "type": "perdure.inbox", "data": {"schema": {"type": "string"}}}],
        "edges": [{"source": "letters", "target": "$output", "targetHandle": "output", "mode": "collect"}],
    }
    async with Engine(sqlite_url, workflows=[nightly_all]) as engine:
        run = await engine.start(graph_from_json(inbox))
        await run.deliver("letters", "a", id="1")
        await run.stop()
        assert await run.result() == ["a"]
    async with Engine(sqlite_url, workflows=[]) as engine:
        with pytest.raises(InvalidGraph, match=r"'perdure\.inbox', which is not declared here"):
            await engine.start(graph_from_json(inbox))
