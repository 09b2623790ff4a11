"""Workflows for the tests of what users test with: of every kind that a stub, an answer or a crash has to cope with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from perdure import Context, Stream, SyncContext, ask, collect, node, when, workflow

# Bodies


@node(retries=2)
async def fetch(url: str, timeout: float = 5.0) -> str:
    return f"text of {url}"


@node
def words(page: str) -> Iterator[str]:
    yield from page.split()


@node
async def letters(page: str) -> AsyncIterator[str]:
    for letter in page:
        yield letter


@node(concurrency=2)
def shout(word: str) -> str:
    return word.upper()


@node
class Repeat:
    times: int = 2

    def process(self, word: str) -> str:
        return word * self.times


@node(executor="process")
def reverse(text: str) -> str:
    return text[::-1]


@node
def join(parts: list[str]) -> str:
    return " ".join(parts)


@node
async def publish(text: str) -> str:
    return f"published: {text}"


@node
async def rest(ctx: Context, text: str) -> str:
    await ctx.sleep(days=30)
    return text


@node
def rest_in_thread(ctx: SyncContext, text: str) -> str:
    ctx.sleep(days=30)
    return text


@node
async def asked_twice(ctx: Context) -> list[int]:
    return [await ctx.ask("How many?", schema=int), await ctx.ask("How many?", schema=int)]


@node
def asked_in_thread(ctx: SyncContext) -> str:
    return ctx.ask("Your name?")


@node
async def paid(ctx: Context) -> int:
    return int(await ctx.wait_for("paid"))


@node
async def told(ctx: Context) -> str:
    return str(await ctx.suspend("for the lawyers"))


@node
async def fail(text: str) -> str:
    raise ValueError(f"{text} is no good")


@node
async def called(ctx: Context, port: int) -> str:
    """Talk to a server, which takes its time."""
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = await reader.read()
        writer.close()
    await ctx.sleep(days=30)
    return answer.decode()


@node(once=True)
async def pay(amount: int) -> int:
    return amount


@node
async def stuck(ctx: Context) -> str:
    while True:
        await ctx.sleep(minutes=1)


# Workflows


@workflow
def digest(url: str) -> str:
    text = join(collect(shout.map(words(fetch(url)))))
    with when(ask("Publish this?", schema=bool, show=text)):
        link = publish(text)
    return link


@workflow
def monthly(text: str) -> str:
    return publish(rest(text))


@workflow
def monthly_in_thread(text: str) -> str:
    return publish(rest_in_thread(text))


@workflow
def spelled(page: str) -> list[str]:
    return collect(Repeat.map(letters(page)))


@workflow
def reversed_text(text: str) -> str:
    return reverse(text)


@workflow
def asking_twice() -> list[int]:
    return asked_twice()


@workflow
def asking_in_thread() -> str:
    return asked_in_thread()


@workflow
def deadline() -> str:
    return ask("Soon?", deadline=3_600.0, default="too late")


@workflow
def payment() -> int:
    return paid()


@workflow
def legal() -> str:
    return told()


@workflow
def fed(items: Stream[str]) -> list[str]:
    return collect(shout.map(items))


@workflow
def failing(text: str) -> str:
    return publish(fail(text))


@workflow
def calling(port: int) -> str:
    return publish(called(port))


@workflow
def paying(amount: int) -> int:
    return pay(amount)


@workflow(durability="exit")
def monthly_without_care(text: str) -> str:
    return publish(join([rest(text)]))


@workflow
def endless() -> str:
    return stuck()


def dull_fetch(url: str) -> str:
    """Stand in for `fetch`, also in other processes."""
    return f"dull {url}"
