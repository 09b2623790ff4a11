"""Where a declaration stands, and the stable name that follows from it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import msgspec

# A child process that multiprocessing has spawned knows its parent's script as __mp_main__.
_MAIN = ("__main__", "__mp_main__")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The module, file and qualified name of a declared function or class.

    `module` is the name under which the module can be imported: of a script, the name of its file.
    """

    module: str
    file: str | None
    qualname: str

    @property
    def name(self) -> str:
        """The name that a declaration has in graphs, however its module was loaded."""
        return f"{self.module}.{self.qualname}"


def source_of(declared: Callable[..., Any]) -> Source:
    """Return where a function or class was written."""
    namespace = _namespace_of(declared)
    file = namespace.get("__file__")
    return Source(
        module=_module_name(namespace, declared.__module__, file),
        file=file if isinstance(file, str) else None,
        qualname=declared.__qualname__,
    )


def closure_of(declared: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names that a function takes from the call of the function around it."""
    unwrapped = inspect.unwrap(declared)
    return unwrapped.__code__.co_freevars if inspect.isfunction(unwrapped) else ()


def _namespace_of(declared: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals of the module. It may not be among the loaded ones while its own code still runs."""
    unwrapped = inspect.unwrap(declared)
    if inspect.isfunction(unwrapped):
        return unwrapped.__globals__
    module = sys.modules.get(declared.__module__)
    if module is not None:
        return vars(module)
    methods = [member for member in vars(declared).values() if inspect.isfunction(member)]
    return methods[0].__globals__ if methods else {}


def _module_name(namespace: dict[str, Any], module: str, file: Any) -> str:
    spec = namespace.get("__spec__")
    if module in _MAIN and spec is not None and spec.name not in _MAIN:  # python -m package.module
        return str(spec.name)
    if "." in module or not isinstance(file, str):
        return module
    # A script has the name of its file, whether it is run, imported or loaded by its path.
    stem = file.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    return module if stem in ("", "__init__") else stem
