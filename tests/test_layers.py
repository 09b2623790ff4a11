"""Imports go down the steps of the layout, never up and never sideways.

The rules are checked on the source of every module there is, and the checker itself on planted violations.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

STEPS = (
    ("errors", "ids", "clock"),
    ("graph",),
    ("journal",),
    ("dispatch", "store"),
    ("engine", "nodes"),
    ("server", "client"),
    ("cli",),
    ("__main__",),
)
"""The parts of the package from the lowest step to the highest. A part that appears gets its place here."""

PARTS = frozenset({"testing", *(part for step in STEPS for part in step)})

ENGINE_STEPS = (
    ("attempts", "settings", "garbage"),
    ("recording",),
    ("streams", "stored"),
    ("driving",),
    ("owning", "starting"),
    ("keeping",),
    ("runs",),
    ("engine",),
    ("inspect", "sync"),
    ("triggers",),
)
"""The folders and modules of the engine, in the same way. Types alone may be taken from above: a run knows its engine."""

PURE = ("graph", "journal")
IMPURE_IMPORTS = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "select", "selectors", "signal", "subprocess", "threading"),
        *("http", "io", "logging", "os", "pathlib", "shutil", "socket", "ssl", "tempfile", "urllib.request"),
        *("random", "secrets", "time", "perdure.clock.Clock", "perdure.clock.SystemClock", "perdure.ids.new_id"),
        *("apsw", "asyncpg", "obstore", "redis", "sqlite3"),
    }
)
IMPURE_CALLS = frozenset({"open", "input", "print", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"})

SEAMS = {
    "store": ("base", "blobs", "bundles", "codecs", "files", "opening", "records", "shapes", "transitions"),
    "dispatch": ("assets", "base", "child", "failure", "opening", "printing", "waits"),
}
"""What the engine may know of the parts that have several implementations."""
IMPLEMENTATIONS = {"store": ("sqlite", "postgres"), "dispatch": ("local", "threads", "processes", "redis")}
"""What only its own part may import; the command line also starts workers."""

HOMES = {
    "apsw": "perdure.store.sqlite",
    "sqlite3": "perdure.store.sqlite",
    "asyncpg": "perdure.store.postgres",
    "obstore": "perdure.store.blobs",
    "redis": "perdure.dispatch.redis",
    "hiredis": "perdure.dispatch.redis",
    "fastapi": "perdure.server",
    "starlette": "perdure.server",
    "uvicorn": "perdure.server",
    "pydantic": "perdure.server",
    "click": "perdure.cli",
    "rich": "perdure.cli",
    "yaml": "perdure.graph.forms",
    "numpy": None,
}
"""Where a package that is costly or optional may be imported when a module is loaded; elsewhere, in functions only."""

NEVER_AT_IMPORT = frozenset({"asyncpg", "fastapi", "numpy", "obstore", "pydantic", "redis", "rich", "yaml"})


@dataclass(frozen=True, kw_only=True)
class Import:
    """One name that a module imports, written out in full: `from a import b` is `a.b`."""

    module: str
    target: str
    line: int
    when_loaded: bool
    for_types: bool
    """Whether only type checkers see it."""


def test_every_import_goes_down():
    assert list(violations(read_package())) == []


def test_importing_perdure_loads_nothing_costly():
    command = [sys.executable, "-X", "importtime", "-c", "import perdure"]

    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE)}, check=True)

    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "perdure" in loaded
    assert loaded & NEVER_AT_IMPORT == set()


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("graph.plan", "import perdure.store.base", "graph is below store"),
        ("graph.plan", "from perdure import engine", "graph is below engine"),
        ("graph.plan", "from ..store import base", "graph is below store"),
        ("graph.plan", "def f():\n    from perdure.journal.events import Event", "graph is below journal"),
        (
            "graph.plan",
            "if TYPE_CHECKING:\n    from perdure.engine.driving.driver import Driver",
            "graph is below engine",
        ),
        ("errors", "from perdure.ids import RunId", "errors is beside ids"),
        ("dispatch.local", "from perdure.store.base import Store", "dispatch is beside store"),
        ("engine.engine", "from perdure import workflow", "the package itself is above engine"),
        ("engine.driving.driver", "from perdure.engine.runs.run import Run", "driving is below runs in the engine"),
        ("engine.streams.inbox", "import perdure.engine.stored.past", "streams is beside stored in the engine"),
        ("engine.errands.errand", "import json", "errands has no step in the engine"),
        ("errand", "import json", "errand has no step"),
        ("graph.plan", "import asyncio", "pure, and asyncio is not"),
        ("journal.decide", "from os import path", "pure, and os is not"),
        ("journal.decide", "import urllib.request", "pure, and urllib.request is not"),
        ("journal.decide", "from perdure.clock import SystemClock", "pure, and perdure.clock.SystemClock is not"),
        ("journal.decide", "def f():\n    return datetime.now(UTC)", "pure, and datetime.now() is not"),
        ("graph.forms", "text = open('graph.json').read()", "pure, and open() is not"),
        ("engine.engine", "from perdure.store.rows import read", "the engine knows only"),
        ("engine.engine", "from perdure.dispatch import threads", "the engine knows only"),
        ("server.app", "from perdure.store.sqlite.store import open_sqlite", "only store may import"),
        ("__init__", "from perdure.dispatch.redis import RedisDispatch", "only dispatch may import"),
        ("cli.run", "from perdure.testing import crash_point", "nothing shipped imports testing"),
        ("__init__", "import perdure.testing", "nothing shipped imports testing"),
        ("store.codecs.arrays", "import numpy as np", "loads numpy"),
        ("store.rows", "try:\n    import asyncpg.pool\nexcept ImportError:\n    pass", "loads asyncpg"),
        ("engine.engine", "class Engine:\n    import rich.console", "loads rich"),
    ],
)
def test_a_violation_is_found(module: str, source: str, complaint: str):
    found = list(violations(package_with(module, source)))

    assert len(found) == 1
    assert complaint in found[0]
    assert found[0].startswith(f"perdure.{module}".removesuffix(".__init__"))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("__init__", "from perdure.engine.engine import Engine\nfrom perdure.graph.declare import node"),
        ("cli.run", "from perdure.dispatch.redis.worker import work\nimport rich"),
        ("engine.engine", "from perdure.store.base import Store\nfrom perdure.store.opening import open_store"),
        ("engine.engine", "from perdure.store import open_store"),
        ("engine.driving.actor", "from perdure.engine.driving.driver import Driver\nfrom perdure.clock import Clock"),
        ("engine.runs.run", "if TYPE_CHECKING:\n    from perdure.engine.engine import Engine"),
        ("journal.diagnose", "from perdure.clock import from_micros\nfrom datetime import datetime"),
        ("store.codecs.arrays", "if TYPE_CHECKING:\n    import numpy\ndef f():\n    import numpy"),
        ("store.postgres.pool", "import asyncpg"),
        ("testing.crash", "import perdure\nfrom perdure.store.sqlite.store import open_sqlite\nimport numpy"),
    ],
)
def test_what_the_layout_allows_is_allowed(module: str, source: str):
    assert list(violations(package_with(module, source))) == []


def read_package() -> dict[str, str]:
    """Return the source of every module of the package by its dotted name; a package's own has `__init__`."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted((SOURCE / "perdure").rglob("*.py"))
    }


