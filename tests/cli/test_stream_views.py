"""Streams as the command line shows them: in a terminal, in a pipe, from another process, while they flow and afterwards."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.cli.conftest import Cli, read_until
from tests.cli.test_terminal import DEADLINE_SECONDS, Screen

pytestmark = pytest.mark.slow

STREAMED = """
import asyncio, os
from collections.abc import AsyncIterator, Iterator
from perdure import Context, Stream, collect, node, workflow

@node
def numbers(n: int) -> Iterator[int]:
    yield from range(n)

@node(concurrency=8, on_item_error="skip")
async def halve(ctx: Context, x: int, hold_at: int) -> int:
    if x % 100 == 7:
        ctx.log.info("odd one", number=x)
        raise ValueError(f"{x} cannot be halved")
    while x == hold_at and not os.path.exists("open"):
        await asyncio.sleep(0.01)
    return x // 2

@node
async def largest(xs: Stream[int]) -> int:
    most = -1
    async for x in xs:
        most = max(most, x)
    return most

@node
def report(xs: list[int], most: int) -> str:
    return f"{len(xs)} numbers up to {most}"

@workflow
def halves(n: int, hold_at: int = -1) -> str:
    halved = halve.map(numbers(n), hold_at=hold_at)
    return report(collect(halved), largest(halved))
"""


@pytest.fixture
def flow(cli: Cli) -> Cli:
    cli.write("flow.py", STREAMED)
    return cli


def streams_of(cli: Cli, run_id: str) -> dict[str, dict[str, object] | None]:
    return {node["id"]: node["stream"] for node in cli.json("show", run_id)["nodes"]}


def wait_until_done(cli: Cli, node_id: str, items: int) -> dict[str, object]:
    """Return what another process sees of a node as soon as it has done so many items."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if (stream := streams_of(cli, "r1")[node_id]) is not None and stream["done"] == items:
            return stream
    raise AssertionError(f"{node_id} did not do {items} items: {streams_of(cli, 'r1')}")


def test_show_says_how_far_streams_have_come(flow: Cli):
    flow("run", "flow.py", "-i", "n=1000", "--run-id", "r1")

    streams = streams_of(flow, "r1")

    assert streams["largest"] is streams["report"] is None
    halved = streams["halve"]
    assert halved is not None
    assert list(halved) == ["done", "total", "failed", "retrying", "closed", "checkpointed", "items_per_second"]
    rate = halved.pop("items_per_second")
    assert isinstance(rate, float)
    assert rate > 1
    assert halved == {"done": 1_000, "total": 1_000, "failed": 10, "retrying": 0, "closed": True, "checkpointed": 0}
    shown = flow("show", "r1").stdout
    assert re.search(r"✓ numbers .* · 1,000 items · [\d,]+/s$", shown, re.MULTILINE)
    assert "halve: 10 items failed and left out\n  item 7: ValueError: 7 cannot be halved\n" in shown
    assert "  and 7 more\n" in shown


def test_another_process_sees_how_far_a_run_is(flow: Cli):
    process = flow.start("run", "flow.py", "-i", "n=2000", "-i", "hold_at=1990", "--run-id", "r1")
    read_until(process, "numbers completed in")
    following = flow.start("events", "r1", "--follow")
    read_until(following, "numbers ended its stream after 2,000 items")

    halved = wait_until_done(flow, "halve", 1_999)

    assert (halved["total"], halved["closed"], halved["failed"]) == (2_000, False, 20)
    assert "1,999 of 2,000" in flow("show", "r1").stdout
    flow.write("open", "")
    assert "halve ended its stream after 2,000 items" in following.communicate(timeout=30)[0]
    assert process.wait(timeout=30) == 0


def test_many_items_make_few_lines(flow: Cli):
    done = flow("run", "flow.py", "-i", "n=30000", "--run-id", "r1")

    lines = done.stdout.splitlines()
    assert len(lines) < 60, done.stdout
    assert any(re.search(r"numbers completed in .*: 30,000 items, [\d,]+/s$", line) for line in lines)
    assert any(re.search(r"halve completed in .*: 30,000 items, [\d,]+/s, 300 failed$", line) for line in lines)
    log = flow("events", "r1").stdout.splitlines()
    assert len(log) < 60
    assert sum(int(n.replace(",", "")) for n in re.findall(r"halve recorded ([\d,]+) items?", "\n".join(log))) == 30_000
    assert len(flow.json("events", "r1")) > len(log)


def test_logs_say_which_item_they_are_about(flow: Cli):
    flow("run", "flow.py", "-i", "n=200", "--run-id", "r1")

    assert {line.split(maxsplit=1)[1] for line in flow("logs", "r1").stdout.splitlines()} == {
        "INFO halve: odd one item=7 number=7",
        "INFO halve: odd one item=107 number=107",
    }
    assert {line["fields"]["item"] for line in flow.json("logs", "r1")} == {7, 107}


def test_a_terminal_shows_streams_as_they_flow(flow: Cli):
    screen = Screen(flow, "run", "flow.py", "-i", "n=5000", "-i", "hold_at=3", env={"NO_COLOR": "1"}, columns=80)

    screen.read_until("blocked")  # the source waits for a node that waits for the item that comes first
    screen.read_until("starved")  # and so does whoever reads what comes of it
    screen.read_until("← ")
    flow.write("open", "")

    assert screen.close() == 0, screen.text[-4000:]
    frames = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", screen.text)
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]+", frames))
    assert re.search(r"✓ numbers .* 5,000 items", frames)
    assert re.search(r"✓ halve .* 5,000 items .*✗ 50", frames)


def test_an_interrupted_stream_is_shown_and_goes_on(flow: Cli):
    process = flow.start("run", "flow.py", "-i", "n=2000", "-i", "hold_at=1500", "--run-id", "r1")
    read_until(process, "numbers completed in")
    wait_until_done(flow, "halve", 1_999)
    process.send_signal(signal.SIGKILL)
    process.wait()

    left = streams_of(flow, "r1")["halve"]
    assert left is not None
    assert (left["done"], left["total"], left["closed"]) == (1_999, 2_000, False)
    flow.write("open", "")
    resumed = flow("resume", "r1")

    assert re.search(r"halve completed in .*: 2,000 items, .* 20 failed", resumed.stdout)
    assert resumed.stdout.rstrip().endswith("1980 numbers up to 999")
    report = json.loads(flow("show", "r1", "--json").stdout)
    assert [node["attempt"] for node in report["nodes"] if node["id"] == "halve"] == [2]
