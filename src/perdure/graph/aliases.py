"""Workflows by name: `digest@3` is a version, `digest@stable` an alias, `digest` alone its alias `latest`.

An alias points at one version, or at several with weights. Which of them a run gets depends on the run's id and on nothing else
that could be otherwise the next time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from perdure.ids import digest_of

LATEST = "latest"
"""The alias that every workflow has: the newest version, unless somebody has pinned it."""
MAX_TARGETS = 100
MAX_WEIGHT = 1_000_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
_VERSION = re.compile(r"[0-9]{1,18}")
_RANGE = 1 << 64


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow as it is named, with a version or an alias."""

    workflow: str
    alias: str = LATEST
    version: int | None = None
    """If there is one, the alias means nothing."""


def parse_reference(text: str) -> Reference:
    """Read `NAME`, `NAME@VERSION` or `NAME@ALIAS`. Raises ValueError if it is none of them."""
    name, at, which = text.rpartition("@")
    if not at:
        name, which = text, LATEST
    if not name:
        raise ValueError(f"{text!r} names no workflow: write NAME, NAME@VERSION or NAME@ALIAS")
    if _VERSION.fullmatch(which):
        return Reference(workflow=name, version=int(which))
    if (problem := alias_problem(which)) is not None:
        raise ValueError(f"{text!r} names no version: {problem}")
    return Reference(workflow=name, alias=which)


def alias_problem(name: object) -> str | None:
    """Return why something cannot be the name of an alias; None if it can."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return None
    return f"{name!r} is no alias: it begins with a letter, and letters, digits, '.', '_' and '-' follow, 100 at most"


def checked_targets(to: Any) -> dict[int, int]:
    """Return weights by version, as an alias is told to point: at one version, or at several. Raises ValueError."""
    targets: dict[Any, Any] = dict(cast("Mapping[Any, Any]", to)) if isinstance(to, Mapping) else {to: 1}
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise ValueError(f"an alias points at 1 to {MAX_TARGETS} versions, not at {len(targets)}")
    for version, weight in targets.items():
        if not _is_number(version, 2**63 - 1):
            raise ValueError(f"{version!r} is no version: they are numbered from 1")
        if not _is_number(weight, MAX_WEIGHT):
            raise ValueError(
                f"{weight!r} is no weight for version {version}: give a whole number from 1 to {MAX_WEIGHT}"
            )
    return {version: targets[version] for version in sorted(targets)}


def version_for(run_id: str, workflow: str, alias: str, targets: Mapping[int, int]) -> int:
    """Return the version that a run gets: the same whenever it is asked, and over many runs in proportion to the weights."""
    if len(targets) == 1:
        return next(iter(targets))
    point = int(digest_of("\x00".join((workflow, alias, run_id)).encode())[:16], 16)
    left = point * sum(targets.values()) // _RANGE
    for version in sorted(targets):
        left -= targets[version]
        if left < 0:
            return version
    raise AssertionError("the point is below the sum of all weights")


def _is_number(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
