"""Declaring node types and workflows: what is kept, what is refused, and what happens outside a workflow."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import GraphError, InvalidCall, InvalidDeclaration, MisusedRef
from perdure.graph.declare import (
    Backoff,
    NodeType,
    Outputs,
    Policy,
    Stream,
    declared_types,
    declared_workflows,
    node,
    workflow,
)
from perdure.graph.handles import BodyContext

SOURCE = Path(__file__).parents[3] / "src"


class Context(BodyContext):
    """Stands for the engine's."""


@node
def double(x: int) -> int:
    """Twice."""
    return 2 * x


@node(
    retries=3, backoff=0.5, timeout=timedelta(minutes=1), retry_on=[ValueError, "requests.Timeout"], name="demo.fetch"
)
async def fetch(ctx: Context, url: str) -> str:
    return url.upper()


@node
def count(upto: int) -> Iterator[int]:
    yield from range(upto)


def test_a_function_becomes_a_node_type():
    assert isinstance(double, NodeType)
    assert double.name.endswith("test_declare.double")
    assert double.policy == Policy()
    assert [handle.name for handle in double.inputs] == ["x"]
    assert [handle.name for handle in double.outputs] == ["output"]
    assert (double.takes_context, double.is_async, double.is_generator, double.class_shape) == (
        False,
        False,
        False,
        None,
    )
    assert double.source.qualname == "double"
    assert double.source.file == __file__
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert declared_types()[double.name] is double


def test_options_become_a_policy():
    assert fetch.name == "demo.fetch"
    assert fetch.policy == Policy(
        retries=3,
        backoff=Backoff(first=timedelta(seconds=0.5)),
        timeout=timedelta(minutes=1),
        retry_on=(ValueError, "requests.Timeout"),
    )
    assert fetch.takes_context
    assert [handle.name for handle in fetch.inputs] == ["url"]


def test_a_long_backoff_raises_the_cap():
    @node(backoff=timedelta(hours=1))
    def slow() -> None: ...

    assert slow.policy.backoff == Backoff(first=timedelta(hours=1), cap=timedelta(hours=1))


