"""What the driver raises, judged and translated: nothing of the driver leaves this package."""

from __future__ import annotations

import asyncio
from enum import Enum

from perdure.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)


class Trouble(Enum):
    """What can be done about a failed call."""

    REFUSED = "what was written is not allowed: the same will be refused again"
    BUSY = "others were in the way and nothing was written: the next try may work"
    BLOCKED = "waited for others in vain and nothing was written: the next try will wait as long"
    LOST = "no answer: the connection is gone, and whether it was done is not known"
    FATAL = "the database cannot be used as it is"


_REFUSED = ("21", "22", "23", "54")
_BUSY = ("40001", "40P01")
_BLOCKED = ("55P03", "57014")
_LOST = ("08", "57P", "25P03", "53300", "26000", "0A000")
"""26000 is a prepared statement that is not there: a pooler has answered from another session. 0A000 is one that is out of date,
because a table has changed: another connection prepares it anew."""
_JUDGEMENTS = (
    (_REFUSED, Trouble.REFUSED),
    (_BUSY, Trouble.BUSY),
    (_BLOCKED, Trouble.BLOCKED),
    (_LOST, Trouble.LOST),
)


def code_of(error: BaseException) -> str:
    """Return the SQLSTATE with which the server answered, or nothing if the answer is not the server's."""
    return str(getattr(error, "sqlstate", None) or "")


def trouble_of(error: BaseException) -> Trouble:
    """Judge what a call has raised."""
    code = code_of(error)
    if code:
        return next((trouble for prefixes, trouble in _JUDGEMENTS if code.startswith(prefixes)), Trouble.FATAL)
    # The driver's own complaints about a value are ValueErrors, too.
    if isinstance(error, ValueError | OverflowError):
        return Trouble.REFUSED
    return Trouble.LOST if _is_connection_trouble(error) else Trouble.FATAL


def _is_connection_trouble(error: BaseException) -> bool:
    return isinstance(error, OSError | TimeoutError | EOFError | asyncio.IncompleteReadError) or _is_drivers(error)


def _is_drivers(error: BaseException) -> bool:
    """Whether it is a complaint of the driver itself, such as a connection that was closed."""
    return type(error).__module__.partition(".")[0] == "asyncpg"


def problem_of(error: BaseException) -> str:
    """Say why something was refused, in one line."""
    constraint = getattr(error, "constraint_name", None)
    detail = getattr(error, "detail", None)
    parts = [f"{type(error).__name__}: {error}", f"constraint {constraint}" if constraint else "", detail or ""]
    return "; ".join(part for part in parts if part)


def translate(error: BaseException, where: str) -> StoreError:
    """Return the error of ours that says what happened, where, and what to do."""
    code = code_of(error)
    said = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    match code:
        case "53100":
            return StoreFull(
                f"There is no room left for the database {where}. Free some space; nothing that was recorded is lost."
            )
        case "25006" | "42501":
            return StoreReadOnly(
                f"The database {where} cannot be written to: {said}. Connect to the primary, with a user that may write."
            )
        case "40001" | "40P01" | "55P03":
            return StoreLocked(
                f"Rows of the database {where} stay locked by another session: {said}. "
                "pg_stat_activity shows who holds them; end that session or wait for it."
            )
        case "57014":
            return StoreUnavailable(f"The database {where} took too long: {said}. Check its load, and try again.")
        case "42P01" | "42703" | "42883" | "XX001" | "XX002":
            return StoreDamaged(
                f"The database {where} is not as perdure left it: {said}. Restore it from a backup, or choose another store; "
                "?options=-csearch_path%3DNAME keeps perdure in a schema of its own."
            )
        case "28000" | "28P01":
            return StoreUnavailable(
                f"The database {where} does not let this user in: {said}. Check user and password of the URL."
            )
        case "3D000":
            return StoreUnavailable(
                f"The database {where} does not exist. Create it with createdb, or correct the URL."
            )
        case "53300":
            return StoreUnavailable(
                f"The server of {where} takes no more connections: {said}. Raise max_connections, or use a pooler (?pgbouncer=1)."
            )
        case "08P01" | "26000":
            return StoreUnavailable(
                f"The database {where} is behind something that does not keep sessions: {said}. "
                "If it is PgBouncer in transaction mode, add ?pgbouncer=1 to the URL."
            )
        case _:
            return StoreUnavailable(f"The database {where} cannot be used: {_sentence(error, said)}.")


def _sentence(error: BaseException, said: str) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time. Check the server and the network"
    if isinstance(error, OSError):
        return f"{said}. Check that the server runs and that the URL is right"
    return f"{said} ({code_of(error) or type(error).__name__})"
