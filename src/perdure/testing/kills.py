"""A run that goes through two processes: the first is ended by SIGKILL, the second goes on.

    this process    writes down what is to be played, and starts the others one after the other
    child           plays it, and at the chosen commit kills itself (`perdure.testing.child`)

All that a child knows is in its `Part`: no memory is shared, so that what goes on is what was stored.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.dispatch.imports import check_importable
from perdure.engine.engine import Engine
from perdure.errors import BodyNotFound
from perdure.graph.declare import Workflow
from perdure.graph.model import BUILT_IN
from perdure.graph.source import Source, closure_of, source_of
from perdure.ids import RunId, new_id
from perdure.store.codecs import process_codecs
from perdure.testing.ledger import Ledger
from perdure.testing.loop import BEGIN_SECONDS, START_MICROS
from perdure.testing.script import Script
from perdure.testing.stage import PATIENCE_SECONDS
from perdure.testing.stores import in_own_loop
from perdure.testing.stubs import Stub
from perdure.testing.watched import Seen, look

CHILD = "perdure.testing.child"
COMMITS = "commits"
"""The file in which a child that was not killed leaves how many commits it has made."""


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An exception, as another process makes it again."""

    source: Source
    message: str


class Returned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A value, encoded."""

    value: str


class StandIn(msgspec.Struct, frozen=True, kw_only=True):
    """A stub, as another process puts it up again: a function that can be imported, or results."""

    node_type: str
    declared: Source
    body: Source | None
    results: tuple[Returned | Raised, ...]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process is to do."""

    path: tuple[str, ...]
    workflow: str
    source: Source
    run_id: RunId
    inputs: dict[str, str]
    url: str
    folder: str
    script: Script
    """With values that are encoded."""
    stand_ins: tuple[StandIn, ...]
    begin_seconds: float = BEGIN_SECONDS
    killed_at: int | None = None


def kill_and_go_on(
    flow: Workflow[..., Any],
    inputs: dict[str, Any],
    url: str,
    folder: Path,
    commit: int,
    *,
    script: Script,
    stubs: Sequence[Stub],
) -> Seen:
    """Run a workflow through a kill, and return what became of the run.

    Raises BodyNotFound if another process cannot find what it needs, and AssertionError if it never comes to that commit.
    """
    if commit < 1:
        raise ValueError("commits are counted from 1")
    _require_importable(flow)
    part = Part(
        path=tuple(sys.path),
        workflow=flow.name,
        source=flow.source,
        run_id=RunId(f"{flow.name}-{new_id()}"),
        inputs={name: encoded(value, f"input {name!r}") for name, value in inputs.items()},
        url=url,
        folder=str(folder),
        script=encoded_script(script),
        stand_ins=tuple(_stand_in(stub) for stub in stubs if stub.stands),
        killed_at=commit,
    )
    first = _play(part)
    if first.returncode != -signal.SIGKILL:
        _require_success(first)
        made = (folder / COMMITS).read_text()
        raise AssertionError(f"the run has made {made} commits and rests: there is no commit {commit} to be killed at")
    begin = in_own_loop(_time_of_last_event(part))
    _require_success(_play(msgspec.structs.replace(part, killed_at=None, begin_seconds=begin)))
    return in_own_loop(_seen(part))


def encoded(value: Any, where: str) -> str:
    """Return a value as the store would keep it."""
    return process_codecs().encode(value, where=where).decode()


def encoded_script(script: Script) -> Script:
    """Return the script with all its values encoded."""

    def all_of(values: Sequence[Any]) -> tuple[str, ...]:
        return tuple(encoded(value, "the script of a test") for value in values)

    return Script(
        replies=[msgspec.structs.replace(reply, values=all_of(reply.values)) for reply in script.replies],
        signals=[msgspec.structs.replace(signal, value=all_of([signal.value])[0]) for signal in script.signals],
        sendings=[msgspec.structs.replace(sending, items=all_of(sending.items)) for sending in script.sendings],
    )


def _require_importable(flow: Workflow[..., Any]) -> None:
    if "<locals>" in flow.source.qualname:
        raise BodyNotFound(flow.name, "the workflow is defined inside a function")
    for name, node_type in flow.types.items():
        if name not in BUILT_IN:
            check_importable(node_type)


def _stand_in(stub: Stub) -> StandIn:
    name = stub.node_type.name
    if stub.results is not None:
        results = tuple(_result(name, result) for result in stub.results)
        return StandIn(node_type=name, declared=stub.node_type.source, body=None, results=results)
    body = source_of(stub.body)
    if "<" in body.qualname or closure_of(stub.body):
        raise BodyNotFound(
            name, "its stub is defined inside a function: put it at the top of a module, or use returns=…"
        )
    return StandIn(node_type=name, declared=stub.node_type.source, body=body, results=())


def _result(name: str, result: Any) -> Returned | Raised:
    if isinstance(result, BaseException):
        _require_raisable(name, result)
        return Raised(source=source_of(type(result)), message=str(result))
    return Returned(value=encoded(result, f"what the stub of {name!r} returns"))


def _require_raisable(name: str, error: BaseException) -> None:
    """Raise BodyNotFound unless another process can make an exception again from its class and its message."""
    cls = type(error)
    if "<locals>" in cls.__qualname__:
        raise BodyNotFound(
            name,
            f"its stub raises {cls.__name__}, which is defined inside a function: put the class at the top of a module",
        )
    try:
        cls(str(error))
    except Exception as problem:  # its own __init__ may raise anything
        raise BodyNotFound(
            name,
            f"its stub raises {cls.__name__}, which cannot be made again from its message ({problem}): put a function that "
            "raises it at the top of a module, and give that",
        ) from None


def _play(part: Part) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(  # noqa: S603 -- this interpreter, with a module of ours
        [sys.executable, "-m", CHILD],
        input=msgspec.json.encode(part),
        capture_output=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    sys.stdout.write(done.stdout.decode(errors="replace"))
    return done


def _require_success(done: subprocess.CompletedProcess[bytes]) -> None:
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise AssertionError(f"the process that runs the workflow has ended with {done.returncode}:\n\n{said}")


async def _time_of_last_event(part: Part) -> float:
    """Return up to when the first process has come, in the time of its loop."""
    async with Engine(part.url, recover=False) as engine:
        dump = await engine.store.dump_run(part.run_id)
    return BEGIN_SECONDS if dump is None else (dump.events[-1].at - START_MICROS) / 1_000_000


async def _seen(part: Part) -> Seen:
    folder = Path(part.folder)
    async with Engine(part.url, recover=False, blobs=(folder / "blobs").as_uri()) as engine:
        return await look(await engine.get(part.run_id), engine.store, Ledger(folder / "ledger"))
