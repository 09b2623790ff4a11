"""The examples do what their first lines say, from the command line."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import apsw
import pytest
from PIL import Image

from tests.cli.conftest import Cli

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_every_example_is_valid(cli: Cli):
    for example in sorted(EXAMPLES.glob("*.py")):
        assert cli("validate", str(example)).returncode == 0, example


def test_hello(cli: Cli):
    shutil.copy(EXAMPLES / "hello.py", cli.folder)

    done = cli("run", "hello.py", "--input", "name=Ada")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == ["Hello, Ada!", "==========="]


@pytest.mark.slow
def test_summaries_are_made_once_each_though_the_program_is_killed(cli: Cli):
    recorded = killed_amid_items(cli, "summaries.py", "summarize", 10)

    done = cli("resume", "r1")

    assert done.stdout.splitlines()[-1].startswith("60 of 60 documents")
    text = (cli.folder / "summaries.md").read_text()
    assert text.count("\n## ") == 60
    assert calls_since(cli, "summarize") == 60 - recorded
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_a_contact_sheet_is_whole_though_the_program_is_killed(cli: Cli):
    recorded = killed_amid_items(cli, "contact_sheet.py", "draw", 4, "--input", "count=12")

    done = cli("resume", "r1")

    assert done.stdout.splitlines()[-1] == "pictures/sheet.png"
    with Image.open(cli.folder / "pictures" / "sheet.png") as sheet:
        assert sheet.size == (6 * 212, 2 * 172)
        colours = [sheet.getpixel((column * 212 + 12, row * 172 + 12)) for row in range(2) for column in range(6)]
    assert (245, 245, 240) not in colours  # no place is empty
    assert len(list(cli.folder.glob("pictures/framed/*.png"))) == 12
    assert calls_since(cli, "draw") == 12 - recorded
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_a_table_adds_up_to_the_same_though_the_program_is_killed(cli: Cli):
    killed_amid_items(cli, "sales.py", "clean", 3, "--input", "rows=20000")
    undisturbed = cli.json("run", "sales.py", "--input", "rows=20000")

    done = cli.json("resume", "r1")

    assert done["outputs"] == undisturbed["outputs"]
    rejects = (cli.folder / "rejects.txt").read_text().splitlines()
    table = (cli.folder / "sales.csv").read_text().splitlines()
    assert len(rejects) == sum(line.endswith("?") for line in table) > 0
    for reject in rejects:
        number, _, row = reject.removeprefix("line ").partition(": ")
        assert table[int(number) - 1] == row
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_a_notice_is_put_up_when_both_have_approved_it(cli: Cli):
    shutil.copy(EXAMPLES / "approval.py", cli.folder)
    asked = cli("run", "approval.py", "--run-id", "notice", "--input", "subject=No water", "--input", "seconds=0.1")
    assert asked.returncode == 3
    assert not (cli.folder / "board").exists()

    cli("answer", "notice/editor/1", "true")
    waiting = cli("resume", "notice")
    cli("answer", "notice/caretaker/1", "true")
    done = cli("resume", "notice")

    assert waiting.returncode == 3
    assert "perdure answer notice true (or false)" in waiting.stdout  # one question is left
    assert done.stdout.splitlines()[-1] == "time to take down board/notice.txt"
    assert "No water. We are sorry" in (cli.folder / "board" / "notice.txt").read_text()
    assert cli("verify").returncode == 0


@pytest.mark.slow
def test_a_notice_that_is_not_approved_is_not_put_up(cli: Cli):
    shutil.copy(EXAMPLES / "approval.py", cli.folder)
    cli("run", "approval.py", "--run-id", "notice", "--input", "subject=No water")

    cli("answer", "notice/editor/1", "true")
    cli("answer", "notice/caretaker/1", "false")
    done = cli.json("resume", "notice")

    assert done["outputs"] == {"output": None}
    assert {node["id"]: node["status"] for node in done["nodes"]}["put_up"] == "skipped"
    assert not (cli.folder / "board").exists()


def killed_amid_items(cli: Cli, example: str, node_id: str, count: int, *arguments: str) -> int:
    """Run an example as `r1`, kill it when a node has recorded so many items, and return how many it has then."""
    shutil.copy(EXAMPLES / example, cli.folder)
    process = cli.start("run", example, "--run-id", "r1", *arguments)
    give_up = time.monotonic() + 60
    while items_of(cli, node_id) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return items_of(cli, node_id)


def items_of(cli: Cli, node_id: str) -> int:
    """Return how many items of a node of run `r1` are recorded."""
    if not (cli.folder / "perdure.db").exists():
        return 0
    query = "SELECT stream FROM run_node_state WHERE run_id = 'r1' AND node_id = ?"
    try:
        database = apsw.Connection(str(cli.folder / "perdure.db"), flags=apsw.SQLITE_OPEN_READONLY)
        rows = list(database.execute(query, (node_id,)))
    except apsw.Error:  # the tables are being made
        return 0
    return json.loads(str(rows[0][0])).get("entries", 0) if rows and rows[0][0] else 0


def calls_since(cli: Cli, node_id: str) -> int:
    """Return how many items of a node of run `r1` were recorded in its second attempt."""
    entries = cli.json("events", "r1")
    batches = [entry for entry in entries if entry["type"] == "OutboxEnqueued" and entry["node_id"] == node_id]
    return sum(count for batch in batches if batch["attempt"] == 2 for _, count in batch["ranges"])
