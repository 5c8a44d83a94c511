"""What NVRTC makes of every kernel stays within the committed budget. Needs no card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagetrail.kernels.cuda.budget import (
    ARCHITECTURES,
    MODULES,
    TOOLS,
    Usage,
    compare,
    find_tool,
    load_budget,
    measure,
)
from pagetrail.kernels.cuda.launch import SourceModule

ATTENTION = ("gqa_mma", "gqa_prefill", "mla_mma")


def measured(module: SourceModule, architecture: str) -> dict[str, Usage]:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda-test extra")
    for tool in TOOLS:
        if find_tool(tool) is None:
            pytest.skip(f"{tool} is not installed; needs the cuda-test extra")
    return measure(module, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_module_stays_within_its_budget(module: SourceModule, architecture: str) -> None:
    assert compare(measured(module, architecture), load_budget()[architecture]) == []


def test_the_small_modules_stay_within_their_budget() -> None:
    for module in MODULES[:4]:
        assert compare(measured(module, "sm_90"), load_budget()["sm_90"]) == []


def test_no_kernel_is_allowed_to_spill_and_no_attention_to_load_narrowly() -> None:
    for kernels in load_budget().values():
        for name, usage in kernels.items():
            assert (usage.spills, usage.stack_bytes) == (0, 0), name
            assert usage.registers <= 255, name
        attention = {name: u for name, u in kernels.items() if name.startswith(ATTENTION)}
        assert len(attention) == 44  # 4 kinds of pages x (5 widths x decode, prefill; MLA)
        for name, usage in attention.items():
            assert usage.wide_async_copies > 0, name
            assert usage.tensor_products > 0, name


def test_more_registers_a_spill_or_a_narrow_load_is_a_problem() -> None:
    limit = Usage(64, 0, 0, 4, 0, 0, 8)
    allowed = {"k": limit}
    assert compare({"k": limit}, allowed) == []
    assert compare({"k": replace(limit, registers=65)}, allowed) == [
        "k uses 65 registers, its budget is 64"
    ]
    assert compare({"k": replace(limit, spills=2)}, allowed) == ["k uses 2 spills, its budget is 0"]
    assert compare({"k": replace(limit, wide_async_copies=0)}, allowed) == [
        "k has no wide_async_copies any more"
    ]
    assert "has no budget" in compare({"other": limit}, allowed)[0]
