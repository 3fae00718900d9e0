"""Which path runs, why, and what is said about it; with Triton and without, and without the twins."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import logging
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from snnlearn.functional import ArcTan, chunk, chunk_roll, neuron_scan
from snnlearn.functional.cut_step import cut_gradient, spike_gate
from snnlearn.functional.lif import lif_leak_transition
from snnlearn.functional.neuron_scan import NeuronConstants, lif_scan
from snnlearn.kernels import dispatch

CUT = importlib.import_module("snnlearn.functional.cut_step")  # its name in the package is the function
PACKAGE = Path(dispatch.__file__).parents[1]
REFERENCES = {
    name: next(vars(home)[name] for home in (neuron_scan, chunk, chunk_roll, CUT) if name in vars(home))
    for name in dispatch.TWINS
}
CONSTANTS = NeuronConstants(0.5, 1.0, "soft", ArcTan())
SCAN = (torch.full((2, 1), 0.75), (torch.zeros(1),), CONSTANTS)


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Let the modules named look as if they were not installed."""
    monkeypatch.setattr(dispatch, "_is_installed", lambda name: name not in missing)


@pytest.fixture(autouse=True)
def _left_to_itself() -> Iterator[None]:
    """Whatever path the suite runs by."""
    with dispatch.use("auto"):
        yield


@pytest.fixture
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_said", set())


@pytest.mark.usefixtures("_nothing_said")
def test_the_reference_runs_on_the_cpu_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="snnlearn.kernels"):
        for _ in range(2):
            found = dispatch.run(lif_scan, *SCAN)
        with dispatch.use("reference"):
            dispatch.run(lif_scan, *SCAN)
            dispatch.run(lif_scan, *SCAN)
    assert torch.equal(found[1], lif_scan(*SCAN)[1])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("lif_scan runs as reference: ")
    assert said[1] == "lif_scan runs as reference: chosen with use('reference')"


@pytest.mark.parametrize(
    ("missing", "reason"),
    [("triton", "triton is not installed"), ("snnlearn.kernels.neuron_scan", "neuron_scan is not installed")],
)
def test_a_choice_never_falls_back(monkeypatch: pytest.MonkeyPatch, missing: str, reason: str) -> None:
    without(monkeypatch, missing)
    assert torch.equal(dispatch.run(lif_scan, *SCAN)[1], lif_scan(*SCAN)[1])
    with dispatch.use("triton"), pytest.raises(dispatch.KernelUnavailableError, match=reason):
        dispatch.run(lif_scan, *SCAN)
    with pytest.raises(dispatch.KernelUnavailableError), dispatch.use("triton"):
        dispatch.run(lif_scan, *SCAN)
    assert dispatch.path_in_use() == "auto"


def test_a_choice_that_is_not_strict_falls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="snnlearn.kernels"), dispatch.use("triton", strict=False):
        dispatch.run(spike_gate, torch.ones(1, dtype=torch.float64), ArcTan())
    assert "spike_gate runs as reference: torch.float64: the kernels take" in caplog.text


def test_the_environment_chooses_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNNLEARN_KERNELS", "reference")
    assert runpy.run_path(str(dispatch.__file__))["path_in_use"]() == "reference"
    monkeypatch.setenv("SNNLEARN_KERNELS", "cuda")
    module = runpy.run_path(str(dispatch.__file__))  # the import goes through, the first use does not
    for use in (module["path_in_use"], lambda: module["run"](lif_scan, *SCAN)):
        with pytest.raises(ValueError, match=r"=cuda: choose one of auto, reference, triton, .*; write SNN.*=auto$"):
            use()
    monkeypatch.setenv("SNNLEARN_KERNELS", "")
    assert runpy.run_path(str(dispatch.__file__))["path_in_use"]() == "auto"
    monkeypatch.delenv("SNNLEARN_KERNELS")
    assert runpy.run_path(str(dispatch.__file__))["path_in_use"]() == "auto"


@pytest.mark.parametrize("wrong", ["", "s", "refrence"])
def test_a_wrong_path_is_told_with_what_to_write(wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"use({wrong!r}): choose one of ")) as told, dispatch.use(wrong):
        pass
    assert str(told.value).endswith("; write use('auto')")


