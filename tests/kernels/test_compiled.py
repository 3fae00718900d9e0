"""Every kernel compiles to machine code for sm_80 and sm_90, on a machine without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from snnlearn.kernels import dispatch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOMES = sorted(set(dispatch.TWINS.values()))
if any(importlib.util.find_spec(f"snnlearn.kernels.{home}") is None for home in HOMES):
    pytest.skip("the kernels were taken out", allow_module_level=True)
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set: nothing is compiled", allow_module_level=True)

NUMBERS = {"limit", "decay", "other_decay", "adaptation", "threshold", "initial", "first", "second", "third"}
SCAN = {"PADDED": 2, "BLOCK": 256, "restarts_at": "*u8"}
NEURON = {
    **dict.fromkeys(("KEEP", "ADAPTATION_IS_TENSOR", "THRESHOLD_IS_TENSOR", "INITIAL_IS_TENSOR"), False),
    **{"DECAY_IS_TENSOR": True, "decay": "*fp32", "OTHER_IS_TENSOR": False, "BLOCK": 256, "restarts_at": "*u8"},
}
ONES = {"rows": 1, "units": 1}
MOVES = {"FIRST_MOVES": True, "SECOND_MOVES": True, "TILE": 32, "STEPS": 16}
GIVEN: dict[str, list[dict[str, Any]]] = {
    "neuron_scan_kernel": [
        {**NEURON, "NEURON": 0, "RESET": 0, "RESTARTS": False, "y_at": "*bf16"},
        {**NEURON, "NEURON": 1, "RESET": 1, "RESTARTS": True, "KEEP": True},
        {**NEURON, "NEURON": 2, "RESET": 2, "RESTARTS": False, **ONES, "y_row": 1, "y_unit": 1},
    ],
    "cut_gradient_kernel": [{"SIGNALS": bump > 0, "BUMP": bump, "BLOCK": 256} for bump in range(8)],
    "scan_leak_kernel": [
        {**SCAN, "HIDDEN": 2, "RESTARTS": True},
        {**SCAN, "HIDDEN": 1, "PADDED": 1, "RESTARTS": False, **ONES},
    ],
    "roll_leak_kernel": [{**SCAN, "HIDDEN": 2, "TRACES": True, "RESTARTS": True}],
    "scan_chunk_kernel": [
        {**SCAN, "HIDDEN": 2, "RESTARTS": True},
        {**SCAN, "HIDDEN": 3, "PADDED": 4, "RESTARTS": False, **ONES},
    ],
    "roll_kernel": [{**MOVES, "HIDDEN": 1, "EMPTY": True}, {**MOVES, "HIDDEN": 2, "EMPTY": False, "x_at": "*bf16"}],
}
"""For every kernel the cases compiled: what a name stands for, a type in words or a constant."""


def kernels() -> dict[str, Any]:
    """Every kernel of `snnlearn.kernels` by its name."""
    modules = [importlib.import_module(f"snnlearn.kernels.{home}") for home in HOMES]
    return {name: thing for module in modules for name, thing in vars(module).items() if name.endswith("_kernel")}


def compiled(kernel: Any, capability: int, given: dict[str, Any]) -> Any:
    """The kernel for a GPU of this capability."""
    types, constants = {}, {}
    for name in kernel.arg_names:
        value = given.get(name, "*fp32" if name.endswith("_at") else "fp32" if name in NUMBERS else "i32")
        types[name] = value if isinstance(value, str) else "constexpr"
        if not isinstance(value, str):
            constants[name] = value
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})


def test_every_kernel_has_cases() -> None:
    assert set(kernels()) == set(GIVEN)


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("capability", [80, 90])
def test_a_kernel_compiles(name: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))  # nothing compiled before is taken
    for given in GIVEN[name][:: 1 if capability == 90 else 3]:
        code = compiled(kernels()[name], capability, given)
        assert f".target sm_{capability}" in code.asm["ptx"]
        assert len(code.asm["cubin"]) > 1000
