"""The pytest plugin of perdure: the fixture `perdure`, with which tests run workflows.

    def test_a_page_is_published(perdure):
        run = perdure.run(digest, url="…")
        assert run.output == "…"

It stands beside the package, not in it, so that pytest loads next to nothing where no test asks for it. Everything that the
fixture offers is in `perdure.testing.rehearsal`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.testing import Rehearsal

OPTION = "--perdure-store"
VARIABLE = "PERDURE_TEST_STORE"
POSTGRES = "postgresql"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("perdure").addoption(
        OPTION,
        metavar="URL",
        help=f"where workflows under test are kept: the URL of a PostgreSQL database, or sqlite ({VARIABLE}, else sqlite)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "perdure(store): keep the workflows under test in sqlite, in postgresql, or in the database of a URL"
    )


@pytest.fixture
def perdure(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rehearsal]:
    """Run workflows in virtual time, in a store of this test's own."""
    from perdure.testing import Rehearsal

    with Rehearsal(tmp_path / "perdure", store=_store(request)) as rehearsal:
        yield rehearsal


def _store(request: pytest.FixtureRequest) -> str:
    given = request.config.getoption(OPTION) or os.environ.get(VARIABLE) or "sqlite"
    marker = request.node.get_closest_marker("perdure")
    wanted = given if marker is None else _marked(given, *marker.args, **marker.kwargs)
    if wanted == POSTGRES:
        if not given.startswith("postgres"):
            pytest.skip(f"it needs a PostgreSQL: name one with {OPTION}=postgresql://… or in {VARIABLE}")
        return given
    return wanted


def _marked(given: str, store: str | None = None) -> str:
    """Return what a marker says. Its arguments are those of this function."""
    return given if store is None else store