def test_what_a_twin_cannot_take_is_said() -> None:
    one = torch.ones(2, 1)
    cases = {
        "torch.float64: the kernels take": (one.double(), one.double(), ArcTan()),
        "a tensor requires grad": (one.clone().requires_grad_(), one, ArcTan()),
        "sparse_coo: the kernels take dense": (one.to_sparse(), one, ArcTan()),
        "tensors on cpu and meta": (one, one.to("meta"), ArcTan()),
    }
    for reason, arguments in cases.items():
        assert reason in dispatch.why_not("cut_gradient", *arguments)
    with torch.no_grad():
        assert "requires grad" not in dispatch.why_not("cut_gradient", *cases["a tensor requires grad"])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_what_a_kernel_has_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_interpreting", lambda: True)
    x = torch.zeros(2, 1, 1)
    wide = lif_leak_transition(0.5)._replace(drive=(1.0,) * 5)
    jacobian = chunk.Jacobian(*(torch.zeros(*side, 2, 1, 1) for side in ((5, 5), (5,), (5,), ())))
    for name, arguments, reason in (
        ("lif_scan", (x, (x[0],), CONSTANTS._replace(surrogate=ArcTan().smoothed())), "its spikes are graded"),
        ("lif_scan", (x, (x[0].bfloat16(),), CONSTANTS), "a state in torch.bfloat16"),
        ("lif_scan", (x[:0], (x[0],), CONSTANTS), "nothing to scan"),
        ("cut_gradient", (x, x, ArcTan().smoothed()), "the kernels know arctan"),
        ("scan_leak", (x, wide), "5 hidden values: the kernel has up to 4"),
        ("roll_leak_trace", (None, x, wide), "5 hidden values"),
        ("scan_chunk", (jacobian, x), "5 hidden values"),
        ("roll_eligibility", (None, x, torch.zeros(3, 2, 1, 1), x), "3 hidden values"),
        ("roll_eligibility", ([torch.zeros(1, 2, 4).mT], x, x[None], x), "rows do not lie"),
    ):
        assert reason in dispatch.why_not(name, *arguments), name
    assert dispatch.why_not("cut_gradient", x, x, ArcTan()) == ""


def test_unknown_names_are_refused() -> None:
    words = r"choose one of auto, reference, triton, compiled; write use\('auto'\)"
    with pytest.raises(ValueError, match=words), dispatch.use("cuda"):
        pass
    with pytest.raises(ValueError, match="it has no twin"):
        dispatch.run(lif_leak_transition, 0.5)


@pytest.mark.parametrize("name", dispatch.TWINS)
def test_a_twin_has_the_signature_of_its_reference(name: str) -> None:
    home = f"snnlearn.kernels.{dispatch.TWINS[name]}"
    if importlib.util.find_spec(home) is None:
        pytest.skip(f"{home} is not installed")
    twin, reference = getattr(importlib.import_module(home), name), REFERENCES[name]
    ours, theirs = inspect.signature(twin).parameters, inspect.signature(reference).parameters
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def imports_of_kernels(source: str) -> set[str]:
    """Modules of `snnlearn.kernels` that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[2] for name in found if name.startswith("snnlearn.kernels.")}


def test_nothing_but_the_dispatcher_knows_the_twins() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "kernels"]
    assert {name for path in others for name in imports_of_kernels(path.read_text())} <= {"dispatch"}
    assert imports_of_kernels("from snnlearn.kernels import fold\nimport snnlearn.kernels.dispatch") == {
        "fold",
        "dispatch",
    }


def test_the_package_does_without_its_twins(tmp_path: Path) -> None:
    """A copy whose kernels are deleted, the dispatcher apart, runs as before and says why it takes the reference."""
    shutil.copytree(PACKAGE, tmp_path / "snnlearn", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "snnlearn" / "kernels").glob("*.py"):
        if path.name not in ("__init__.py", "dispatch.py"):
            path.unlink()
    code = (
        "import torch, snnlearn; from snnlearn.kernels import dispatch; "
        "from snnlearn.functional.cut_step import cut_gradient; one = torch.ones(1); "
        "print(snnlearn.__file__, dispatch.run(cut_gradient, one, one, snnlearn.ArcTan()).item()); "
        "print(dispatch.why_not('cut_gradient', one, one, snnlearn.ArcTan()))"
    )
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    file, value, reason = done.stdout.split(maxsplit=2)
    assert file.startswith(str(tmp_path))
    assert float(value) == pytest.approx(cut_gradient(torch.ones(1), torch.ones(1), ArcTan()).item())
    assert reason.strip() == "snnlearn.kernels.neuron_scan is not installed"
