"""What every attempt's context has, whatever the colour of the body."""

from __future__ import annotations

import functools
from typing import Any

from perdure.dispatch.base import Services, Task
from perdure.dispatch.counting import Counting
from perdure.dispatch.places import Place
from perdure.graph.handles import BodyContext
from perdure.graph.surroundings import models_around


class Log:
    """The attempt's own log: a message and named facts beside it."""

    __slots__ = ("_place", "_services")

    def __init__(self, place: Place, services: Services) -> None:
        self._place = place
        self._services = services

    def debug(self, message: str, **fields: Any) -> None:
        self._write("debug", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._write("info", message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._write("warning", message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._write("error", message, fields)

    def _write(self, level: str, message: str, fields: dict[str, Any]) -> None:
        self._place.tell(self._services.log, level, message, fields)


class Attempt(BodyContext):
    """What both kinds of context have in common."""

    def __init__(self, task: Task, place: Place, counting: Counting) -> None:
        info = task.info
        self.run_id = info.run_id
        self.node_id = info.node_id
        self.attempt = info.attempt
        self.item = info.item
        """The position of the item for which the body is called, from 0; None if it is not called once per item."""
        self.idempotency_key = info.idempotency_key
        """The same for every attempt at this piece of work. Give it to whatever must not happen twice."""
        self.log = Log(place, task.services)
        self._task = task
        self._services = task.services
        self._place_of_all = place
        self._counting = counting

    @functools.cached_property
    def restored(self) -> Any:
        """The state that an earlier attempt has checkpointed last; None if there is none."""
        stored = self._task.info.restored
        return None if stored is None else self._task.decode(stored, models_around(self._task.node_type.fn))

    @property
    def cancelled(self) -> bool:
        """Whether the attempt is over, so that the body should end. A body in a thread is not interrupted: ask."""
        return self._place_of_all.is_over

    def progress(self, done: float, total: float | None = None) -> None:
        """Show how far the body has come. It is shown live and never stored."""
        self._place_of_all.tell(self._services.progress, done, total)

    def publish(self, value: Any) -> None:
        """Show a value, such as a piece of text that is being written. It is shown live and never stored."""
        self._place_of_all.hand(self._services.publish, value)