def test_outside_a_workflow_the_plain_function_runs():
    assert double(4) == 8
    assert asyncio.run(fetch.fn(Context(), "a")) == "A"
    assert list(count.fn(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retries": -1}, "retries=-1 is not a whole number"),
        ({"retries": True}, "retries=True"),
        ({"retries": 1.5}, "retries=1.5"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"executor": "gpu"}, "'auto', 'thread', 'process'"),
        ({"replay": "never"}, "'compare', 'checkpoint', 'hold'"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": -3.0}, "timeout=-3.0"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"timeout": 1e300}, "timeout=1e+300"),
        ({"timeout": "5s"}, "timeout='5s'"),
        ({"backoff": -1}, "backoff=-1"),
        ({"backoff": "long"}, "backoff='long'"),
        ({"backoff": None}, "backoff=None"),
        ({"backoff": Backoff(factor=0.5)}, "factor=0.5"),
        ({"backoff": Backoff(first=timedelta(hours=1))}, "the longer one last"),
        ({"retry_on": 3}, "retry_on=3"),
        ({"retry_on": (ValueError, int)}, "int"),
        ({"retry_on": ""}, "retry_on=''"),
        ({"once": "yes"}, "once='yes'"),
        ({"once": True, "retries": 2}, "once=True forbids what retries asks for"),
        ({"once": True, "pure": True}, "choose one"),
        ({"probe": print}, "add once=True"),
        ({"once": True, "probe": 3}, "probe=3 cannot be called"),
        ({"queue": ""}, "queue=''"),
        ({"name": ""}, "name=''"),
        ({"name": "$node"}, "name='$node'"),
        ({"retrys": 3}, "did you mean 'retries'"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], words: str):
    with pytest.raises(InvalidDeclaration) as caught:
        node(**options)

    assert words in str(caught.value)


def test_all_wrong_options_are_named_together():
    with pytest.raises(InvalidDeclaration) as caught:
        node(retries=-1, concurrency=0, timeout=-1, queue="", executor="gpu")

    assert len(caught.value.problems) == 5


def test_a_body_that_its_executor_cannot_run_is_refused():
    async def slow() -> None: ...
    def items() -> Iterator[int]:
        yield 1

    def reads(values: Stream[int] | None = None) -> None: ...

    with pytest.raises(InvalidDeclaration, match="it is async"):
        node(executor="thread")(slow)
    with pytest.raises(InvalidDeclaration, match="cannot yield out of another process"):
        node(executor="process")(items)
    with pytest.raises(InvalidDeclaration, match="cannot be read from another process"):
        node(executor="process")(reads)
    with pytest.raises(InvalidDeclaration, match="inside a function"):
        node(executor="process")(lambda_like())


def lambda_like() -> Any:
    def inner(x: int) -> int:
        return x

    return inner


@pytest.mark.parametrize("thing", [3, print, "text", object(), double, staticmethod(print), lambda x: x])
def test_what_is_no_function_or_class_is_refused(thing: Any):
    with pytest.raises(InvalidDeclaration):
        node(thing)


def test_a_function_without_a_name_needs_one():
    nameless = node(name="demo.nameless")(lambda x: x)

    assert (nameless.name, nameless.label) == ("demo.nameless", "nameless")


def test_the_last_declaration_of_a_name_counts():
    def declare() -> NodeType[..., Any]:
        @node(name="demo.again")
        def again() -> None: ...

        return again

    declare()
    last = declare()

    assert declared_types()["demo.again"] is last


def test_names_do_not_depend_on_how_a_script_is_loaded(tmp_path: Path):
    script = tmp_path / "flow.py"
    script.write_text(
        "from perdure.graph.declare import node\n"
        "@node\ndef f(): ...\n"
        "@node\nclass C:\n    def run(self): ...\n"
        "print(f.name, C.name, f.source.module)\n"
    )
    by_path = (
        "import importlib.util as u; s = u.spec_from_file_location('loaded_xyz', 'flow.py');"
        "m = u.module_from_spec(s); s.loader.exec_module(m)"
    )
    ways = [["flow.py"], ["-m", "flow"], ["-c", "import flow"], ["-c", by_path]]

    printed = {run_python(way, tmp_path) for way in ways}

    assert printed == {"flow.f flow.C flow"}


def test_modules_of_a_package_keep_their_full_names(tmp_path: Path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "flow.py").write_text(
        "from perdure.graph.declare import node\n@node\ndef f(): ...\nprint(f.name)"
    )

    printed = {run_python(way, tmp_path) for way in (["-m", "pack.flow"], ["-c", "import pack.flow"])}

    assert printed == {"pack.flow.f"}


def test_declaring_loads_nothing_costly(tmp_path: Path):
    command = (
        "import sys, perdure.graph.declare; print(sorted({'pydantic', 'yaml', 'numpy', 'asyncio'} & set(sys.modules)))"
    )

    assert run_python(["-c", command], tmp_path) == "[]"


def run_python(arguments: list[str], folder: Path) -> str:
    environment = {"PYTHONPATH": f"{SOURCE}:{folder}"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, check=True
    )
    return done.stdout.strip()


# Class nodes


class Recorder:
    """Remembers what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []


LOG = Recorder()


class Whole:
    factor: int = 2
    label = "x"

    def initialize(self) -> None:
        LOG.calls.append("initialize")

    def pre_process(self) -> None:
        LOG.calls.append("pre_process")

    def run(self, x: int, y: int = 1) -> int:
        LOG.calls.append("run")
        if x < 0:
            raise ValueError(x)
        return x * self.factor + y

    def finalize(self) -> None:
        LOG.calls.append("finalize")


whole = node(Whole)


@pytest.fixture(autouse=True)
def _empty_log():
    LOG.calls.clear()


def test_a_class_becomes_a_node_type():
    assert whole.class_shape is not None
    assert whole.fn is Whole
    assert [handle.name for handle in whole.inputs] == ["x", "y", "factor", "label"]
    assert [handle.name for handle in whole.properties] == ["factor", "label"]
    assert whole.class_shape is not None
    assert whole.class_shape.entry == "run"
    assert whole.class_shape.lifecycle == {"initialize": False, "pre_process": False, "finalize": False}


def test_a_class_runs_its_whole_life_outside_a_workflow():
    assert whole(3, factor=10) == 31
    assert LOG.calls == ["initialize", "pre_process", "run", "finalize"]


def test_finalize_is_always_called():
    with pytest.raises(ValueError, match="-1"):
        whole(-1)

    assert LOG.calls == ["initialize", "pre_process", "run", "finalize"]


def test_an_async_lifecycle_runs_in_a_coroutine():
    class Slow:
        async def initialize(self, ctx: Context) -> None:
            LOG.calls.append(type(ctx).__name__)

        def run(self, ctx: Context, x: int) -> int:
            return x

        async def finalize(self) -> None:
            LOG.calls.append("finalize")

    slow = node(Slow)

    assert slow.takes_context
    assert asyncio.run(slow(Context(), 3)) == 3
    assert LOG.calls == ["Context", "finalize"]


def test_generators_of_classes_have_the_lifecycle_in_them():
    class Items:
        def process(self, upto: int) -> Iterator[int]:
            yield from range(upto)

        def finalize(self) -> None:
            LOG.calls.append("finalize")

    class SlowItems(Items):
        async def process(self, upto: int) -> AsyncIterator[int]:
            for number in range(upto):
                yield number

    async def gather(stream: Any) -> list[int]:
        return [item async for item in stream]

    assert list(node(Items)(2)) == [0, 1]
    assert asyncio.run(gather(node(SlowItems)(2))) == [0, 1]
    assert LOG.calls == ["finalize", "finalize"]


def test_what_is_wrong_with_a_class_is_said_together():
    class Wrong:
        x: int = 1

        def __init__(self, needed: int) -> None: ...

        def initialize(self, something: int) -> None: ...

        def run(self, x: int) -> None: ...

        def process(self, item: int) -> None: ...

    with pytest.raises(InvalidDeclaration) as caught:
        node(Wrong)

    assert [word in str(caught.value) for word in ("both `run`", "constructor", "`initialize`")] == [True] * 3


def test_a_class_without_a_body_is_refused():
    class Empty: ...

    class Twice:
        x: int = 1

        def run(self, x: int) -> None: ...

    with pytest.raises(InvalidDeclaration, match="neither"):
        node(Empty)
    with pytest.raises(InvalidDeclaration, match="both a property and a parameter"):
        node(Twice)


# Workflows


@workflow
def doubled(x: int, times: int = 2) -> int:
    """Doubles."""
    return double(double(x))


def test_a_function_becomes_a_workflow():
    assert doubled.name == "doubled"
    assert doubled.input_types == {"x": int, "times": int}
    assert doubled.output_type is int
    assert doubled.__doc__ == "Doubles."
    assert declared_workflows()["doubled"] is doubled
    assert [given.name for given in doubled.graph.inputs] == ["x", "times"]
    assert doubled.graph is doubled.graph
    assert dict(doubled.types) == {double.name: double}


def test_a_body_is_traced_when_its_graph_is_asked_for():
    calls: list[int] = []

    @workflow(name="lazy")
    def lazy() -> int:
        calls.append(1)
        return double(1)

    assert calls == []
    _ = lazy.graph, lazy.types, lazy.graph
    assert calls == [1]


def test_the_inputs_of_a_call_are_bound_by_name():
    assert doubled.bind(1) == {"x": 1}
    assert doubled.bind(x=1, times=3) == {"x": 1, "times": 3}
    with pytest.raises(InvalidCall, match=r"no input 'tims' \(did you mean 'times'"):
        doubled.bind(1, tims=2)
    with pytest.raises(TypeError, match="'x' is missing"):
        doubled.bind()


def test_what_cannot_be_a_workflow_is_refused():
    async def coroutine() -> None: ...
    def generator() -> Iterator[int]:
        yield 1

    def many(*xs: int) -> None: ...
    def anything(**xs: int) -> None: ...
    def streams(xs: Stream[int] = ()) -> None: ...  # type: ignore[assignment]
    def context(ctx: Context) -> None: ...
    def odd_default(x: object = object()) -> None: ...
    def wrong_default(x: int = "a") -> None: ...

    for wrong in (coroutine, generator, many, anything, streams, context, odd_default, wrong_default, 3, Whole):
        with pytest.raises(InvalidDeclaration):
            workflow(wrong)


@pytest.mark.parametrize(
    "settings", [{"durability": "never"}, {"on_failure": "cry"}, {"timeout": 0}, {"timeout": "1h"}, {"name": ""}]
)
def test_wrong_settings_are_refused(settings: dict[str, Any]):
    with pytest.raises(InvalidDeclaration):
        workflow(**settings)


def test_settings_are_kept_and_can_be_changed():
    @workflow(durability="async", timeout=60)
    def settled() -> int:
        return double(1)

    bound = settled.options(run_id="r-1", on_failure="finish")

    assert settled.settings.timeout == timedelta(seconds=60)
    assert (bound.settings.run_id, bound.settings.durability, bound.settings.on_failure) == ("r-1", "async", "finish")
    assert settled.settings.run_id is None
    with pytest.raises(InvalidDeclaration):
        settled.options(run_id="")


def test_a_workflow_cannot_run_while_one_is_traced():
    @workflow
    def outer(x: int) -> int:
        return double(doubled.run(x=1))

    with pytest.raises(GraphError, match="cannot run while another one is traced"):
        _ = outer.graph


def test_node_types_are_traced_only_inside_workflows():
    leaked: list[Any] = []

    @workflow
    def leaking(x: int) -> int:
        leaked.append(double(x))
        return leaked[0]

    _ = leaking.graph

    with pytest.raises(MisusedRef, match="outside the workflow"):
        double(leaked[0])
    with pytest.raises(MisusedRef, match="outside the workflow"):
        double([{"deep": leaked[0]}])
    with pytest.raises(MisusedRef, match="inside a @workflow"):
        double.map([1])


def test_a_default_is_written_in_its_json_form():
    @workflow
    def waiting(pause: timedelta = timedelta(seconds=5), names: tuple[str, ...] = ("a",)) -> Outputs:
        return Outputs(a=double(1), b=double(2))

    assert [given.default for given in waiting.graph.inputs] == ["PT5S", ["a"]]
    assert [edge.target_handle for edge in waiting.graph.edges] == ["a", "b"]
