"""The references as torch compiles them for the CPU; run by `test_compiled_here.py`, without run-time shape checks.

torch cannot compile what is wrapped in the checks of the suite's conftest, hence a process of its own.
"""

from __future__ import annotations

import logging

import pytest
import torch
from kernel_work import learned

from snnlearn import ArcTan
from snnlearn.functional.cut_step import cut_gradient, spike_gate
from snnlearn.functional.neuron_scan import NeuronConstants, alif_scan, lif_scan
from snnlearn.kernels import compiled, dispatch

if compiled.compiler_missing():
    pytest.skip(compiled.compiler_missing(), allow_module_level=True)


def test_a_scan_with_restarts_and_room_for_the_state() -> None:
    torch.manual_seed(0)
    y, zero = 1.5 * torch.rand(5, 3, 33, dtype=torch.float64), torch.zeros(3, 33, dtype=torch.float64)
    restarts = torch.zeros(5, 3, dtype=torch.bool)
    restarts[2, 1] = restarts[0, 0] = True
    constants = NeuronConstants(torch.linspace(0.3, 0.9, 33), 0.9, "soft", ArcTan(), 0.1, 0.8, 0.2)
    arguments = (y, (zero, zero), constants, restarts)
    room = [tuple(torch.full((5, 3, 33), torch.nan, dtype=torch.float64) for _ in range(2)) for _ in range(2)]
    expected = alif_scan(*arguments, room[0])
    with dispatch.use("compiled"):
        found = dispatch.run(alif_scan, *arguments, room[1])
    assert 0.02 < float(expected[0].mean()) < 0.8
    assert torch.equal(found[0], expected[0])
    for ours, theirs in zip((found[1], *found[2], *room[1]), (expected[1], *expected[2], *room[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert not torch.equal(alif_scan(*arguments[:3])[1], expected[1])


def test_a_learner_runs_compiled_and_falls_back_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_said", set())
    with dispatch.use("compiled"):
        found = learned("ottt")
    said = {(name, path) for name, path, _ in dispatch._said}
    assert said == {(name, "compiled") for name in ("lif_scan", "spike_gate")} | {
        (name, "reference") for name in ("scan_leak", "roll_leak_trace")
    }
    with dispatch.use("reference"):
        expected = learned("ottt")
    for ours, theirs in zip(found, expected, strict=True):
        assert float(theirs.abs().max()) > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_function_per_kind_and_no_more_than_a_number_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_functions", {})
    monkeypatch.setattr(compiled, "MOST", 1)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    one, two = torch.ones(2), torch.ones(3)
    with caplog.at_level(logging.INFO, logger="snnlearn.kernels"), dispatch.use("compiled"):
        for _ in range(2):
            assert torch.equal(dispatch.run(cut_gradient, one, one, ArcTan()), cut_gradient(one, one, ArcTan()))
        with pytest.raises(dispatch.KernelUnavailableError, match=r"cut_gradient was to run as compiled.*1 func"):
            dispatch.run(cut_gradient, two, two, ArcTan())
        with pytest.raises(dispatch.KernelUnavailableError, match="would be one more"):
            dispatch.run(lif_scan, two[None], (two,), NeuronConstants(0.5, 1.0, "soft", ArcTan()))
        with dispatch.use("compiled", strict=False):
            assert torch.equal(dispatch.run(spike_gate, two, ArcTan()), spike_gate(two, ArcTan()))
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(" in ")[0] for line in said if "compiled for" in line] == ["cut_gradient compiled for [2], [2]"]
    assert any(line.startswith("spike_gate runs as reference: 1 functions are compiled") for line in said)


def test_what_is_compiled_for_the_cpu_takes_no_other_tensors() -> None:
    meta = torch.ones(2, device="meta")
    with dispatch.use("compiled"), pytest.raises(dispatch.KernelUnavailableError, match="the tensors are on meta"):
        dispatch.run(spike_gate, meta, ArcTan())
    with dispatch.use("compiled"), pytest.raises(dispatch.KernelUnavailableError, match="sparse_coo"):
        dispatch.run(spike_gate, torch.ones(2).to_sparse(), ArcTan())
