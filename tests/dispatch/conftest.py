"""A dispatch for each test, and no thread or process left behind by any."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.dispatch.local import LocalDispatch
from tests.dispatch.desk import Desk


@pytest.fixture
async def dispatch() -> AsyncIterator[LocalDispatch]:
    dispatch = LocalDispatch(threads=2, processes=2, process_grace_seconds=2.0)
    yield dispatch
    await dispatch.close()


@pytest.fixture
async def desk() -> Desk:
    return Desk(token="hünter2")
