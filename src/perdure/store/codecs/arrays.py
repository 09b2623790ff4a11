"""Arrays: numpy's, and whatever can be seen as one of numpy's, such as tensors. numpy is imported only when needed.

An array comes back bit for bit, with its dtype, shape and memory order. A tensor comes back as a numpy array: a codec
for its type can do better.
"""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal

from perdure.store.codecs.codec import Conversion, Refusal, Unreadable, expect, expect_dict, expect_list, type_of

if TYPE_CHECKING:
    import numpy as np

ARRAY_TAG: Final = "ndarray"
SCALAR_TAG: Final = "npscalar"
# bool, integers, floats, complex, timedelta, datetime, bytes, text, records. Anything else may hold addresses.
_KINDS: Final = frozenset("biufcmMSUV")
# Signs of an array that is only a part of what it belongs to: labels, a mask, columns. They would be lost.
_SIGNS_OF_MORE: Final = (
    "__arrow_c_array__",
    "__arrow_c_stream__",
    "__dataframe__",
    "columns",
    "coords",
    "index",
    "mask",
    "name",
    "names",
)


def array_codec(cls: type) -> Conversion | None:
    """Return how values of `cls` are stored, if they are arrays, tensors, or numpy's scalars."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if issubclass(cls, numpy.generic):
            return Conversion(SCALAR_TAG, cls, _scalar_to_plain, scalar_from_plain)
        if issubclass(cls, numpy.ndarray):
            is_whole = cls is numpy.ndarray or issubclass(cls, numpy.memmap)
            return Conversion(ARRAY_TAG, cls, _array_to_plain, array_from_plain) if is_whole else None
    return Conversion(ARRAY_TAG, cls, _tensor_to_plain, array_from_plain) if _is_tensor(cls) else None


def array_from_plain(data: Any) -> np.ndarray[Any, Any]:
    """Return a fresh, writable array."""
    numpy = _numpy_for_reading()
    fields = expect_dict(data)
    dtype = numpy.lib.format.descr_to_dtype(fields["dtype"])
    shape = [expect(length, int) for length in expect_list(fields["shape"])]
    content = expect(fields["data"], bytes)
    if not _is_storable(dtype) or min(shape, default=0) < 0 or len(content) != dtype.itemsize * prod(shape):
        raise ValueError(f"{len(content)} bytes do not make an array of {dtype} with shape {shape}")
    order = "F" if fields.get("order") == "F" else "C"
    array: np.ndarray[Any, Any] = numpy.ndarray(shape, dtype, buffer=bytearray(content), order=order)
    return array


def scalar_from_plain(data: Any) -> Any:
    """Return a numpy scalar."""
    return array_from_plain(data)[()]


def _is_tensor(cls: type) -> bool:
    if hasattr(cls, "__dlpack__"):
        return True
    return hasattr(cls, "__array__") and not any(hasattr(cls, sign) for sign in _SIGNS_OF_MORE)


def _tensor_to_plain(value: Any) -> dict[str, Any]:
    kind = type_of(value)
    try:
        import numpy as np
    except ImportError:
        raise Refusal(kind, "arrays are stored by numpy, which is not installed", "Install numpy.") from None
    try:
        array = np.asarray(value)
    except Exception as error:  # Whatever the library of the tensor has to say: it is on a device, has a gradient, …
        raise Refusal(kind, f"it does not become a numpy array ({type(error).__name__}: {error})") from error
    return _array_to_plain(array)


def _array_to_plain(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    plain = {"dtype": _plain_dtype(array), "shape": list(array.shape), "data": array.tobytes(order)}
    if order == "F":
        plain["order"] = order
    return plain


def _scalar_to_plain(value: Any) -> dict[str, Any]:
    import numpy as np

    array = np.asarray(value)
    kind = type_of(value)
    if array.dtype.kind in "SU" and array[()] != value:
        raise Refusal(kind, "numpy drops zeros at the end of it", "Use str or bytes.")
    return _array_to_plain(array)


def _plain_dtype(array: np.ndarray[Any, Any]) -> Any:
    import numpy as np

    dtype = array.dtype
    if _is_storable(dtype) and dtype.metadata is None:
        description = np.lib.format.dtype_to_descr(dtype)
        if np.lib.format.descr_to_dtype(description) == dtype:
            return description
    raise Refusal(
        type(array),
        f"its dtype is {dtype}, which has no fixed layout of its own",
        "Convert it to a numeric, text or record dtype.",
    )


def _is_storable(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _KINDS and not dtype.hasobject


def _numpy_for_reading() -> Any:
    try:
        import numpy as np
    except ImportError:
        raise Unreadable("it holds an array, and numpy is not installed", "Install numpy.", tag=ARRAY_TAG) from None
    return np
