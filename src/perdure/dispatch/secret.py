"""Secrets as bodies hold them: values that do not show themselves."""

from __future__ import annotations

import hmac
from typing import Any, Final, NoReturn

_HIDDEN: Final = "***"


class Secret:
    """A secret value. It prints as `***` and cannot be stored, sent or made into JSON; `reveal` gives the text.

    It is not a `str`, so that it cannot slip into a text unseen: reveal it where it is used, and nowhere else.
    """

    __slots__ = ("_value",)

    __perdure_secret__ = True

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text itself. Do not return, log, publish or checkpoint it."""
        return self._value

    def __repr__(self) -> str:
        return _HIDDEN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return _HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(*map(_bytes, (self, other)))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A secret cannot be stored or sent. Pass its name on, and ask for its value where it is used.")


def _bytes(secret: Secret) -> bytes:
    return secret.reveal().encode("utf-8", "surrogatepass")
