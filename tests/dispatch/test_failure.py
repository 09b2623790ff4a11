"""What is kept of an error."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle

import msgspec
import pytest

from perdure.dispatch.failure import (
    MESSAGE_MAX_CHARS,
    TRACEBACK_MAX_CHARS,
    Failure,
    contained,
    failure_of,
    raised,
)
from perdure.dispatch.secret import Secret
from perdure.errors import BodyRaised, StoreError, StoreLocked, TruthUnclear, ValueNotStorable, WrongInputs
from tests.dispatch.desk import CODECS


class Sulking(Exception):
    """One that does not say what it is about."""

    def __str__(self) -> str:
        raise RuntimeError("no comment")


class WithClass(Exception):
    error_class = "transient"


def test_a_failure_names_its_class_and_the_bases_of_that() -> None:
    failure = failure_of(ConnectionResetError("gone"))

    assert failure.type_name == "ConnectionResetError"
    assert failure.type_names == ("ConnectionResetError", "ConnectionError", "OSError", "Exception", "BaseException")
    assert failure.is_a(ConnectionError)
    assert failure.is_a("OSError")
    assert failure.is_a(ValueError, OSError)
    assert not failure.is_a(ValueError)


def test_a_class_with_a_module_is_known_in_full_and_in_short() -> None:
    failure = failure_of(WithClass())

    assert failure.type_name == "tests.dispatch.test_failure.WithClass"
    assert failure.is_a("WithClass")
    assert failure.is_a("tests.dispatch.test_failure.WithClass")
    assert not failure.is_a("ithClass")
    assert failure.error_class == "transient"


def test_an_error_of_perdure_is_known_by_the_name_that_the_documentation_has() -> None:
    failure = failure_of(StoreLocked("locked"))

    assert failure.type_names[:3] == ("StoreLocked", "StoreError", "PerdureError")
    assert failure.is_a(StoreError)
    assert failure.is_a("StoreLocked")
    assert failure.is_a("perdure.errors.StoreLocked")
    assert not failure.is_a("perdure.errors.StoreFull")


def test_an_error_of_others_is_none_of_perdure_whatever_its_name() -> None:
    namesake = type("WrongInputs", (ValueError,), {"__module__": "theirs.errors"})
    failure = failure_of(namesake("no such colour"))

    assert failure.is_a("WrongInputs")
    assert failure.is_a("theirs.errors.WrongInputs")
    assert not failure.is_a(WrongInputs)
    assert not failure.is_a("perdure.errors.WrongInputs")


def test_an_error_of_others_is_what_python_calls_by_its_name() -> None:
    failure = failure_of(type("ConnectionError", (Exception,), {"__module__": "theirs.errors"})())

    assert failure.is_a(ConnectionError)


def test_what_is_raised_for_a_failure_is_kept_as_that_failure() -> None:
    failure = failure_of(WithClass("text"))

    assert failure_of(raised(failure)) == failure


def test_an_error_that_cannot_be_shown_is_kept_all_the_same() -> None:
    failure = failure_of(Sulking())

    assert "RuntimeError" in failure.message
    assert failure.is_a(Sulking)


def test_long_texts_are_shortened_in_the_middle() -> None:
    failure = failure_of(ValueError("a" * 100_000 + "the end"))

    assert len(failure.message) < MESSAGE_MAX_CHARS + 100
    assert failure.message.endswith("the end")
    assert "characters left out" in failure.message
    assert len(failure.traceback) < TRACEBACK_MAX_CHARS + 100


def test_every_failure_can_be_stored() -> None:
    failure = failure_of(ValueError("\ud800"))

    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure
    assert failure.message == "\\ud800"


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(1)])
def test_what_would_end_more_than_an_attempt_is_wrapped(error: BaseException) -> None:
    wrapped = contained(error)

    assert isinstance(wrapped, BodyRaised)
    assert wrapped.__cause__ is error
    assert failure_of(wrapped).is_a(type(error))


def test_an_ordinary_error_stays_itself() -> None:
    error = ValueError()

    assert contained(error) is error


def test_a_secret_shows_only_what_it_is() -> None:
    secret = Secret("hünter2")

    assert [str(secret), repr(secret), f"{secret}", f"{secret:>9}", f"{[secret]}"] == ["***"] * 4 + ["[***]"]
    assert secret.reveal() == "hünter2"
    assert copy.deepcopy([secret]) == [Secret("hünter2")]
    assert secret != Secret("other")
    assert secret != "hünter2"
    assert not hasattr(secret, "__dict__")


def test_a_secret_refuses_every_way_out() -> None:
    secret = Secret("hünter2")

    with pytest.raises(ValueNotStorable, match="secret"):
        CODECS.encode({"token": secret}, where="test")
    for way_out in (json.dumps, msgspec.json.encode, pickle.dumps):
        with pytest.raises(TypeError):
            way_out(secret)


def test_an_error_of_perdure_alone_has_no_traceback() -> None:
    with pytest.raises(ValueNotStorable) as caught:
        CODECS.encode(object(), where="here")
    caught.value.__traceback__ = caught.tb.tb_next  # without this function

    assert failure_of(caught.value).traceback == ""


def test_an_error_of_perdure_that_has_another_cause_or_a_note_keeps_its_traceback() -> None:
    caused, noted, circular = (TruthUnclear("a", "Mood", ValueError()) for _ in range(3))
    try:
        raise KeyError("inner")
    except KeyError as error:
        caused.__cause__ = error
    noted.add_note("finalize() then raised")
    circular.__cause__ = circular

    assert "KeyError: 'inner'" in failure_of(caused).traceback
    assert "finalize() then raised" in failure_of(noted).traceback
    assert failure_of(circular).traceback == ""
