"""Loading what is to run: a Python file with a workflow, a graph in JSON or YAML, and the places of node types.

A file is loaded under its own name, without its extension, so that node types are called the same as when the file is
run by Python, and what stands behind `if __name__ == "__main__":` is left alone.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from perdure.dispatch.imports import importing
from perdure.errors import GraphError, PerdureError, ProgramError, TypesMissing
from perdure.graph.calls import did_you_mean
from perdure.graph.declare import Workflow, declared_types, declared_workflows
from perdure.graph.forms import load_graph
from perdure.graph.model import Graph
from perdure.graph.starts import started_by
from perdure.graph.unheeded import check_given
from perdure.journal.states import RunState
from perdure.store.shapes import WorkflowVersion

Program = Workflow[..., Any] | Graph

_GRAPHS = (".json", ".yaml", ".yml")
_OWN_FOLDER = Path(__file__).parents[1]
_STANDARD_LIBRARY = Path(os.__file__).parent


def load_program(target: str, imports: Iterable[str]) -> Program:
    """Return the workflow that `FILE[:workflow]` means, with the node types of `imports` at hand."""
    programs = load_programs(target, imports)
    if len(programs) > 1:
        names = [program.name for program in programs]
        raise ProgramError(
            f"{target} has {len(names)} workflows: {', '.join(names)}. Name the one that you mean: {target}:{names[0]}"
        )
    return programs[0]


def load_programs(target: str, imports: Iterable[str]) -> list[Program]:
    """Return the workflow that `FILE:workflow` means, or all of those that the file declares: at least one."""
    path, name = _split(target)
    if not path.is_file() and _is_module(str(path)):
        load_places(imports)
        return list(_choose(_import_module(str(path), Path.cwd()), path, name))
    if not path.is_file():
        raise ProgramError(
            f"{str(path)!r} is a folder. Name a file in it." if path.is_dir() else f"There is no file {str(path)!r}."
        )
    load_places(imports)
    if path.suffix == ".py":
        return list(_choose(load_file(path), path, name))
    if path.suffix in _GRAPHS:
        return [_read_graph(path, name)]
    raise ProgramError(f"{path} is neither a Python file (.py) nor a graph ({', '.join(_GRAPHS)}).")


def require_valid(program: Program) -> Graph:
    """Return the graph of a program. Raises GraphError, with all that is wrong, if it cannot run."""
    if isinstance(program, Graph):
        check_given(program, declared_types())
        return program
    return program.graph


def load_places(places: Iterable[str]) -> None:
    """Import modules and files for the node types that they declare."""
    for place in places:
        if place.endswith(".py") or os.sep in place:
            if not Path(place).is_file():
                raise ProgramError(f"There is no file {place!r} to import.")
            load_file(Path(place))
        else:
            _import_module(place, Path.cwd())


def load_types_of(run: RunState, graph: Graph, imports: Iterable[str]) -> None:
    """See to it that the node types of a run's graph are declared: from `imports`, else from where they came from.

    A database could name any file of this machine. So only what is below the current folder is loaded unasked.
    """
    _load_types(run.run_id, f"run {run.run_id!r}", run.source, graph, imports)


def load_types_for(run_id: str, version: WorkflowVersion, graph: Graph, imports: Iterable[str]) -> None:
    """As `load_types_of`, for a run that is to be started of a saved version."""
    whose = f"version {version.version} of workflow {version.workflow!r}"
    _load_types(run_id, whose, version.source, graph, imports)


def _load_types(run_id: str, whose: str, source: Mapping[str, str], graph: Graph, imports: Iterable[str]) -> None:
    load_places(imports)
    if imports or not (_missing(graph) or _missing_workflows(graph)):
        _require_types(run_id, graph, looked_in=list(imports))
        return
    modules = source.get("module", "").split("\n")
    files = source.get("file", "").split("\n")
    for module, file in zip(modules, files, strict=False):
        _load_source(whose, module, file)
    _require_types(run_id, graph, looked_in=[file or module for module, file in zip(modules, files, strict=False)])


def load_file(path: Path) -> ModuleType:
    """Import a Python file by its path. Raises ProgramError, with the place in the file, if that fails."""
    path = path.absolute()
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if _is_same_file(getattr(loaded, "__file__", None), path):
            return loaded
        raise ProgramError(
            f"{path.name} has the name of a module that is loaded already ({path.stem!r}). Give the file another name."
        )
    _prefer(path.parent)
    loader = _ScriptLoader(path.stem, str(path))
    spec = spec_from_loader(path.stem, loader, origin=str(path))
    assert spec is not None
    spec.has_location = True
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        with _explained(str(path)), importing(path.stem):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


class _ScriptLoader(SourceFileLoader):
    """Compiles the file each time, as Python does with a script: a cache could be older than the last edit."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _split(target: str) -> tuple[Path, str | None]:
    path, colon, name = target.rpartition(":")
    if not colon or Path(target).exists():
        return Path(target), None
    return Path(path), name


