"""Finding a node type in a process that did not declare it: its module is imported, by name or from its file.

A script is loaded under the name of its file, so that what stands behind `if __name__ == "__main__":` is not run again.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any

from perdure.errors import BodyNotFound, EngineStopped
from perdure.graph.declare import NodeType, declared_types
from perdure.graph.source import Source

_SCRIPT_NAMES = ("__main__", "__mp_main__")
_importing: list[str] = []


def check_importable(node_type: NodeType[..., Any]) -> None:
    """Raise BodyNotFound for a node type that no other process can find."""
    source = node_type.source
    if "<locals>" in source.qualname:
        raise BodyNotFound(node_type.name, "it is defined inside a function")
    if source.file is None and source.module in _SCRIPT_NAMES:
        raise BodyNotFound(node_type.name, "it was typed in, and is in no file")


def find_node_type(name: str, source: Source) -> NodeType[..., Any]:
    """Return the node type of this name, and import what declares it if need be. Raises BodyNotFound."""
    if name not in declared_types():
        with importing(source.module):
            _load(name, source)
    found = declared_types().get(name)
    if found is None:
        raise BodyNotFound(name, f"module {source.module!r} does not declare it when it is imported")
    return found


@contextmanager
def importing(module_name: str) -> Generator[None]:
    """While this is open, the module is being imported for what it declares, and must not start runs of its own."""
    _importing.append(module_name)
    try:
        yield
    finally:
        _importing.pop()


def refuse_while_importing() -> None:
    """Raise an error if a module that is imported for its node types is about to start runs of its own.

    Each child process would do the same again, without end.
    """
    if _importing:
        raise EngineStopped(
            f"Module {_importing[-1]!r} starts an engine while it is imported for its node types. "
            "Put what it should do as a program under `if __name__ == '__main__':`."
        )


def _load(name: str, source: Source) -> None:
    try:
        if source.file is None or _is_found_there(source.module, source.file):
            importlib.import_module(source.module)
            return
    except Exception as error:  # a module runs any code when it is imported
        raise BodyNotFound(name, f"importing {source.module!r} failed ({type(error).__name__}: {error})") from error
    if source.module in sys.modules:
        raise BodyNotFound(name, f"its file {source.file} has the name of another module: give it another")
    _load_file(name, source.module, source.file)


def _load_file(name: str, module_name: str, file: str) -> None:
    spec = spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise BodyNotFound(name, f"{file} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a module runs any code when it is imported
        del sys.modules[module_name]
        raise BodyNotFound(name, f"importing {file} failed ({type(error).__name__}: {error})") from error


def _is_found_there(module_name: str, file: str) -> bool:
    """Whether importing the module by its name gives this file."""
    try:
        spec = find_spec(module_name)
    except (ImportError, ValueError):  # its package is not there, or a module of that name has no spec
        return False
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)
