"""A run as something that is kept: exported."""

from __future__ import annotations

from os import PathLike

from perdure.engine.exporting import Exported
from perdure.engine.told import Told


class Kept(Told):
    """The side of a run that has to do with where it is kept."""

    async def export(self, path: str | PathLike[str]) -> Exported:
        """Write the run whole into a file, as `engine.export` does."""
        return await self._engine.export(self.run_id, path)
