"""What the engine and its like log as warnings and errors, told to people in one line each.

A log line is a constant name with facts, for programs. People are told what it means, where there are words for it, and its
facts in any case.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

WORDS = {
    "bodies_left_behind": "there are bodies that do not end, and are left behind",
    "events_lost": "events of audited runs could not be written and are lost; the runs go on",
    "events_wait": "events of audited runs cannot be written, which is tried again; the runs go on meanwhile",
    "heartbeat_failed": "this process could not say that it lives, which it tries again",
    "item_lost": "a body failed while its engine stopped, and will be called again for its item",
    "lease_lost": "others took this process for dead, and may go on with what it was driving",
    "listening_failed": "news of other processes cannot be heard, which is tried again; it is looked for meanwhile",
    "log_line_lost": "what a node has logged could not be written and is lost",
    "log_lines_lost": "what nodes have logged could not be written and is lost",
    "not_acknowledged": "what a trigger was given is recorded, but its source could not be told so",
    "not_archived": "runs that ended long ago could not be archived, which is tried again later",
    "postgres_may_lose_commits": "what this server has confirmed can be lost if its machine fails, because of its settings",
    "probe_failed": "the probe of a node in doubt has failed, so that a person has to say what became of the node",
    "recovery_failed": "runs that others have left cannot be looked for, which is tried again",
    "redis_unreachable": "Redis cannot be reached, which is tried again",
    "rejoin_failed": "this process cannot say that it lives after all, which it tries again",
    "retire_failed": "this process could not say that it ends; others notice that by themselves",
    "run_is_busy": "somebody else holds the row of a run, which is tried again for a while",
    "run_not_archived": "a run cannot be read whole, and is not archived",
    "run_not_readable": "a run cannot be read with the code that is here, and waits for code that can",
    "run_repaired": "a run whose rows did not agree with its log was repaired",
    "store_not_ready": "the store cannot be used, which is tried again for a while",
    "switch_refused": "a run could not be taken to another version of its workflow",
    "threads_left_behind": "there are bodies in threads that have not ended, and are left behind",
}
"""What people are told in the place of the names that log lines have for programs."""

FOR_PROGRAMS = frozenset(("engine_id", "retry_in_seconds"))
"""Facts that say nothing to people who are told in words, and would make the same thing another one each time."""

_WHY = ("error", "problem", "problems", "reason")
"""Facts that are sentences: they stand behind what has happened."""
_OF_EVERY_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class Warnings(logging.Handler):
    """Shows what is warned of, in one line, wherever standard error leads at that moment. What is the same again and again
    is told once."""

    _last = ""

    def emit(self, record: logging.LogRecord) -> None:
        stream: TextIO = sys.stderr
        line = f"perdure: {_told_of(record)}\n"
        if line == self._last and not record.exc_info:
            return
        self._last = line
        stream.write(line)
        if record.exc_info:
            stream.write(logging.Formatter().formatException(record.exc_info) + "\n")


def _told_of(record: logging.LogRecord) -> str:
    name = record.getMessage()
    facts = {fact: value for fact, value in vars(record).items() if fact not in _OF_EVERY_RECORD}
    if name not in WORDS:
        return name + "".join(f" {fact}={value}" for fact, value in facts.items())
    why = [_sentence(facts.pop(fact)) for fact in _WHY if fact in facts]
    where = ", ".join(
        f"{fact.removesuffix('_id')} {value}" for fact, value in facts.items() if fact not in FOR_PROGRAMS
    )
    return WORDS[name] + (f" ({where})" if where else "") + (f": {'; '.join(why)}" if why else ".")


def _sentence(why: str | list[str]) -> str:
    return why if isinstance(why, str) else "; ".join(why)


def show_warnings() -> None:
    """Show what is logged from warnings on, and nothing twice."""
    log = logging.getLogger("perdure")
    log.addHandler(Warnings(logging.WARNING))
    log.propagate = False
