"""Workflows by name: what a reference means, what an alias may point at, and which version a run gets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perdure.graph.aliases import Reference, checked_targets, parse_reference, version_for


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("digest", Reference(workflow="digest")),
        ("digest@latest", Reference(workflow="digest", alias="latest")),
        ("digest@stable-2.x", Reference(workflow="digest", alias="stable-2.x")),
        ("digest@3", Reference(workflow="digest", version=3)),
        ("digest@007", Reference(workflow="digest", version=7)),
        ("at@home@stable", Reference(workflow="at@home", alias="stable")),
        ("two words@3", Reference(workflow="two words", version=3)),
    ],
)
def test_a_name_with_a_version_or_an_alias_is_read(text: str, means: Reference) -> None:
    assert parse_reference(text) == means


@pytest.mark.parametrize(
    "text", ["", "@", "@stable", "digest@", "digest@3a", "digest@a b", "digest@é", f"d@{'x' * 101}"]
)
def test_what_names_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no"):
        parse_reference(text)


@pytest.mark.parametrize(
    "to",
    [0, -1, True, "3", None, 2.0, {}, {3: 0}, {3: -1}, {3: 1.5}, {3: True}, {"3": 1}, dict.fromkeys(range(1, 102), 1)],
)
def test_an_alias_points_at_versions_with_whole_weights(to: Any) -> None:
    with pytest.raises(ValueError, match="version"):
        checked_targets(to)


def test_weights_are_kept_by_version() -> None:
    assert checked_targets(3) == {3: 1}
    assert list(checked_targets({4: 10, 3: 90}).items()) == [(3, 90), (4, 10)]


def test_a_run_gets_the_same_version_whenever_it_is_asked() -> None:
    targets = {3: 1, 4: 1, 7: 1}
    first = [version_for(f"run-{number}", "digest", "stable", targets) for number in range(200)]

    assert first == [version_for(f"run-{number}", "digest", "stable", {7: 1, 4: 1, 3: 1}) for number in range(200)]
    assert set(first) == {3, 4, 7}
    assert first != [version_for(f"run-{number}", "digest", "canary", targets) for number in range(200)]


@pytest.mark.parametrize("targets", [{1: 9, 2: 1}, {1: 90, 2: 10}, {1: 1, 5: 2, 9: 7}, {1: 999_999, 2: 1_000_000}])
def test_many_runs_get_versions_in_proportion_to_the_weights(targets: dict[int, int]) -> None:
    runs = 20_000
    got = Counter(version_for(f"run-{number}", "digest", "stable", targets) for number in range(runs))

    for version, weight in targets.items():
        share = weight / sum(targets.values())
        assert abs(got[version] - runs * share) < 4.5 * (runs * share * (1 - share)) ** 0.5


def test_more_weight_takes_runs_from_others_and_gives_none_back() -> None:
    ids = [f"run-{number}" for number in range(2_000)]
    before = {run_id for run_id in ids if version_for(run_id, "digest", "stable", {3: 90, 4: 10}) == 4}
    after = {run_id for run_id in ids if version_for(run_id, "digest", "stable", {3: 50, 4: 50}) == 4}

    assert before < after
