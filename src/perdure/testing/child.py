"""A process that plays a part of a test, and may be killed at a commit: see `perdure.testing.kills`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec

from perdure.dispatch.imports import find_node_type
from perdure.errors import BodyNotFound
from perdure.graph.declare import Workflow, declared_workflows
from perdure.graph.source import Source
from perdure.store.codecs import process_codecs
from perdure.testing.crashes import CrashKind, CrashPlan
from perdure.testing.kills import COMMITS, Part, Raised, Returned, StandIn
from perdure.testing.process import Process
from perdure.testing.script import Actor, Script
from perdure.testing.stage import Stage, needs_somebody
from perdure.testing.stubs import Stub, stub_in_turn
from perdure.testing.world import attend


class MortalProcess(Process):
    """This very process."""

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Play the part that comes on standard input."""
    part = msgspec.json.decode(sys.stdin.buffer.read(), type=Part)
    sys.path[:] = part.path
    load(part.source)
    flow = declared_workflows().get(part.workflow)
    if flow is None:
        raise BodyNotFound(part.workflow, f"module {part.source.module!r} does not declare it when it is imported")
    stand_ins = [put_up(stand_in) for stand_in in part.stand_ins]
    play(part, flow)
    for stub in stand_ins:
        stub.remove()


def play(part: Part, flow: Workflow[..., Any]) -> None:
    """Start or take up the run, and go on until it rests."""
    plan = None if part.killed_at is None else CrashPlan(at=part.killed_at, kind=CrashKind.BEFORE)
    folder = Path(part.folder)
    stage = Stage(
        part.url,
        folder,
        process=lambda: MortalProcess("child"),
        plan=plan,
        begin_seconds=part.begin_seconds,
    )
    inputs = {name: decoded(value, flow.input_types[name]) for name, value in part.inputs.items()}
    actor = Actor(decoded_script(part.script))

    async def go_on() -> None:
        run = await stage.engine.start(flow, run_id=part.run_id, inputs=inputs)
        await attend(stage.engine, run, actor, needs_somebody)
        (folder / COMMITS).write_text(str(stage.door.boundaries))

    stage.call(go_on())
    stage.close()


def put_up(stand_in: StandIn) -> Stub:
    """Put up a stub of the test's."""
    node_type = find_node_type(stand_in.node_type, stand_in.declared)
    if stand_in.body is not None:
        return Stub(node_type, find(stand_in.body))
    return stub_in_turn(node_type, [_result(result) for result in stand_in.results])


def load(source: Source) -> Any:
    """Return the module that a source names: by its name, if that leads to its file, else from the file."""
    if source.module in sys.modules:
        return sys.modules[source.module]
    if source.file is None or _leads_to(source.module, source.file):
        return importlib.import_module(source.module)
    spec = spec_from_file_location(source.module, source.file)
    if spec is None or spec.loader is None:
        raise BodyNotFound(source.qualname, f"{source.file} is not a Python file")
    module = sys.modules[source.module] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find(source: Source) -> Any:
    """Return what a source names."""
    found: Any = load(source)
    for name in source.qualname.split("."):
        found = getattr(found, name)
    return found


def decoded(value: str, annotation: Any = Any) -> Any:
    return process_codecs().decode(value.encode(), annotation)


def decoded_script(script: Script) -> Script:
    """Return the script with all its values as they were."""
    return Script(
        replies=[msgspec.structs.replace(reply, values=tuple(map(decoded, reply.values))) for reply in script.replies],
        signals=[msgspec.structs.replace(signal, value=decoded(signal.value)) for signal in script.signals],
        sendings=[
            msgspec.structs.replace(sending, items=tuple(map(decoded, sending.items))) for sending in script.sendings
        ],
    )


def _result(result: Returned | Raised) -> Any:
    match result:
        case Returned(value=value):
            return decoded(value)
        case Raised(source=source, message=message):
            return find(source)(message)


def _leads_to(module: str, file: str) -> bool:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # its package is not there
        return False
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)


if __name__ == "__main__":
    main()
