"""The workflow that `perdure demo` kills and resumes: it reads three books, counts their words and writes a report."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter

from perdure import Context, node, stage, workflow

SENTENCES = (
    "the river carries the small boat past the mill",
    "a lamp in the window answers the lamp on the hill",
    "rain writes on the roof and the roof reads it aloud",
    "the clock in the hall is late and nobody minds",
    "salt and bread and a letter lie on the table",
)


def note(ctx: Context, ledger: str) -> None:
    """Write down, durably and outside of the engine, that this body has run. Nothing that is run twice can hide."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{ctx.node_id} {ctx.attempt}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@node
async def read(ctx: Context, ledger: str, number: int) -> str:
    note(ctx, ledger)
    await asyncio.sleep(0.2 + 0.1 * number)
    order = sorted(SENTENCES, key=lambda sentence: hashlib.sha256(f"{number} {sentence}".encode()).digest())
    return ". ".join(order * (200 * number))


@node(retries=3, backoff=0.2)
async def look_up(ctx: Context, ledger: str) -> str:
    note(ctx, ledger)
    await asyncio.sleep(0.3)
    if ctx.attempt == 1:
        raise ConnectionError("the catalogue does not answer")
    return "The Library of Lamps"


@node
async def count(ctx: Context, ledger: str, text: str, number: int) -> dict[str, int]:
    note(ctx, ledger)
    words = Counter(text.replace(".", "").split())
    for part in range(10):
        ctx.progress(part + 1, 10)
        await asyncio.sleep(0.02 + 0.03 * number)
    return dict(words.most_common(5))


@node
async def fingerprint(ctx: Context, ledger: str, texts: list[str]) -> str:
    note(ctx, ledger)
    await asyncio.sleep(0.6)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@node
async def merge(ctx: Context, ledger: str, counts: list[dict[str, int]]) -> dict[str, int]:
    note(ctx, ledger)
    await asyncio.sleep(0.4)
    total: Counter[str] = Counter()
    for words in counts:
        total.update(words)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


@node
async def report(ctx: Context, ledger: str, title: str, words: dict[str, int], seal: str) -> str:
    note(ctx, ledger)
    await asyncio.sleep(0.3)
    word, number = next(iter(words.items()))
    return f"{title}: {number:,} times {word!r}, sealed {seal[:12]}"


@workflow
def library(ledger: str) -> str:
    with stage("reading"):
        title = look_up(ledger)
        books = [read.named(f"read_{number}")(ledger, number) for number in (1, 2, 3)]
    with stage("counting"):
        counts = [count.named(f"count_{i}")(ledger, book, i) for i, book in enumerate(books, start=1)]
        seal = fingerprint(ledger, books)
    with stage("publishing"):
        return report(ledger, title, merge(ledger, counts), seal)
