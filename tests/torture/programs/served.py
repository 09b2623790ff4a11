"""An engine in a process of its own, which does what the test says: start a run, stop at a point, leave.

{"do": "start", "id": 7, "workflow": "diamond", "run_id": "r-7", "inputs": {…}}   →   {"said": "started", "id": 7}
                                                                   or   {"said": "refused", "id": 7, "error": …}
{"do": "arm", "id": 8, "point": "body", "run_id": "r-7"}                          →   {"said": "armed", "id": 8}
{"do": "wait", "id": 9, "run_id": "r-7"}                                          →   {"said": "ended", "id": 9, …}
{"do": "leave"}                                                     drains and ends; so does the end of its input
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec

from perdure import Engine, EngineSettings
from perdure.errors import PerdureError
from tests.torture.programs import pausing, reporting
from tests.torture.programs.stores import open_pausing_store
from tests.torture.programs.workloads import WORKFLOWS


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine is to be."""

    store: str
    settings: EngineSettings
    pausable: bool
    """Whether it stops at points that are armed."""
    recover: bool


async def serve(options: Options) -> None:
    store = await open_pausing_store(options.store) if options.pausable else options.store
    async with (
        Engine(store, workflows=WORKFLOWS.values(), settings=options.settings, recover=options.recover) as engine,
        asyncio.TaskGroup() as answers,
    ):
        heard: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        reporting.hear(asyncio.get_running_loop(), heard)
        reporting.say(said="ready", engine_id=engine.engine_id, pid=os.getpid())
        while (asked := await heard.get()) is not None and asked["do"] != "leave":
            answers.create_task(answer(engine, asked))


async def answer(engine: Engine, asked: dict[str, Any]) -> None:
    try:
        said = await obey(engine, asked)
    except PerdureError as error:
        said = {"said": "refused", "error": error.code, "message": str(error)}
    reporting.say(id=asked["id"], **said)


async def obey(engine: Engine, asked: dict[str, Any]) -> dict[str, Any]:
    match asked["do"]:
        case "start":
            await engine.start(WORKFLOWS[asked["workflow"]], run_id=asked["run_id"], inputs=asked["inputs"])
            return {"said": "started"}
        case "wait":
            run = await (await engine.get(asked["run_id"])).wait()
            return {"said": "ended", "status": run.status.value}
        case "arm":
            pausing.arm(asked["point"], asked["run_id"])
            return {"said": "armed"}
        case unknown:
            raise AssertionError(unknown)


def main() -> None:
    reporting.prepare()
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Options)))


if __name__ == "__main__":
    main()
