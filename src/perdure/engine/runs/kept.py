"""A run as something that is kept: exported, tagged, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from perdure.dispatch.failure import storable
from perdure.engine.keeping.deleting import delete_run
from perdure.engine.keeping.exporting import Exported
from perdure.engine.runs.tags import checked_tags
from perdure.engine.runs.told import Told
from perdure.engine.stored.absence import look_for
from perdure.errors import RunNotFound


class Kept(Told):
    """The side of a run that has to do with where it is kept."""

    async def export(self, path: str | PathLike[str]) -> Exported:
        """Write the run whole into a file, as `engine.export` does."""
        return await self._engine.export(self.run_id, path)

    async def tag(self, *tags: str) -> None:
        """Give the run tags, to find it by; those that it has stay. Raises ValueError for what is no tag."""
        store, checked = self._engine.store, checked_tags(tags)

        async def tag() -> bool | None:
            try:
                await store.tag_run(self.run_id, checked)
            except RunNotFound:
                return None
            return True

        await look_for(store, self.run_id, tag)

    async def untag(self, *tags: str) -> None:
        """Take tags from the run, if it has them."""
        await self._engine.store.untag_run(self.run_id, checked_tags(tags))

    async def tags(self) -> Sequence[str]:
        """Return the tags that the run has, sorted."""
        return await self._engine.store.load_tags(self.run_id)

    async def delete(self, *, by: str = "", reason: str = "") -> bool:
        """Delete the values of a run that has ended: what it was given, what its nodes gave, what it was told and asked, its log
        lines and its references to blobs. What happened stays, and that this was done is recorded. False if it was done before.

        Raises RunNotEnded for a run that has not ended.
        """
        engine = self._engine
        return await delete_run(
            engine.store,
            engine.values.blobs,
            self.run_id,
            by=storable(by),
            reason=storable(reason),
            clock=engine.clock,
        )
