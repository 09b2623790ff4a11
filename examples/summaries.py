"""A folder of documents, summarised with eight calls at a time.

perdure run examples/summaries.py --run-id notes
perdure run examples/summaries.py --input folder=letters --input output=letters.md

Kill it half-way: `perdure resume notes` makes only the calls that have no answer yet. A document that cannot be read is left out,
and the log says why. A folder that does not exist is filled with sixty notes first.

The "model" is a few lines that pick the sentences with the words that matter most. It takes its time and is sometimes busy, as
a real one is; put a request in its place, and hand on `ctx.idempotency_key` if the service knows such keys.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from perdure import Backoff, Context, collect, node, stage, workflow

NOTES = {
    "orchard": (
        "The early apples were picked a week before the others.",
        "Two rows of the orchard stood in water after the storm.",
        "We lost fewer apples to wasps than in any year before.",
        "The press in the orchard needs a new belt before October.",
        "A neighbour took the last crates of apples to the market.",
        "Next spring the old trees by the gate will be cut back.",
    ),
    "harbour": (
        "The ferry to the islands left the harbour an hour late.",
        "Fog lay over the harbour until the sun was high.",
        "The crane was repaired, and three ships were unloaded.",
        "A ship from the north waits outside for a free berth.",
        "The harbour office asks all crews to report their ballast.",
        "Gulls have found the new fish market already.",
    ),
    "library": (
        "The library lent more books than in any month of last year.",
        "Half of the returned books came from the box in the station.",
        "The reading room stays open until nine on Thursdays.",
        "A box of letters was given to the library by a family.",
        "The letters tell of a winter when the river froze.",
        "Volunteers will copy the letters before they are shown.",
    ),
    "workshop": (
        "The lathe in the workshop runs quietly since its bearing was changed.",
        "Four chairs and a table left the workshop this week.",
        "The oak was too wet and went back to the yard.",
        "An apprentice made her first drawer without help.",
        "The glue pot has to be cleaned every evening.",
        "Orders for chairs are now taken until the end of March.",
    ),
}
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a after all and are as at be before by for from has have in is it of on or than that the to was were when",
    )
)


@dataclass
class Summary:
    title: str
    text: str
    words: int


class ModelBusy(Exception):
    """The model has too much to do. Its error class is why the call is tried again."""

    error_class = "transient"


@node
def prepare(folder: str) -> str:
    """Fill the folder with notes, unless it is there."""
    target = Path(folder)
    if not target.exists():
        part = target.with_name(f"{target.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        chance = random.Random(7)
        for number in range(60):
            topic = chance.choice(list(NOTES))
            others = [sentence for other in NOTES if other != topic for sentence in NOTES[other]]
            sentences = [*chance.sample(NOTES[topic], 5), *chance.sample(others, 2)]
            (part / f"{number:02}-{topic}.txt").write_text(" ".join(sentences) + "\n", encoding="utf-8")
        part.rename(target)
    return folder


@node
def find(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*.txt"))


@node
def count(paths: list[str]) -> int:
    return len(paths)


@node(concurrency=8, retries=5, backoff=Backoff(jitter=True), retry_on="transient", timeout=60, on_item_error="skip")
async def summarize(ctx: Context, path: str, total: int) -> Summary:
    document = await asyncio.to_thread(Path(path).read_text, encoding="utf-8")
    text = await model(document, is_first_try=ctx.attempt == 1)
    ctx.progress((ctx.item or 0) + 1, total)
    return Summary(Path(path).stem, text, len(document.split()))


async def model(document: str, *, is_first_try: bool) -> str:
    """Give the two sentences that say most. Deterministic, but for the time it takes."""
    await asyncio.sleep(0.2 + len(document) / 2_000)
    if is_first_try and len(document) % 11 == 0:
        raise ModelBusy("come back in a second")
    sentences = re.split(r"(?<=[.!?])\s+", document.strip())
    weights = Counter(word for word in words_of(document) if word not in COMMON)
    best = sorted(sentences, key=lambda sentence: -weight_of(sentence, weights))[:2]
    return " ".join(sentence for sentence in sentences if sentence in best)


def weight_of(sentence: str, weights: Counter[str]) -> float:
    words = words_of(sentence)
    return sum(weights[word] for word in words) / max(len(words), 1)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


@node
def write(output: str, summaries: list[Summary], total: int) -> str:
    parts = "".join(f"## {summary.title}\n\n{summary.text}\n\n" for summary in summaries)
    beside = Path(output).with_suffix(".part")
    beside.write_text(f"# {len(summaries)} summaries\n\n{parts}", encoding="utf-8")
    os.replace(beside, output)
    words = sum(summary.words for summary in summaries)
    return f"{len(summaries)} of {total} documents, {words:,} words, summarised in {output}"


@workflow
def summaries(folder: str = "notes", output: str = "summaries.md") -> str:
    with stage("find"):
        paths = find(prepare(folder))
        total = count(paths)
    with stage("summarise"):
        made = collect(summarize.map(paths, total=total))
    with stage("write"):
        return write(output, made, total)


if __name__ == "__main__":
    print(summaries.run())
