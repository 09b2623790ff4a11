"""`perdure send`: feeding a run that another process drives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from perdure import Stream, collect, node, workflow

@node
async def double(x: int) -> int:
    return 2 * x

@workflow
def fed(numbers: Stream[int]) -> list[int]:
    return collect(double.map(numbers))
"""


def perdure(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perdure", *words], cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.slow
def test_a_run_is_fed_by_another_process_until_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(PROGRAM)
    driving = subprocess.Popen(
        [sys.executable, "-m", "perdure", "run", "flow.py", "--run-id", "fed", "--stay", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while perdure(tmp_path, "show", "fed", "--json").returncode:
            assert driving.poll() is None

        wrong = perdure(tmp_path, "send", "fed", "numbers", "three")
        first = perdure(tmp_path, "send", "fed", "numbers", "1", "--id", "a")
        again = perdure(tmp_path, "send", "fed", "numbers", "1", "--id", "a", "--json")
        last = perdure(tmp_path, "send", "fed", "numbers", "2", "3", "--close")
        output, _ = driving.communicate(timeout=30)
        late = perdure(tmp_path, "send", "fed", "numbers", "4")
        unknown = perdure(tmp_path, "send", "fed", "letters", "4")
    finally:
        driving.kill()
        driving.wait()

    assert wrong.returncode == 2
    assert "does not fit" in wrong.stderr
    assert first.stdout == "input numbers of run fed: 1 item sent\n"
    assert json.loads(again.stdout) == {"run_id": "fed", "input": "numbers", "sent": 1, "closed": False}
    assert last.stdout == "input numbers of run fed: 2 items sent, closed\n"
    assert json.loads(output.splitlines()[-1] if output.count("\n") == 1 else output)["outputs"] == {
        "output": [2, 4, 6]
    }
    assert late.returncode == 2
    assert "is closed" in late.stderr
    assert unknown.returncode == 2
    assert "there is no input 'letters' that is a stream (there is 'numbers')" in unknown.stderr


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    assert perdure(tmp_path, "send", "fed", "numbers").returncode == 2
    assert perdure(tmp_path, "send", "fed", "numbers", "1", "2", "--id", "a").returncode == 2
