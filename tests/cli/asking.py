"""Workflows that wait, for tests of the command line."""

from __future__ import annotations

import subprocess

from tests.cli.conftest import Cli

FLOW = """
from dataclasses import dataclass

from perdure import Context, Stream, ask, collect, node, text, when, workflow

@dataclass
class Review:
    stars: int
    note: str

@node
def draft(topic: str) -> str:
    return f"All about {topic}."

@node
def publish(letter: str) -> str:
    return f"published: {letter}"

@workflow
def letter(topic: str = "lamps") -> str | None:
    written = draft(topic)
    with when(ask.named("approval")("Publish this?", schema=bool, show=written)):
        link = publish(written)
    return link

@workflow
def colours() -> dict[str, str]:
    one = ask.named("one")("Which colour?", choices=["red", "blue"])
    two = ask.named("two")("And why?")
    return {"colour": one, "why": two}

@workflow
def reviewed() -> Review:
    return ask.named("review")("How was it?", schema=Review)

@workflow
def hurried() -> str:
    return ask.named("soon")("Quick!", deadline=8.0, default="too late")

@node
async def stop(ctx: Context, at: str) -> str:
    told = await ctx.suspend("look at it")
    return f"{at}: {told}"

@workflow
def stopped() -> str:
    return stop("here")

@node
async def till(ctx: Context) -> int:
    return await ctx.wait_for("paid", schema=int)

@workflow
def paying() -> int:
    return till()

@node
async def nap(ctx: Context) -> str:
    await ctx.sleep(1)
    return "rested"

@workflow
def sleepy() -> str:
    return nap()

@node
async def double(x: int) -> int:
    return 2 * x

@workflow
def fed(numbers: Stream[int]) -> list[int]:
    return collect(double.map(numbers))
"""


def asking(cli: Cli, workflow: str = "letter", run_id: str = "r1") -> subprocess.CompletedProcess[str]:
    done = cli("run", f"flow.py:{workflow}", "--run-id", run_id)
    assert done.returncode == 3, done.stdout + done.stderr
    return done
