"""Mistakes that both type checkers find: one in each marked line, and none elsewhere."""

from __future__ import annotations

from perdure import collect, node, workflow
from perdure.testing import Rehearsal
from tests.typing.good import (
    approve,
    deal,
    digest,
    fetch,
    halve,
    numbers,
    paragraphs,
    publish,
    repeat,
    smallest,
    summarize,
    total,
)


@node(retrys=3)  # error
def misspelt_option(x: int) -> int:
    return x


@node(executor="gpu")  # error
def unknown_executor(x: int) -> int:
    return x


@workflow
def wrong(url: str) -> int:
    fetch(3)  # error
    fetch(url, 4)  # error
    fetch(uri=url)  # error
    fetch()  # error
    approve(3)  # error
    publish(summarize.map(paragraphs(fetch(url))))  # error
    publish(collect(numbers(3)))  # error
    summarize(paragraphs(fetch(url)))  # error
    summarize.map([1, 2])  # error
    summarize.map(numbers(3))  # error
    summarize.map(fetch(url))  # error
    repeat.map(["a"], ["b"])  # error
    repeat.map(["a"], [1], join="glue")  # error
    repeat.map(["a"], [1], join="zip", leftovers="eat")  # error
    collect(fetch(url))  # error
    collect([1])  # error
    smallest([1])  # error
    total(deal([1]).left)  # error
    total(halve.map([[1]])["left"])  # error
    smallest(paragraphs(fetch(url)))  # error
    total(halve([1]).left, nope=3)  # error
    print(fetch(url).titel)  # error
    return publish(["a"])  # error


digest.run(ur="x")  # error
digest.run(3)  # error
digest.options(durability="never")  # error
result: int = digest.run(url="x")  # error


def tested(perdure: Rehearsal) -> None:
    perdure.run(digest)  # error
    perdure.run(digest, url=3)  # error
    perdure.kill_at(1, digest, uri="x")  # error
    perdure.stub(digest, returns=3)  # error
    number: int = perdure.run(digest, url="x").output  # error
    print(number)
