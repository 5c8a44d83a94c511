"""A compiled twin answers byte for byte what its evaluator answers, or nothing."""

from __future__ import annotations

import random
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import Boundary, RouteCandidate, drawn_inputs, route_inputs, worker

from pagetrail.controlplane import twins
from pagetrail.controlplane.policy.inputs import RouteInputs
from pagetrail.controlplane.policy.recorder import FULL, REFERENCE, record
from pagetrail.controlplane.policy.registry import EVALUATORS, evaluator
from pagetrail.kernels.compiler import COMPILERS

ROUTING = "routing/min-ttft@1"
LARGEST = 2**62 - 1  # the largest quantity of the twin's domain

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason=f"needs one of {', '.join(COMPILERS)}"
)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> twins.Twin:
    return twins.load_twins(tmp_path_factory.mktemp("twins"))[ROUTING]


def by_evaluator(inputs: RouteInputs) -> twins.Answer:
    found = evaluator(ROUTING)
    evaluation = found.evaluate(found.weights_type(), inputs)
    return (
        msgspec.msgpack.encode(evaluation.choice),
        evaluation.reason,
        evaluation.tie_break,
        msgspec.msgpack.encode(evaluation.columns),
    )


def by_twin(twin: twins.Twin, inputs: msgspec.Struct) -> twins.Answer | None:
    return twin(evaluator(ROUTING).weights_type(), inputs)


def test_every_twin_is_that_of_an_evaluator() -> None:
    assert set(twins.SOURCES) <= set(EVALUATORS)


@needs_compiler
def test_the_twin_of_routing_answers_as_the_evaluator_over_drawn_inputs(twin: twins.Twin) -> None:
    for seed in range(2_000):
        inputs = drawn_inputs("ROUTE", seed)
        assert isinstance(inputs, RouteInputs)
        assert by_twin(twin, inputs) == by_evaluator(inputs), seed


# Where an encoding changes its length, and few enough values that terms tie.
_NS = st.sampled_from(
    [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**30 - 1, 2**30, 2**32 - 1, 2**32]
)
_FEW = st.integers(0, 2)
_PAGES = st.sampled_from([0, 1, 2, 7, 8, 127, 128, 70_000])
_NAMES = st.text(max_size=3) | st.sampled_from(
    ["w" * 31, "w" * 32, "w" * 255, "w" * 256, "é" * 130]
)


@st.composite
def _workers(draw: st.DrawFn) -> list[RouteCandidate]:
    names = draw(st.lists(_NAMES, min_size=0, max_size=20, unique=True))
    rows = []
    for name in names:
        ways = draw(
            st.lists(
                st.builds(Boundary, st.integers(-1, 4), st.integers(0, 40), _FEW | _NS, _FEW | _NS),
                min_size=0,
                max_size=4,
            )
        )
        rows.append(
            msgspec.structs.replace(
                worker(name, Boundary(-1, 0, 0, 0)),
                boundaries=tuple(sorted(ways, key=lambda way: (way.tier, way.tokens))),
                worker_epoch=draw(_NS),
                online=draw(st.sampled_from([True, True, True, False])),
                model_loaded=draw(st.sampled_from([True, True, True, False])),
                context_tokens=draw(st.sampled_from([30, 60, 2**40])),
                verify_rows=draw(st.sampled_from([0, 0, 8])),
                free_pages=draw(_PAGES),
                queue_ns=draw(_FEW | _NS),
                prefill_ns_per_token=draw(_FEW | _NS),
                first_token_ns=draw(_FEW | _NS),
            )
        )
    return rows


@needs_compiler
@settings(max_examples=400, deadline=None)
@given(rows=_workers(), prompt=st.integers(0, 50), new=st.integers(0, 40), draw=st.data())
def test_the_twin_of_routing_answers_as_the_evaluator_where_lengths_and_ties_change(
    twin: twins.Twin, rows: list[RouteCandidate], prompt: int, new: int, draw: st.DataObject
) -> None:
    names = [row.worker for row in rows]
    excluded = draw.draw(st.lists(st.sampled_from([*names, "gone"]), max_size=3))
    inputs = route_inputs(prompt, new, tuple(excluded), rows)
    assert by_twin(twin, inputs) == by_evaluator(inputs)


@needs_compiler
@pytest.mark.parametrize("ways", [15, 16, 65_535, 65_536])
def test_columns_of_every_length_are_encoded_alike(twin: twins.Twin, ways: int) -> None:
    one = worker("w", *(Boundary(2, place % 9, place, 0) for place in range(ways)))
    inputs = route_inputs(20, 4, (), [one])
    assert by_twin(twin, inputs) == by_evaluator(inputs)


_TWO = route_inputs(
    100,
    28,
    (),
    [
        worker("a", queue_ns=5, prefill_ns_per_token=3, first_token_ns=1),
        worker("b", queue_ns=4, prefill_ns_per_token=3, first_token_ns=1),
    ],
)


@needs_compiler
@pytest.mark.parametrize(
    "field",
    [name for name in RouteInputs.__struct_fields__ if name not in ("excluded", "workers")],
)
@pytest.mark.parametrize(
    "value",
    [-1, -(2**63), 2**62, 2**63 - 1, 2**63, 2**64, 2**100, True, 0.5, "7", None],
)
def test_outside_its_domain_the_twin_says_nothing(twin: twins.Twin, field: str, value: Any) -> None:
    flags, tiers = field in ("online", "model_loaded"), field == "tiers"
    if (flags and value is True) or (tiers and value == -1):
        return  # inside it
    column = isinstance(getattr(_TWO, field), tuple)
    changed = msgspec.structs.replace(_TWO, **{field: (value, value) if column else value})
    assert by_twin(twin, changed) is None


