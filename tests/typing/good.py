"""What users write. Both type checkers accept it as it stands, in their strictest modes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from perdure import (
    Backoff,
    Context,
    Engine,
    NodeType,
    Outputs,
    Stream,
    collect,
    failures,
    first,
    node,
    stage,
    unless,
    when,
    workflow,
)
from perdure.graph.trace import after, text
from perdure.testing import Rehearsal


@dataclass
class Page:
    title: str
    paragraphs: list[str]


class Halves(Outputs):
    left: list[int]
    right: list[int]


@node(retries=3, backoff=Backoff(first=timedelta(seconds=2)), timeout=30, retry_on=(OSError, "requests.Timeout"))
async def fetch(url: str) -> Page:
    return Page(url, [])


@node
def paragraphs(page: Page) -> Iterator[str]:
    yield from page.paragraphs


@node
async def numbers(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        yield number


@node(concurrency=8)
async def summarize(paragraph: str) -> str:
    return paragraph[:10]


@node
async def approve(ctx: Context, parts: list[str]) -> bool:
    ctx.log.info("asked")
    return bool(parts)


@node
async def publish(parts: list[str], title: str = "") -> str:
    return title.join(parts)


@node
def repeat(words: str, times: int, *, sep: str = "") -> str:
    return sep.join([words] * times)


@node(on_item_error="collect")
def halve(values: list[int]) -> Halves:
    return Halves(left=values, right=values)


@node
def route(value: int) -> Outputs:
    return Outputs(small=value) if value < 10 else Outputs(large=value)


@node
def deal(values: list[int]) -> Iterator[Halves]:
    yield Halves(left=values)


@node
def pages(upto: int) -> Iterator[dict[str, str]]:
    yield {"title": str(upto)}


@node
def joined(left: list[int], right: list[int]) -> list[int]:
    return left + right


@node
def total(values: list[int]) -> int:
    return sum(values)


@node
async def largest(values: Stream[int]) -> int:
    best = 0
    async for value in values:
        best = max(best, value)
    return best


@node
def smallest(values: Stream[int]) -> int:
    return min(values)


@node
def show(value: Any, width: int = 80) -> str:
    return str(value)[:width]


@node
def nothing() -> None:
    return None


class Summarizer:
    temperature: float = 0.3

    async def initialize(self) -> None:
        return None

    async def run(self, ctx: Context, words: str) -> str:
        return words


summarizer = node(Summarizer)


class Splitter:
    def process(self, words: str) -> Iterator[str]:
        yield from words.split()


splitter = node(concurrency=2)(Splitter)


class Dealer:
    async def process(self, words: str) -> AsyncIterator[Halves]:
        yield Halves(right=[len(words)])


dealer = node(Dealer)


class Translator:
    language: str = "German"

    def run(self, word: str) -> str:
        return {"lamp": "Lampe"}.get(word, word) if self.language == "German" else word


translated = node(retries=3)(Translator)


@workflow
def translations(word: str) -> list[str]:
    return [translated(word), translated(word, language="English")]


@workflow
def digest(url: str) -> str:
    parts = collect(summarize.map(paragraphs(fetch(url))))
    with when(approve(parts)):
        link = publish(parts)
    return link


@workflow(name="everything", durability="async", timeout=timedelta(hours=1), checkpoint_every=60)
def everything(url: str, upto: int = 3) -> dict[str, Any]:
    page = fetch(url)
    stream = numbers(upto)
    halves = halve([upto, total(collect(stream))])
    with stage("second"), unless(approve(page.paragraphs)), after(halves):
        biggest = largest(stream)
        least = smallest(stream)
    return {
        "title": publish(page.paragraphs, title=page.title),
        "least": least,
        "joined": collect(repeat.map(paragraphs(page), stream, join="zip", leftovers="drop", sep=", ")),
        "three": collect(repeat.map(["a", "b"], times=3)),
        "total": first(total(halves.left), biggest, total.named("other")(halves["right"])),
        "routed": total([route(upto).small, 3]),
        "shown": show(value=page.title, width=3),
        "text": show(text("About ", page.title)),
        "class": summarizer(words=page.title, temperature=0.7),
        "split": collect(splitter(words=page.title)),
        "dealt": collect(deal([1, 2]).left),
        "nothing": nothing(),
    }


@workflow
def named_streams(upto: int) -> dict[str, Any]:
    dealt = deal([upto])
    mapped = halve.map(dealt.left)
    return {
        "left": collect(total.map(dealt.left)),
        "both": collect(joined.map(mapped.left, mapped["right"])),
        "nested": collect(deal.map(mapped.left).right),
        "routed": collect(route.map(numbers(upto)).small),
        "class": collect(dealer.map(paragraphs(fetch("a"))).right),
        "parts": collect(pages(upto)["title"]),
        "failed": collect(failures(mapped)),
    }


def check_types() -> None:
    assert_type(fetch("a"), Page)
    assert_type(paragraphs(fetch("a")), Stream[str])
    assert_type(numbers(3), Stream[int])
    assert_type(approve(["a"]), bool)
    assert_type(summarize.map(["a"]), Stream[str])
    assert_type(collect(numbers(3)), list[int])
    assert_type(halve([1]).left, list[int])
    assert_type(nothing.named("x"), NodeType[[], None])
    assert_type(digest.run(url="a"), str)
    assert_type(digest.options(run_id="a", store="sqlite:///a.db").run("a"), str)
    assert_type(summarizer("a"), str)
    assert_type(splitter("a"), Stream[str])
    assert_type(translated("a", language="English"), str)
    assert_type(translations.run(word="a"), list[str])
    assert_type(deal([1]), Stream[Halves])
    assert_type(deal([1]).left, Stream[Any])
    assert_type(halve.map([[1]]).left, Stream[Any])
    assert_type(deal.map([[1]]), Stream[Halves])
    assert_type(dealer("a").left, Stream[Any])
    assert_type(pages(3)["title"], Stream[Any])


# Runs


async def started(engine: Engine) -> None:
    assert_type(await (await engine.start(digest, url="x")).result(), str)
    assert_type(await (await engine.start("digest@stable", url="x")).result(), Any)
    assert_type(await (await engine.start(digest.graph, url="x")).result(), Any)


# Tests of workflows


def tested(perdure: Rehearsal) -> None:
    run = perdure.run(digest, url="x")
    assert_type(run.output, str)
    perdure.stub(fetch, lambda url: Page(url, []))
    perdure.stub(fetch, returns=Page("", []))
    perdure.stub(fetch, in_turn=[OSError(), Page("", [])])
    perdure.stub(fetch, raises=OSError())
    perdure.stub(paragraphs, returns=["a", "b"])
    perdure.stub(numbers, lambda upto: range(upto))
    perdure.stub(summarize, stub_summary)
    perdure.answer("Publish this?", True)
    perdure.assert_survives(digest, url="x")
    assert_type(perdure.kill_at(1, digest, url="x").output, str)
    for crash in perdure.crashes(digest, url="x"):
        assert_type(crash.run.output, str)


async def stub_summary(paragraph: str) -> str:
    return paragraph
