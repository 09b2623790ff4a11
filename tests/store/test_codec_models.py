"""Models, enums, arrays, and codecs that users bring."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypeVar

import msgspec
import numpy as np
import pydantic
import pytest

from perdure.errors import ValueNotReadable, ValueNotStorable
from perdure.ids import type_name
from perdure.store.codecs import Codecs, default_codecs
from tests.store.values import same

T = TypeVar("T")
codecs = default_codecs()


def encode(value: Any, using: Codecs = codecs) -> bytes:
    return using.encode(value, where="here")


class Colour(enum.Enum):
    RED = enum.auto()
    ROUGE = RED
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.5


@dataclasses.dataclass
class Line:
    name: str
    price: Decimal = Decimal(0)


@dataclasses.dataclass
class Invoice:
    number: int
    lines: list[Line]
    colour: Colour = Colour.RED
    tags: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total += self.number


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    at: datetime
    inner: Point


@dataclasses.dataclass
class Tree:
    label: str
    children: list[Tree] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Box(Generic[T]):
    content: T

    @functools.cached_property
    def shown(self) -> str:
        return str(self.content)


@dataclasses.dataclass
class WithInitVar:
    seed: dataclasses.InitVar[int]
    value: int = dataclasses.field(init=False)

    def __post_init__(self, seed: int) -> None:
        self.value = seed * 2


class Event(msgspec.Struct, rename="camel", tag=True):
    event_name: str
    when: datetime | None = None
    extra_data: dict[str, Any] = {}


class Doubling(msgspec.Struct, frozen=True):
    value: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "value", self.value * 2)


class Optional(msgspec.Struct):
    value: int | msgspec.UnsetType = msgspec.UNSET


class Address(pydantic.BaseModel):
    street: str


class User(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", populate_by_name=True)

    name: str = pydantic.Field(alias="userName")
    address: Address | None = None
    born: date = date(1970, 1, 1)
    _visits: int = pydantic.PrivateAttr(default=0)

    @pydantic.field_validator("name")
    @classmethod
    def _shout(cls, name: str) -> str:
        return name + "!"


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Pair(pydantic.BaseModel, Generic[T]):
    left: T


@pydantic.dataclasses.dataclass
class Checked:
    size: int


MODELS = [
    Colour.RED,
    Colour.BLUE,
    Level.LOW,
    Mode.FAST,
    Access.READ | Access.WRITE,
    Access(0),
    Point(1),
    Invoice(7, [Line("a", Decimal("1.10")), Line("b")], Colour.BLUE, {"x": (1, 2)}),
    Frozen(datetime(2024, 1, 1, tzinfo=UTC), Point(3, math.pi)),
    Tree("root", [Tree("leaf"), Tree("twig", [Tree("leaf")])]),
    Box[int](5),
    WithInitVar(4),
    Event("started", datetime(2024, 1, 1), {"$": (1,)}),
    Doubling(21),
    Optional(),
    Address(street="High Street"),
    User(userName="Ada", address=Address(street="x")),
    User(name="Ada", nickname="A", born=date(1815, 12, 10)),
    Numbers([1, 2]),
    Pair[int](left=1),
    Checked(size=3),
]


@pytest.mark.parametrize("value", MODELS, ids=lambda value: type(value).__name__)
def test_models_and_enums_come_back_by_the_annotation_that_names_them(value: Any):
    raw = encode({"values": [value]})

    decoded = codecs.decode(raw, dict[str, list[type(value) | None]])["values"][0]  # type: ignore[misc]

    assert type(decoded) is type(value)
    assert decoded == value
    assert same(repr(decoded), repr(value))


@pytest.mark.parametrize("value", MODELS, ids=lambda value: type(value).__name__)
def test_models_and_enums_come_back_when_their_type_is_registered(value: Any):
    own = default_codecs()
    own.register_type(type(value))

    assert own.decode(encode([value], own)) == [value]


def test_a_model_is_restored_as_it_was_and_not_made_again():
    user = User(userName="Ada", nickname="A")
    user._visits = 3
    invoice = Invoice(7, [])
    invoice.total = 100

    restored_user = codecs.decode(encode(user), User)
    restored_invoice = codecs.decode(encode(invoice), Invoice)

    assert restored_user == user
    assert restored_user.model_fields_set == {"name", "nickname"}
    assert restored_user.model_extra == {"nickname": "A"}
    assert restored_user._visits == 3
    assert restored_user.name == "Ada!"
    assert restored_invoice.total == 100


def test_a_cached_property_is_computed_again():
    box = Box([1])
    assert box.shown == "[1]"

    assert vars(codecs.decode(encode(box), Box)) == {"content": [1]}


class Shape:
    pass


@dataclasses.dataclass
class Circle(Shape):
    radius: float


Named = NewType("Named", Line)
Bound = TypeVar("Bound", bound=Line)


@pytest.mark.parametrize(
    "annotation",
    [
        Line,
        Line | None,
        list[Line],
        Mapping[str, tuple[Line, ...]],
        Annotated[Line, {"not": "hashable"}],
        Annotated[list[Line], "documented"],
        type[Line],
        Named,
        Bound,
        Invoice,
        "Line | Missing",
    ],
    ids=str,
)
def test_an_annotation_names_types_wherever_they_stand_in_it(annotation: Any):
    line = Line("a")
    if isinstance(annotation, str):
        annotation = dataclasses.make_dataclass("Holder", [("broken", "Missing"), ("line", Line)])

    assert codecs.decode(encode(line), annotation) == line


def test_a_subclass_is_read_where_its_base_is_named():
    circle = Circle(2.0)
    assert codecs.decode(encode(circle), list[Shape]) == circle

    @dataclasses.dataclass
    class Later(Shape):
        side: int

    assert codecs.decode(encode(Later(3)), list[Shape]) == Later(3)


def test_the_type_that_the_receiver_names_goes_before_the_registered_one():
    own = default_codecs()
    other = dataclasses.make_dataclass("Line", [("name", str), ("price", Decimal)], namespace={})
    other.__module__, other.__qualname__ = Line.__module__, Line.__qualname__
    own.register_type(other)

    assert type(own.decode(encode(Line("a"), own), Line)) is Line
    assert type(own.decode(encode(Line("a"), own))) is other


def test_a_type_that_this_process_does_not_know_is_named_with_the_remedy():
    with pytest.raises(ValueNotReadable, match=r"Line.*does not know.*Annotate") as caught:
        codecs.decode(encode([Line("a")]))

    assert caught.value.tag == type_name(Line)


@pytest.mark.parametrize("tag", ["antigravity.fly", "os.system", "builtins.eval", "subprocess.Popen", "this.s"])
def test_a_stored_name_is_never_imported(tag: str):
    loaded = set(sys.modules)

    for annotation in (Any, object, Line, list[Any]):
        with pytest.raises(ValueNotReadable):
            codecs.decode(msgspec.json.encode({"$": tag, "v": ["true"]}), annotation)

    assert "antigravity" not in sys.modules
    assert "this" not in set(sys.modules) - loaded


def test_a_type_can_be_read_under_a_name_that_it_had_before():
    own = default_codecs()
    own.register_type(Line, former_names=["shop.old.Item"])

    assert own.decode(b'{"$":"shop.old.Item","v":{"name":"a"}}') == Line("a")


@pytest.mark.parametrize("cls", [int, object, dict, Shape])
def test_only_a_type_that_says_what_it_consists_of_is_registered(cls: type):
    with pytest.raises(ValueError, match="Register a codec"):
        default_codecs().register_type(cls)


@pytest.mark.parametrize(
    ("cls", "kept", "expected"),
    [
        (Line, {"name": "a", "gone": 1}, Line("a")),
        (Event, {"event_name": "e", "gone": 1}, Event("e")),
        (Point, {"x": 1, "gone": 1}, Point(1)),
        (User, {"name": "a", "gone": 1}, None),
    ],
)
def test_data_of_an_older_type_gets_defaults_and_loses_what_has_gone(cls: type, kept: Any, expected: Any):
    decoded = codecs.decode(msgspec.json.encode({"$": type_name(cls), "v": kept}), cls)

    if expected is not None:
        assert decoded == expected
    else:
        assert decoded.model_dump() == {"name": "a", "address": None, "born": date(1970, 1, 1)}
        assert decoded._visits == 0


@pytest.mark.parametrize(("cls", "name"), [(Line, "name"), (Event, "event_name"), (Point, "x"), (User, "name")])
def test_a_missing_field_without_default_is_named(cls: type, name: str):
    with pytest.raises(ValueNotReadable, match=rf"{cls.__name__}.*{name}.*default"):
        codecs.decode(msgspec.json.encode({"$": type_name(cls), "v": {}}), cls)


def test_an_enum_member_that_has_gone_is_named():
    with pytest.raises(ValueNotReadable, match="Colour has no member 'GREEN'"):
        codecs.decode(msgspec.json.encode({"$": type_name(Colour), "v": "GREEN"}), Colour)


@pytest.mark.parametrize("way", ["script.py", "-m", "import", "load"])
def test_a_type_has_one_name_however_its_script_was_loaded(tmp_path: Path, way: str):
    (tmp_path / "shop_flow.py").write_text(
        "import dataclasses, sys\n"
        "from perdure.store.codecs import default_codecs\n"
        "@dataclasses.dataclass\n"
        "class Order:\n"
        "    number: int\n"
        "sys.stdout.buffer.write(default_codecs().encode(Order(1), where='here'))\n"
    )
    load = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('loaded', 'shop_flow.py')\n"
        "module = sys.modules['loaded'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
    )
    ways = {
        "script.py": ["./shop_flow.py"],
        "-m": ["-m", "shop_flow"],
        "import": ["-c", "import shop_flow"],
        "load": ["-c", load],
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    written = subprocess.run(
        [sys.executable, *ways[way]], cwd=tmp_path, env=environment, check=True, capture_output=True
    ).stdout

    assert written == b'{"$":"shop_flow.Order","v":{"number":1}}'


# Arrays

ARRAYS = [
    np.arange(6, dtype="<f4").reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(24).reshape(2, 3, 4)[:, ::2, ::-1],
    np.array([1, 2], dtype=">i2"),
    np.array(5.0),
    np.zeros((0, 3), dtype=np.uint8),
    np.array([np.nan, -0.0, np.inf], dtype=np.float16),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["a", "längere"]),
    np.array([b"x", b"yz"]),
    np.array(["2024-01-01", "NaT"], dtype="M8[ns]"),
    np.array([1, 2], dtype="m8[s]"),
    np.array([(1, 2.5, "a")], dtype=[("id", "<i4"), ("v", "<f8", (2,)), ("name", "<U3")]),
    np.frombuffer(b"\x01\x00\xc0\x7f" * 2, dtype="<f4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_comes_back_bit_for_bit(array: Any):
    decoded = codecs.decode(encode({"a": [array]}))["a"][0]

    assert type(decoded) is np.ndarray
    assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
    assert decoded.tobytes() == array.tobytes()
    assert decoded.flags.f_contiguous == array.flags.f_contiguous or not array.flags.forc
    assert decoded.flags.writeable


@pytest.mark.parametrize(
    "scalar",
    [np.float32(1.1), np.float64("nan"), np.int64(-5), np.bool_(True), np.str_("ä"), np.bytes_(b"x"), np.complex64(1j)],
    ids=lambda scalar: type(scalar).__name__,
)
def test_a_numpy_scalar_stays_one(scalar: Any):
    decoded = codecs.decode(encode([scalar]))[0]

    assert type(decoded) is type(scalar)
    assert decoded.tobytes() == scalar.tobytes()
    assert codecs.decode(encode({scalar: 1})) is not None


class Tensor:
    """As little of a tensor as the codecs ask for."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.content is None:
            raise RuntimeError("this tensor is on another device")
        return self.content

    def __dlpack__(self, **_: Any) -> Any:
        return self.content.__dlpack__()


class OnlyArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(3, dtype=np.int8)


class Table(OnlyArray):
    columns = ("a",)


@pytest.mark.parametrize("tensor", [Tensor(np.arange(3, dtype=np.int8)), OnlyArray()])
def test_a_tensor_comes_back_as_an_array(tensor: Any):
    decoded = codecs.decode(encode(tensor))

    assert type(decoded) is np.ndarray
    assert (decoded.dtype, decoded.tolist()) == (np.int8, [0, 1, 2])


def test_a_codec_for_a_tensor_goes_before_that():
    own = default_codecs()
    own.register(TensorCodec())

    assert type(own.decode(encode(Tensor(np.arange(3)), own))) is Tensor


class TensorCodec:
    tag = "tensor"
    python_type = Tensor

    def to_plain(self, value: Tensor) -> Any:
        return value.content

    def from_plain(self, data: Any) -> Tensor:
        return Tensor(data)


# Codecs of users


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class Tip(Money):
    pass


class MoneyCodec:
    tag = "money"
    python_type = Money

    def to_plain(self, value: Money) -> Any:
        return {"cents": value.cents, "raw": b"\x00"}

    def from_plain(self, data: Any) -> Money:
        return Money(data["cents"])


def test_a_registered_codec_serves_its_type_and_its_subclasses():
    own = default_codecs()
    own.register(MoneyCodec())

    decoded = own.decode(encode([Money(1), Tip(2)], own))

    assert [(type(money), money.cents) for money in decoded] == [(Money, 1), (Money, 2)]


