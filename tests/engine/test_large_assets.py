"""Assets that are larger than the memory that a process may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, hashlib, resource, sys
from collections.abc import Iterator
from pathlib import Path
from perdure import Asset, Context, Engine, SyncContext, node, workflow

MEBIBYTE = 1 << 20

@node
def written(ctx: SyncContext, mebibytes: int) -> Asset:
    return ctx.asset((bytes([number % 251]) * MEBIBYTE for number in range(mebibytes)), name="large.raw")

@node
async def inverted(ctx: Context, asset: Asset) -> Asset:
    table = bytes(255 - value for value in range(256))

    async def chunks():
        async for chunk in await ctx.open(asset):
            yield chunk.translate(table)

    return await ctx.asset(chunks(), name="inverted.raw")

@node
def hashed(ctx: SyncContext, asset: Asset) -> str:
    digest = hashlib.sha256()
    for chunk in ctx.open(asset):
        digest.update(chunk)
    assert digest.hexdigest() == asset.digest
    return digest.hexdigest()

@workflow
def large(mebibytes: int) -> str:
    return hashed(inverted(written(mebibytes)))

def peak_mebibytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024

async def main() -> None:
    async with Engine(sys.argv[1]) as engine:
        run = await engine.start(large, mebibytes=int(sys.argv[2]))
        print(await run.result(), peak_mebibytes())

asyncio.run(main())
"""

MOST_MEBIBYTES = 200


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gibibyte_passes_through_three_nodes_in_little_memory(sqlite_url: str, tmp_path: Path):
    program = tmp_path / "large.py"
    program.write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, str(program), sqlite_url, "1024"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr
    _, peak = done.stdout.split()
    assert int(peak) < MOST_MEBIBYTES
    sizes = [path.stat().st_size for path in tmp_path.glob("perdure.db-blobs/??/*")]
    assert sizes == [1 << 30, 1 << 30]
    for path in tmp_path.glob("perdure.db-blobs/??/*"):
        path.unlink()
