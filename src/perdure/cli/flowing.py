"""Streams in words: how much is done, how fast, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from perdure.cli.watch import Flowing
from perdure.cli.words import counted, plain
from perdure.engine.streams.live import EdgeFacts
from perdure.journal.headway import Headway


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """A node that reads or gives a stream, in parts that are put below each other."""

    done: str = ""
    total: str = ""
    rate: str = ""
    activity: str = ""
    """How many calls run at once, or that it is blocked or starved."""
    waiting: str = ""
    """What has arrived and is not taken yet."""
    failed: str = ""
    retrying: str = ""


def rate_text(items_per_second: float) -> str:
    """Return a rate as `1,234/s`, `3.4/s`, `12/min`."""
    if 0 < items_per_second < 0.5:
        return f"{items_per_second * 60:.2g}/min"
    if 0 < items_per_second < 9.95:
        return f"{items_per_second:.1f}/s"
    return f"{items_per_second:,.0f}/s"


def columns_of(flowing: Flowing) -> Columns:
    """Return a node as `7,440 of 12,000  118/s  ×8  ← 512  ✗ 2  ↻ 1`."""
    headway = flowing.headway
    running = "" if flowing.facts is None or not flowing.facts.running else f"×{flowing.facts.running:,}"
    activity, waiting = _obstacle(flowing) or running, _arrow(flowing.edges)
    if headway is None:
        read = f"{_read(flowing):,}" if flowing.edges else ""
        return Columns(done=read, total=" read" if read else "", activity=activity, waiting=waiting)
    return Columns(
        done=f"{headway.done:,}",
        total=_of_total(headway, flowing.total),
        rate=_rate(headway),
        activity=activity,
        waiting=waiting,
        failed=f"✗ {headway.failed:,}" if headway.failed else "",
        retrying=f"↻ {headway.retrying:,}" if headway.retrying else "",
    )


def progress_line(flowing: Flowing) -> str:
    """Return how a node is getting on, as `7,440 of 12,000 items, 118/s, 8 at once, 512 waiting, 2 failed`."""
    return ", ".join(filter(None, _progress(flowing)))


def summary(headway: Headway) -> str:
    """Return what a node has done that has ended, as `12,000 items, 118/s, 2 failed`."""
    return progress_line(Flowing(headway=headway))


def waiting_for(edges: Sequence[EdgeFacts]) -> int:
    """Return how much has arrived and is not taken: at hand, or in the store."""
    return sum(edge.buffered + edge.behind for edge in edges)


def _progress(flowing: Flowing) -> Iterator[str]:
    headway, facts = flowing.headway, flowing.facts
    if headway is None:
        yield f"{counted(_read(flowing), 'item')} read"
    elif flowing.total is None or flowing.total == headway.done:
        yield counted(headway.done, "item")
    else:
        yield f"{headway.done:,} of {counted(flowing.total, 'item')}"
    if headway is not None:
        yield _rate(headway)
    yield _obstacle(flowing) or (f"{facts.running:,} at once" if facts is not None and facts.running else "")
    if waiting := waiting_for(flowing.edges):
        yield f"{waiting:,} waiting"
    if headway is not None:
        yield f"{headway.failed:,} failed" if headway.failed else ""
        yield f"{headway.retrying:,} tried again" if headway.retrying else ""


def _read(flowing: Flowing) -> int:
    return sum(edge.taken for edge in flowing.edges)


def _rate(headway: Headway) -> str:
    return "" if headway.items_per_second is None else rate_text(headway.items_per_second)


def _of_total(headway: Headway, total: int | None) -> str:
    if total is None or total == headway.done:
        return " items" if headway.done != 1 else " item"
    return f" of {total:,}"


def _obstacle(flowing: Flowing) -> str:
    """Return what keeps a node from going on, if something does."""
    if flowing.facts is None:
        return ""
    return "blocked" if flowing.facts.is_blocked else "starved" if flowing.facts.is_starved else ""


def _arrow(edges: Sequence[EdgeFacts]) -> str:
    """Return how much waits on each of the edges that lead to a node, with the names of their sources if there are several."""
    if len(edges) == 1:
        waiting = waiting_for(edges)
        return f"← {waiting:,}" if waiting else ""
    told = [f"{plain(edge.source)} {waiting_for((edge,)):,}" for edge in edges]
    return f"← {', '.join(told)}" if waiting_for(edges) else ""