def package_with(module: str, source: str) -> dict[str, str]:
    """Return a package of one module with `source`, and two empty ones."""
    return {"perdure.store.base": "", "perdure.store.rows": "", f"perdure.{module}": source}


def violations(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with a package, given the source of each module."""
    modules = {name.removesuffix(".__init__") for name in sources}
    for name, source in sources.items():
        module, tree = name.removesuffix(".__init__"), ast.parse(source)
        part = part_of(module)
        if part == "testing":
            continue
        if part and part not in PARTS:
            yield f"{module}: {part} has no step: give it one in STEPS and in the layout"
            continue
        if part == "engine" and (inner := inner_part_of(module)) and not any(inner in step for step in ENGINE_STEPS):
            yield f"{module}: {inner} has no step in the engine: give it one in ENGINE_STEPS and in ARCHITECTURE.md"
            continue
        for item in imports_of(module, tree, package=name.rpartition(".")[0]):
            if complaint := what_is_wrong_with(item, modules):
                yield f"{module}:{item.line} imports {item.target}: {complaint}"
        if part in PURE:
            yield from impure_calls(module, tree)


def what_is_wrong_with(item: Import, modules: Set[str]) -> str | None:
    """Return the complaint about one import, if there is one. `modules` are all that the package has."""
    importer = part_of(item.module)
    if not is_within(item.target, "perdure"):
        return wrong_package(item, importer)
    return (
        wrong_direction(importer, part_of(item.target))
        or wrong_direction_in_engine(item)
        or wrong_seam(importer, item.target, modules)
        or (impurity(item.target) if importer in PURE else None)
    )


def wrong_direction(importer: str, imported: str) -> str | None:
    if imported == "testing":
        return "nothing shipped imports testing"
    if importer in ("", imported):
        return None
    if imported not in PARTS:
        if importer == "cli":  # it stands where a user stands, and its demonstration is a user's program
            return None
        return f"the package itself is above {importer}: import from the module that has the name"
    return misstep(importer, imported, STEPS)


def wrong_direction_in_engine(item: Import) -> str | None:
    importer, imported = inner_part_of(item.module), inner_part_of(item.target)
    if item.for_types or importer in ("", imported) or not imported:
        return None
    complaint = misstep(importer, imported, ENGINE_STEPS)
    return complaint and f"{complaint} in the engine"


def misstep(importer: str, imported: str, steps: Sequence[Sequence[str]]) -> str | None:
    height = {part: index for index, step in enumerate(steps) for part in step}
    if height[importer] < height[imported]:
        return f"{importer} is below {imported}"
    if height[importer] == height[imported]:
        return f"{importer} is beside {imported}"
    return None


def wrong_seam(importer: str, target: str, modules: Set[str]) -> str | None:
    part, _, inner = target.removeprefix("perdure.").partition(".")
    name = inner.partition(".")[0]
    if importer == part:
        return None
    is_implementation = name in IMPLEMENTATIONS.get(part, ())
    is_module = is_implementation or any(is_within(module, f"perdure.{part}.{name}") for module in modules)
    if importer == "engine" and is_module and name not in SEAMS.get(part, (name,)):
        return f"the engine knows only {', '.join(SEAMS[part])} of {part}"
    starts_workers = (importer, part) == ("cli", "dispatch")
    if is_implementation and not starts_workers:
        return f"only {part} may import its implementations"
    return None


def wrong_package(item: Import, importer: str) -> str | None:
    if importer in PURE and (complaint := impurity(item.target)):
        return complaint
    package = item.target.partition(".")[0]
    if not item.when_loaded or package not in HOMES:
        return None
    home = HOMES[package]
    if home is not None and is_within(item.module, home):
        return None
    return f"loads {package} with the module; import it inside the function that needs it"


def impurity(target: str) -> str | None:
    found = next((name for name in IMPURE_IMPORTS if is_within(target, name)), None)
    return f"{' and '.join(PURE)} are pure, and {found} is not" if found else None


def impure_calls(module: str, tree: ast.Module) -> Iterator[str]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (name := ast.unparse(call.func)) in IMPURE_CALLS:
            yield f"{module}:{call.lineno}: {' and '.join(PURE)} are pure, and {name}() is not"


def imports_of(module: str, tree: ast.Module, *, package: str) -> Iterator[Import]:
    """Yield every import of a module, wherever it stands. One that only type checkers see is not made when loaded."""
    pending: list[tuple[ast.AST, bool, bool]] = [(tree, True, False)]
    while pending:
        node, when_loaded, for_types = pending.pop()
        for target in targets_of(node, package):
            line = getattr(node, "lineno", 0)
            yield Import(module=module, target=target, line=line, when_loaded=when_loaded, for_types=for_types)
        inside = when_loaded and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        unseen = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else []
        pending.extend(
            (child, inside and child not in unseen, for_types or child in unseen)
            for child in ast.iter_child_nodes(node)
        )


def targets_of(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=source, names=names, level=level):
            above = package.split(".")[: package.count(".") + 2 - level] if level else []
            return [".".join([*above, *([source] if source else []), name.name]) for name in names]
        case _:
            return []


def is_within(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def part_of(module: str) -> str:
    """Return the part a module belongs to; the package's own `__init__` belongs to none."""
    return module.split(".")[1] if "." in module else ""


def inner_part_of(module: str) -> str:
    """Return the folder or module of the engine that a module is in or is; none for the engine as a whole, and all else."""
    return module.split(".")[2] if module.startswith("perdure.engine.") else ""