@needs_compiler
def test_the_largest_values_of_the_domain_are_exact_and_sums_beyond_it_are_refused(
    twin: twins.Twin,
) -> None:
    def inputs(**changes: int) -> RouteInputs:
        return route_inputs(101, 0, (), [worker("a", **changes)])

    for within in (
        inputs(queue_ns=LARGEST),
        inputs(queue_ns=LARGEST, first_token_ns=LARGEST),
        inputs(prefill_ns_per_token=(2**63 - 1) // 100),
        inputs(context_tokens=LARGEST, free_pages=LARGEST),
    ):
        assert by_twin(twin, within) == by_evaluator(within)
    for beyond in (
        inputs(queue_ns=LARGEST, first_token_ns=LARGEST, prefill_ns_per_token=1),
        inputs(prefill_ns_per_token=(2**63 - 1) // 100 + 1),
    ):
        assert by_twin(twin, beyond) is None


@needs_compiler
def test_columns_that_do_not_fit_together_are_refused(twin: twins.Twin) -> None:
    for field in RouteInputs.__struct_fields__:
        column = getattr(_TWO, field)
        if isinstance(column, tuple) and field != "excluded":
            shorter = msgspec.structs.replace(_TWO, **{field: column[:1]})
            assert by_twin(twin, shorter) is None, field
    for other in (
        msgspec.structs.replace(_TWO, starts=(0, 2)),
        msgspec.structs.replace(_TWO, page_tokens=0),
        msgspec.structs.replace(_TWO, workers=(b"a", b"b")),
        msgspec.structs.replace(_TWO, queue_ns=[4, 5]),
        drawn_inputs("ADMIT", 1),
    ):
        assert by_twin(twin, other) is None


@needs_compiler
def test_columns_that_stay_the_same_objects_from_call_to_call_are_read_right(
    twin: twins.Twin,
) -> None:
    draw = random.Random(1)
    rows = [(0, 0, 0), (1, 2, 3), (3, 2, 1), (40, 40, 40), (2**40, 7, 0)]
    numbers = [
        name
        for name in RouteInputs.__struct_fields__[5:]
        if name not in ("online", "model_loaded", "starts", "tiers")
    ]
    inputs = route_inputs(
        50, 4, (), [worker(name, Boundary(-1, 0, 0, 0)) for name in ("a", "b", "c")]
    )
    for _ in range(1_000):
        field = draw.choice(numbers)
        inputs = msgspec.structs.replace(inputs, **{field: draw.choice(rows)})
        if draw.random() < 0.2:
            places = draw.choice([(0, 1, 2), (0, 0, 2), (1, 1, 1)])
            inputs = msgspec.structs.replace(inputs, starts=places)
        assert by_twin(twin, inputs) == by_evaluator(inputs)


@needs_compiler
def test_it_agrees_with_what_is_recorded_and_with_nothing_else(twin: twins.Twin) -> None:
    found = evaluator(ROUTING)
    weights = found.weights_type()
    for mode in (REFERENCE, FULL):
        _, decision = record(
            0,
            found,
            weights,
            _TWO,
            subject=7,
            as_of=-1,
            chain=bytes(32),
            recorded=weights,
            mode=mode,
        )
        answer = by_twin(twin, _TWO)
        assert answer is not None
        assert twins.agrees(answer, decision)
        for changed in (
            msgspec.structs.replace(decision, choice=msgspec.Raw(msgspec.msgpack.encode(1))),
            msgspec.structs.replace(decision, reason=decision.reason + 1),
            msgspec.structs.replace(decision, tie_break=decision.tie_break + 1),
            msgspec.structs.replace(decision, digest=bytes(32)),
            msgspec.structs.replace(decision, alternatives=msgspec.Raw(b"\x90")),
        ):
            assert not twins.agrees(answer, changed)


def test_without_a_compiler_there_is_no_twin_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(twins.TwinBuildError, match=r"no C\+\+ compiler found"):
        twins.load_twins(tmp_path)


def test_without_the_headers_of_python_there_is_no_twin_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(twins.TwinBuildError, match=r"no Python\.h"):
        twins.load_twins(tmp_path)


def test_without_a_home_there_is_no_twin_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    twins.load_twins.cache_clear()
    with pytest.raises(twins.TwinBuildError, match="set XDG_CACHE_HOME"):
        twins.load_twins()


@needs_compiler
def test_where_it_cannot_be_written_there_is_no_twin_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("", encoding="utf-8")
    with pytest.raises(twins.TwinBuildError, match="cannot write"):
        twins.load_twins(tmp_path / "blocked")


@needs_compiler
def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "FLAGS", (*twins.FLAGS, "-fno-such-flag"))
    with pytest.raises(twins.TwinBuildError, match="fno-such-flag"):
        twins.load_twins(tmp_path)


@needs_compiler
def test_a_twin_is_built_once(tmp_path: Path) -> None:
    twins.load_twins(tmp_path)
    twins.load_twins.cache_clear()
    (made,) = tmp_path.glob("*.so")
    before = made.stat().st_mtime_ns
    twins.load_twins(tmp_path)
    assert [file.stat().st_mtime_ns for file in tmp_path.glob("*.so")] == [before]
