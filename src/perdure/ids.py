"""Identities: the types that keep them apart, and the only source of randomness."""

from __future__ import annotations

import hashlib
import random
import re
import sys
from pathlib import PurePath
from typing import Any, NewType, Protocol

import uuid_utils

RunId = NewType("RunId", str)
NodeId = NewType("NodeId", str)
BranchId = NewType("BranchId", int)
EngineId = NewType("EngineId", str)
EventId = NewType("EventId", str)
CommandId = NewType("CommandId", str)
Seq = NewType("Seq", int)
Epoch = NewType("Epoch", int)

ROOT_BRANCH = BranchId(1)
DEFAULT_PROJECT = "default"
MOST_RUN_ID_CHARS = 512
"""How long the id may be that somebody chooses for a run."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
# The category Cc of Unicode: a line that holds one is no line any more, and a terminal obeys it.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A child process that multiprocessing has spawned knows its parent's script as __mp_main__.
_MAIN = ("__main__", "__mp_main__")


def new_id() -> str:
    """Return a fresh identity that sorts by the time it was made."""
    return str(uuid_utils.uuid7())


class Chance(Protocol):
    """Where an engine gets its identities and its jitter from. A simulation brings a seeded one."""

    def new_id(self) -> str:
        """Return a fresh identity that sorts by the time it was made."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """Return a number between `low` and `high`."""
        ...


class SystemChance:
    """The real one."""

    new_id = staticmethod(new_id)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)  # noqa: S311 -- spreads retries and polls, hides nothing


def digest_of(content: bytes) -> str:
    """Return the identity of `content`: equal for equal bytes, in every process and release."""
    return hashlib.sha256(content).hexdigest()


def is_digest(text: str) -> bool:
    """Return whether a text has the form of what `digest_of` returns: nothing else is ever part of a path."""
    return _DIGEST.fullmatch(text) is not None


def is_text(text: str) -> bool:
    """Return whether a text consists of characters, which every database can hold: half a surrogate pair is none."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def why_no_run_id(text: str) -> str | None:
    """Return why a run that is to begin cannot be called so; None if it can. What can be stored at all is another question."""
    if len(text) > MOST_RUN_ID_CHARS:
        return f"it has {len(text)} characters, and {MOST_RUN_ID_CHARS} are the most"
    if (found := _CONTROL.search(text)) is not None:
        return f"it has a control character ({found[0]!r})"
    if text.startswith("-"):
        return "it begins with '-', and commands would take it for an option"
    return None


def type_name(declared: Any) -> str:
    """Return the name under which a class or function is stored: `module.qualname`.

    A script has the name of its file, whether it is run, imported or loaded by its path, so that a run that one process
    has started that way can be continued by another.
    """
    return f"{_module_name(declared.__module__)}.{declared.__qualname__}"


def _module_name(name: str) -> str:
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if name in _MAIN and spec is not None and spec.name not in _MAIN:  # python -m package.module
        return str(spec.name)
    file = PurePath(getattr(module, "__file__", None) or "")
    return name if "." in name or file.suffix != ".py" or file.stem == "__init__" else file.stem
