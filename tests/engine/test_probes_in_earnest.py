"""A probe after a real death: the engine that comes next looks for lost runs by itself while somebody asks for this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys
from perdure import Doubt, Engine, node, workflow

asked = []

async def probe(doubt: Doubt) -> object:
    asked.append(doubt.run_id)
    await asyncio.sleep(0.3)
    return ("done", 7)

@node(once=True, probe=probe)
async def charge() -> int:
    os._exit(9)

@workflow
def sale() -> int:
    return charge()

async def main(url: str, start: bool) -> None:
    async with Engine(url) as engine:
        run = await engine.start(sale, run_id="x") if start else await engine.get("x")
        print(await run.result(), asked)

asyncio.run(main(sys.argv[1], sys.argv[2] == "start"))
"""


@pytest.mark.timeout(60)
def test_a_probe_is_asked_once_however_many_look_for_the_run(store_url: str, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(word: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), store_url, word]
        return subprocess.run(command, capture_output=True, text=True, timeout=40, check=False, cwd=tmp_path)

    assert run("start").returncode == 9
    found = run("go on")

    assert (found.returncode, found.stdout) == (0, "7 ['x']\n"), found.stderr