def _is_module(name: str) -> bool:
    """Whether this names a module inside a package, and not a file that is not there."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts) or f".{parts[-1]}" in (".py", *_GRAPHS):
        return False
    _prefer(Path.cwd())
    try:
        return find_spec(name) is not None
    except ImportError:  # a part of the way does not lead to a package
        return False


def _choose(module: ModuleType, path: Path, name: str | None) -> Sequence[Workflow[..., Any]]:
    """Return the workflow of this name, or those that the file declares, or else those that it has imported."""
    there: dict[str, Workflow[..., Any]] = {
        key: value for key, value in vars(module).items() if isinstance(value, Workflow)
    }
    if name is not None:
        return [_named(there, path, name)]
    distinct = list({id(value): value for value in there.values()}.values())
    if not distinct:
        raise ProgramError(f"{path} has no workflow. Decorate the function that describes it with @workflow.")
    file = Path(module.__file__ or path)
    return [value for value in distinct if _is_same_file(value.source.file, file)] or distinct


def _named(there: Mapping[str, Workflow[..., Any]], path: Path, name: str) -> Workflow[..., Any]:
    by_name = {value.name: value for value in there.values()} | dict(there)
    if name not in by_name:
        known = ", ".join(by_name) or "none"
        raise ProgramError(f"{path} has no workflow {name!r}{did_you_mean(name, by_name)}. It has: {known}.")
    return by_name[name]


def _read_graph(path: Path, name: str | None) -> Graph:
    try:
        graph = load_graph(path, declared_types())
    except GraphError as error:
        raise ProgramError(f"{path}: {error}") from error
    if name is not None and name != graph.name:
        raise ProgramError(f"{path} has no workflow {name!r}. It is the graph of {graph.name!r}.")
    return graph


def _load_source(whose: str, module: str, file: str) -> None:
    remedy = "Name the file or module that declares them: --import PLACE."
    if module.partition(".")[0] == "perdure":
        _import_module(module, Path.cwd())
        return
    if not file:
        raise ProgramError(f"The node types of {whose} were declared in no file ({module}). {remedy}")
    path = Path(file)
    if not path.is_file():
        raise ProgramError(f"The node types of {whose} were declared in {file}, which is gone. {remedy}")
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise ProgramError(
            f"The node types of {whose} were declared in {file}, which is not below the current folder. "
            f"Only such files are loaded unasked. {remedy}"
        )
    if "." in module or path.stem == "__init__":
        _import_module(module, _root_of(module, path))
    else:
        load_file(path)


def _root_of(module: str, path: Path) -> Path:
    """Return the folder from which the module can be imported by its name."""
    inner = path.parent if path.stem == "__init__" else path
    return inner.parents[module.count(".")]


def _import_module(name: str, folder: Path) -> ModuleType:
    _prefer(folder)
    with _explained(name), importing(name):
        return importlib.import_module(name)


def _missing(graph: Graph) -> list[str]:
    return sorted({node.type for node in graph.nodes} - declared_types().keys())


def _missing_workflows(graph: Graph) -> list[str]:
    return [name for name in started_by(graph) if name not in declared_workflows()]


def _require_types(run_id: str, graph: Graph, *, looked_in: Sequence[str]) -> None:
    missing, workflows = _missing(graph), _missing_workflows(graph)
    if missing or workflows:
        raise TypesMissing(run_id, missing, looked_in, workflows=workflows)


def _prefer(folder: Path) -> None:
    """Let imports look in this folder first, as Python does for the folder of a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _is_same_file(file: str | None, path: Path) -> bool:
    return file is not None and os.path.realpath(file) == os.path.realpath(path)


@contextmanager
def _explained(what: str) -> Generator[None]:
    """Turn whatever a user's module raises while it is imported into one error that shows the place."""
    try:
        yield
    except SystemExit as error:
        raise ProgramError(
            f"{what} ended the program while it was loaded ({_last_place(error)}). "
            "Put what it should do as a program under `if __name__ == '__main__':`."
        ) from error
    except Exception as error:  # a module runs any code when it is imported
        raise ProgramError(f"{what} cannot be loaded:\n\n{_told(error)}{_remedy(error)}") from error


def _remedy(error: Exception) -> str:
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "\nThe file is part of a package. Name it as a module, from the folder of the package: package.module"
    return ""


def _told(error: Exception) -> str:
    frames = list(_frames_of_user(error.__traceback__))
    if isinstance(error, PerdureError):
        # Raised by us, about what the user wrote: how we came there says nothing.
        while frames and Path(frames[-1].filename).is_relative_to(_STANDARD_LIBRARY):
            frames.pop()
    return "".join([*traceback.StackSummary.from_list(frames).format(), *traceback.format_exception_only(error)])


def _frames_of_user(trace: TracebackType | None) -> Iterable[traceback.FrameSummary]:
    """Leave out what the reader did not write: our own frames, and those of the import system."""
    for frame in traceback.extract_tb(trace):
        is_importing = frame.filename.startswith("<frozen") or frame.filename == importlib.__file__
        if not is_importing and not Path(frame.filename).is_relative_to(_OWN_FOLDER):
            yield frame


def _last_place(error: SystemExit) -> str:
    frames = list(_frames_of_user(error.__traceback__))
    return f"line {frames[-1].lineno} of {frames[-1].filename}" if frames else "it called sys.exit"