def test_a_codec_that_is_registered_later_is_seen():
    own = default_codecs()
    with pytest.raises(ValueNotStorable):
        encode(Money(1), own)
    own.register(MoneyCodec())

    assert own.decode(encode(Money(1), own)).cents == 1


@pytest.mark.parametrize("tag", ["tuple", "blob", "dict", "ndarray", "money"])
def test_a_tag_belongs_to_one_codec(tag: str):
    own = default_codecs()
    own.register(MoneyCodec())
    other = TensorCodec()
    other.tag = tag

    with pytest.raises(ValueError, match="another codec"):
        own.register(other)


@pytest.mark.parametrize("cls", [str, dict, object, type(None)])
def test_plain_types_take_no_codec(cls: type):
    codec = TensorCodec()
    codec.python_type = cls  # type: ignore[assignment]

    with pytest.raises(ValueError, match="stored as itself"):
        default_codecs().register(codec)


def test_a_codec_that_fails_is_named_on_both_ways():
    class Failing(MoneyCodec):
        def to_plain(self, value: Money) -> Any:
            return 1 / value.cents

        def from_plain(self, data: Any) -> Money:
            raise KeyError("cents")

    own = default_codecs()
    own.register(Failing())

    with pytest.raises(ValueNotStorable, match="ZeroDivisionError"):
        encode([Money(0)], own)
    with pytest.raises(ValueNotReadable, match=r"money.*KeyError"):
        own.decode(encode(Money(1), own))


def test_a_codec_that_goes_in_circles_is_refused():
    class Circular(MoneyCodec):
        def to_plain(self, value: Money) -> Any:
            return value

    own = default_codecs()
    own.register(Circular())

    with pytest.raises(ValueNotStorable, match="contains itself"):
        encode(Money(1), own)
