"""The programs in `examples/` run, from the command line and by themselves, and leave nothing beside what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"


def perdure(folder: Path, *arguments: str) -> Any:
    """Run a command with --json and return its document."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "perdure", *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda example: example.stem)
def test_an_example_is_valid(example: Path, tmp_path: Path):
    assert all(document["valid"] for document in perdure(tmp_path, "validate", str(example)))


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda example: example.stem)
def test_an_example_is_a_program(example: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_table_is_cleaned_and_added_up(tmp_path: Path):
    outputs = perdure(tmp_path, "run", str(EXAMPLES / "etl.py"))["outputs"]

    assert outputs["totals"] == {"harbour": "44.78 EUR", "station": "14.88 EUR"}
    assert outputs["rejects"] == ["line 4: not a sale", "line 6: no rate for XXX"]
    assert json.loads((tmp_path / "report.json").read_text()) == {"totals": outputs["totals"], "rejected": 2}


@pytest.mark.slow
def test_an_order_is_paid_once_though_the_answer_was_lost(tmp_path: Path):
    order = ("run", str(EXAMPLES / "orders.py"), "--input", "customer=ada", "--input", "quantity=2")

    paid = perdure(tmp_path, *order, "--input", "item=lamp")
    refused = perdure(tmp_path, *order, "--input", "item=chair")

    assert paid["outputs"]["output"] == "to ada: 2 x lamp for ada, 98.00 paid"
    assert {state["id"]: state["attempt"] for state in paid["nodes"]}["pay"] == 2
    assert len(list((tmp_path / "shop" / "payments").iterdir())) == 1
    assert refused["outputs"]["output"] == "to ada: chair is sold out"


@pytest.mark.slow
def test_files_have_fingerprints(tmp_path: Path):
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.txt").write_text(str(number))
    run = ("run", str(EXAMPLES / "fingerprints.py"), "--input", f"folder={folder}")

    before = perdure(tmp_path, *run)["outputs"]["output"]
    (folder / "3.txt").write_text("changed")
    after = perdure(tmp_path, *run)["outputs"]["output"]

    assert before["files"] == after["files"] == 9
    assert before["fingerprint"] != after["fingerprint"]
