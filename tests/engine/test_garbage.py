"""The first full collection of a process is made while an engine opens, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, gc
from perdure import Engine

{before}
collections = lambda: gc.get_stats()[2]["collections"]

async def main():
    found = [collections()]
    for _ in range(2):
        async with Engine("sqlite:///runs.db"):
            found.append(collections())
    print(*found)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [("", "0 1 1"), ("gc.collect()", "1 1 1"), ("gc.disable()", "0 0 0")],
    ids=["none", "there was one", "no collector"],
)
def test_a_young_process_collects_before_its_first_run(tmp_path: Path, before: str, expected: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(before=before)]

    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert done.stdout.split() == expected.split(), done.stderr
