"""A batch norm inside a block under every rule that runs the block as one step: against BPTT and against OTTT."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles.networks import error, labels, lively, online_gradients, oracle, problem, sequence
from torch import Tensor, nn

from snnlearn import (
    ALIF,
    DRTRL,
    ESDRTRL,
    LI,
    LIF,
    OTPE,
    OTTT,
    SLTT,
    STLLR,
    ApproximateOTPE,
    EProp,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    LearningRule,
    Neuron,
    Readout,
    RuleChoiceError,
    attach,
    bptt_gradients,
    fidelity,
    reset,
)
from snnlearn.functional.batch_ties import BatchTies
from snnlearn.functional.traced_step import Step
from snnlearn.nn import normed_step
from snnlearn.nn.factored_trace import FactoredTrace
from snnlearn.nn.step_trace import StepTrace
from snnlearn.rules import RULES

EXACT = 1e-12
pytestmark = pytest.mark.usefixtures("quick")

NEURONS: dict[str, Callable[[], Neuron]] = {
    "LIF": lambda: LIF(decay=0.7),
    "LIF, attached soft reset": lambda: LIF(decay=0.7, detach_reset=False),
    "LIF, hard reset": lambda: LIF(decay=0.7, reset="hard"),
    "LIF, attached hard reset": lambda: LIF(decay=0.7, reset="hard", detach_reset=False),
    "ALIF": lambda: ALIF(tau=3.0),
    "LIF, learned": lambda: LIF(decay=0.7, learn=("decay", "threshold", "initial_membrane")),
    "ALIF, learned": lambda: ALIF(tau=3.0, learn=("decay", "adaptation")),
}


def drawn(norm: Any, frozen: bool) -> Any:
    """The norm with constants that are no ones and zeros, in the mode asked for."""
    for name, low, high in (("weight", 0.6, 1.2), ("bias", 0.1, 0.4), ("running_mean", -0.2, 0.2)):
        value = getattr(norm, name)
        if value is not None:
            nn.init.uniform_(value, low, high)
    if norm.running_var is not None:
        nn.init.uniform_(norm.running_var, 0.3, 0.8)
    return norm.train(not frozen)


def network(neuron: Callable[[], Neuron], frozen: bool, above: bool = False, last: Any = None) -> nn.Sequential:
    """A normalised block, one with memory above it (normalised too where `above` says so), and a readout."""
    bias = frozen  # batch statistics take any bias away again
    first = ETBlock(ETLinear(7, 9, bias=bias), neuron(), drawn(nn.BatchNorm1d(9), frozen))
    norm = drawn(nn.BatchNorm1d(8), frozen) if above else None
    second = ETBlock(ETLinear(9, 8, bias=bias or not above), LIF(decay=0.6), norm)
    return nn.Sequential(first, second, Readout(nn.Linear(8, 3)) if last is None else last).double()


def of_block(gradients: dict[str, Tensor], block: str = "0.") -> list[str]:
    return [name for name in gradients if name.startswith(block)]


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch statistics"])
@pytest.mark.parametrize("name", NEURONS)
def test_o6_and_o7_d_rtrl_follows_the_norm(name: str, frozen: bool) -> None:
    """Every parameter of a normalised block, for any reset and adaptation; batch statistics are followed as well."""
    net, x, y = problem(network(NEURONS[name], frozen), sequence(7))
    mine, true = online_gradients(net, DRTRL(), x, y), oracle(net, x, y, ["1"])
    report = attach(net, DRTRL())
    own = of_block(mine)
    assert {"0.connection.weight", "0.norm.weight", "0.norm.bias"} <= set(own)
    assert any(".neuron." in parameter for parameter in own) == ("learned" in name)
    for parameter in own:
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
        assert report[parameter].exact, parameter
        assert report[parameter].yardstick == report["0.connection.weight"].yardstick
    spatial = online_gradients(net, SLTT(), x, y)
    assert error(spatial["0.norm.weight"], true["0.norm.weight"]) > 1e-2
    assert error(spatial["0.connection.weight"], true["0.connection.weight"]) > 1e-2


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch statistics"])
def test_o13_otpe_and_the_relay_through_a_norm_above(frozen: bool) -> None:
    """The signal passes the norm of the block above, exactly; its filter does only while that one is frozen."""
    net, x, y = problem(network(NEURONS["LIF"], frozen, above=True), sequence(7))
    mine, true = online_gradients(net, DRTRL(), x, y), oracle(net, x, y, ["1"])
    for parameter in of_block(mine):
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
    filtered, full, report = online_gradients(net, OTPE(), x, y), oracle(net, x, y), attach(net, OTPE())
    for parameter in of_block(filtered):
        assert (error(filtered[parameter], full[parameter]) < EXACT) == report[parameter].exact == frozen, parameter
    for parameter in of_block(filtered, "1."):
        assert error(filtered[parameter], full[parameter]) < EXACT, parameter
    assert ("in the next block" in report["0.norm.weight"].why) == frozen
    assert ("batch statistics" in report["0.norm.weight"].why) != frozen
    assert error(mine["0.norm.weight"], full["0.norm.weight"]) > 1e-2  # control: the filter is needed


Plant = Callable[[Step, Tensor, Any, Any], Step]
behind = normed_step.step_behind_norm


@pytest.mark.parametrize(
    ("plant", "frozen"),
    [
        (lambda step, scale, affine, ties: behind(step, torch.ones_like(scale), affine, ties), True),
        (lambda step, scale, affine, ties: behind(step, 1 / scale, affine, ties), True),
        (lambda step, scale, affine, ties: behind(step, scale, affine, None), False),
        (lambda step, scale, affine, ties: behind(step, scale, affine, BatchTies(-ties.z + 0.1)), False),
    ],
    ids=["no factor", "its inverse", "no ties", "wrong ties"],
)
def test_what_is_planted_is_seen(plant: Plant, frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = problem(network(NEURONS["LIF"], frozen, above=True), sequence(7))
    true = oracle(net, x, y, ["1"])
    assert error(online_gradients(net, DRTRL(), x, y)["0.connection.weight"], true["0.connection.weight"]) < EXACT
    monkeypatch.setattr(normed_step, "step_behind_norm", plant)
    wrong = online_gradients(net, DRTRL(), x, y)
    assert error(wrong["0.connection.weight"], true["0.connection.weight"]) > 1e-2
    assert error(wrong["0.norm.weight"], true["0.norm.weight"]) > 1e-2, "the relay of the block above is wrong too"


def maps(frozen: bool) -> nn.Sequential:
    block = ETBlock(ETConv2d(2, 4, 3, bias=frozen), LIF(decay=0.7), drawn(nn.BatchNorm2d(4), frozen))
    return nn.Sequential(block, nn.Flatten(), Readout(nn.Linear(24, 3))).double()


def lines(frozen: bool) -> nn.Sequential:
    block = ETBlock(ETLinear(7, 9, bias=frozen), LIF(decay=0.7), drawn(nn.BatchNorm1d(9), frozen))
    return nn.Sequential(block, Readout(nn.Linear(9, 3))).double()


def synaptic(**choices: Any) -> LearningRule:
    return LearningRule(storage="synaptic", **choices)


REDUCTIONS: dict[str, tuple[LearningRule, LearningRule]] = {
    "S-TLLR without its post part = OTTT": (STLLR(pre_decay=0.7, acausal=0.0), OTTT()),
    "rank one without memory of its own = OTTT": (ESDRTRL(forgetting=0.0), OTTT()),
    "approximate OTPE with nothing above = OTTT": (ApproximateOTPE(), OTTT()),
    "a filter of nothing = OTTT": (synaptic(trace_filter="above"), OTTT()),
    "e-prop with kappa 0 = D-RTRL": (EProp("spatial", kappa=0.0), DRTRL()),
}


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch statistics"])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("build", [lines, maps], ids=["linear", "convolution"])
def test_reductions_hold_through_a_norm(name: str, frozen: bool, build: Callable[[bool], nn.Sequential]) -> None:
    rule, plain = REDUCTIONS[name]
    shape = (7,) if build is lines else (2, 5, 4)
    net, x, y = problem(build(frozen), sequence(*shape))
    if rule.storage == "synaptic" and build is maps:
        with pytest.raises(RuleChoiceError, match="as many synapses as there are places"):
            attach(net, rule)
        return
    mine, true = online_gradients(net, rule, x, y), online_gradients(net, plain, x, y)
    for parameter in mine:
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
    report, full = attach(net, plain), oracle(net, x, y)
    for parameter in ("0.connection.weight", "0.norm.weight", "0.norm.bias"):
        assert (error(true[parameter], full[parameter]) < EXACT) == report[parameter].exact, parameter
    assert report["0.norm.weight"].exact
    assert report["0.connection.weight"].exact == (frozen or plain == DRTRL())


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch statistics"])
def test_a_norm_under_the_leaky_mean_of_the_gate(frozen: bool) -> None:
    """Approximate OTPE of a convolution below a block: its filter and mean are approximate, gain and bias are not."""
    block = ETBlock(ETConv2d(2, 4, 3, bias=False), LIF(decay=0.7), drawn(nn.BatchNorm2d(4), frozen))
    layers = [block, nn.Flatten(), ETBlock(ETLinear(24, 8), LIF(decay=0.6)), Readout(nn.Linear(8, 3))]
    net, x, y = problem(nn.Sequential(*layers).double(), sequence(2, 5, 4))
    rule = ApproximateOTPE()
    mine, true, report = online_gradients(net, rule, x, y), oracle(net, x, y), attach(net, rule)
    for parameter in ("0.norm.weight", "0.norm.bias"):
        assert error(mine[parameter], true[parameter]) < EXACT
        assert report[parameter].exact
    assert not report["0.connection.weight"].exact
    near = torch.cosine_similarity(mine["0.connection.weight"].flatten(), true["0.connection.weight"].flatten(), dim=0)
    assert 0.5 < float(near) < 0.9999


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch statistics"])
@pytest.mark.parametrize("options", [{"affine": False}, {"bias": False}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("rule", [DRTRL(), STLLR(pre_decay=0.7, acausal=0.0)], ids=lambda rule: rule.name)
def test_norms_without_one_part_or_another(rule: LearningRule, options: dict[str, bool], frozen: bool) -> None:
    """Without running statistics those of the step count in eval() too."""
    norm = drawn(nn.BatchNorm1d(9, **options), frozen)  # type: ignore[arg-type]
    first = ETBlock(ETLinear(7, 9, bias=False), LIF(decay=0.7), norm)
    net, x, y = problem(nn.Sequential(first, Readout(nn.Linear(9, 3))).double(), sequence(7))
    mine, true, report = online_gradients(net, rule, x, y), oracle(net, x, y), attach(net, rule)
    tied = not frozen or "track_running_stats" in options
    assert len(of_block(mine)) == 1 + len(list(norm.parameters()))
    for parameter in of_block(mine):
        exact = rule == DRTRL() or ".norm." in parameter or not tied
        assert (error(mine[parameter], true[parameter]) < EXACT) == exact, parameter
        assert not report[parameter].exact or exact
    assert report["0.connection.weight"].exact == (rule == DRTRL() or not tied)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_values_and_running_statistics_are_the_modules_own(momentum: float | None) -> None:
    net, x, _ = problem(network(LIF, frozen=False), sequence(7))
    net[0].norm.momentum = momentum
    twin = copy.deepcopy(net)
    attach(net, DRTRL())
    attach(twin, SLTT())
    assert isinstance(net[0].connection.trace, StepTrace)
    for x_t in x:
        assert torch.equal(net(x_t), twin(x_t))
        for (key, mine), (_, true) in zip(net[0].norm.named_buffers(), twin[0].norm.named_buffers(), strict=True):
            assert torch.equal(mine, true), key
    assert int(net[0].norm.num_batches_tracked - twin[0].norm.num_batches_tracked) == 0
    assert not torch.equal(net[0].norm.running_mean, torch.zeros(9).double())
    kept = net[0].norm.running_mean.clone()
    net[0].norm.eval()
    net(x[0])
    assert torch.equal(net[0].norm.running_mean, kept)


def test_the_mode_is_looked_at_in_every_step() -> None:
    """A norm that is frozen in every other step: D-RTRL is BPTT of the same, from a rule attached while frozen."""
    net, x, y = problem(network(NEURONS["LIF, hard reset"], frozen=True), sequence(7))
    steps = itertools.count()
    net.register_forward_pre_hook(lambda *_: (net[0].norm.train(next(steps) % 2 == 1), None)[1])
    net[0].norm.momentum = 0.0  # autograd would go back through frozen steps by the statistics of the last one
    mine, true = online_gradients(net, DRTRL(), x, y), oracle(net, x, y, ["1"])
    assert net[0].norm.num_batches_tracked > 0
    for parameter in of_block(mine):
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
    report = attach(net, STLLR(pre_decay=0.7, acausal=0.0))  # the last step has left it in train()
    assert "only while the norm stays in eval()" in report["0.connection.weight"].why
    assert "stays" not in attach(net, DRTRL())["0.connection.weight"].why, "both modes are followed, so no condition"


def test_learned_constants_under_ottt_join_the_step() -> None:
    """OTTT with learned constants runs as one step, also through a norm."""
    net, x, y = problem(network(NEURONS["LIF, learned"], frozen=True), sequence(7))
    mine, true, report = online_gradients(net, OTTT(), x, y), oracle(net, x, y, ["1"]), attach(net, OTTT())
    assert isinstance(net[0].connection.trace, FactoredTrace)
    assert net[0].norm_trace is None
    for parameter in of_block(mine):
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
        assert report[parameter].exact, parameter
    net[0].norm = nn.LayerNorm(9).double()
    assert not attach(net, OTTT())["0.neuron.decay_logit"].exact  # a norm that a step does not know: as before


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch statistics"])
def test_a_recurrent_connection(frozen: bool) -> None:
    first = ETBlock(ETRecurrent(7, 9, bias=False), NEURONS["ALIF"](), drawn(nn.BatchNorm1d(9), frozen))
    net, x, y = problem(nn.Sequential(first, Readout(nn.Linear(9, 3))).double(), sequence(7))
    mine, true = online_gradients(net, DRTRL(), x, y), bptt_gradients(net, x, y, cut_recurrent=True)
    for parameter in of_block(mine):
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
    full = oracle(net, x, y)
    assert error(mine["0.norm.weight"], full["0.norm.weight"]) > 1e-3


def leaky_readout(frozen: bool, norm: bool) -> ETBlock:
    return ETBlock(ETLinear(8, 3, bias=frozen), LI(tau=3.0), drawn(nn.BatchNorm1d(3), frozen) if norm else None)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch statistics"])
@pytest.mark.parametrize("norm", [True, False], ids=["normed readout", "plain readout"])
def test_every_claim_of_every_rule_holds(frozen: bool, norm: bool) -> None:
    x, y = sequence(7, steps=6), labels()
    net = lively(network(NEURONS["LIF"], frozen, above=True, last=leaky_readout(frozen, norm)), x)
    lone = nn.Sequential(net[1], net[2])  # for the broadcast that takes one hidden block
    inner = (torch.rand(6, 5, 9) < 0.4).double()
    rules = [make() for make in RULES.values() if make().online]
    found = fidelity(net, (x, y), [rule for rule in rules if rule.signal != "symmetric"], lengths=[6])
    assert not found.broken
    held = {(row.rule, row.parameter) for row in found if row.claim == "holds"}
    assert {("D-RTRL", "0.norm.weight"), ("D-RTRL", "1.connection.weight"), ("OTTT", "0.norm.bias")} <= held
    assert (("OTPE", "1.norm.weight") in held) == (frozen or not norm)
    symmetric = fidelity(lone, (inner, y), [EProp(), EProp("spatial")], lengths=[6])
    assert not symmetric.broken
    by_rule = {row.rule: row for row in symmetric if row.parameter == "0.norm.weight"}
    assert {name: row.claim for name, row in by_rule.items()} == {
        "e-prop": "approximate" if norm else "holds",
        "e-prop (2)": "approximate" if norm and not frozen else "holds",
    }


class Doubled(nn.BatchNorm1d):
    """A subclass whose forward no trace can know."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("norm", [nn.LayerNorm(9), nn.GroupNorm(3, 9), nn.RMSNorm(9), Doubled(9)], ids=str)
def test_other_norms_are_refused_before_anything_is_changed(norm: nn.Module) -> None:
    net = nn.Sequential(ETBlock(ETLinear(7, 9), LIF(), norm), Readout(nn.Linear(9, 3)))
    for rule in (DRTRL(), STLLR()):
        words = rf"has a {type(norm).__name__} between them.*write norm=nn\.BatchNorm1d\("
        with pytest.raises(RuleChoiceError, match=words):
            attach(net, rule)
    assert net[0].connection.trace is None


def test_what_comes_after_attaching_raises() -> None:
    net, x, _ = problem(network(LIF, frozen=False), sequence(7))
    attach(net, DRTRL())
    handle = net[0].norm.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match=r"BatchNorm1d has a hook.*hook the ETBlock"):
        net(x[0])
    handle.remove()
    reset(net)
    net(x[0]).sum().backward()
    net[0].norm = nn.LayerNorm(9).double()
    with pytest.raises(TypeError, match=r"got a LayerNorm as norm after its rule was attached.*attach the rule again"):
        net(x[1])
    wide = ETBlock(ETLinear(4, 3), LIF(), nn.BatchNorm1d(5))
    attach(wide, DRTRL())
    with pytest.raises(ValueError, match=r"\[2, 5, 5\] under a rule per synapse"):
        wide(torch.rand(2, 5, 4))
    reset(wide)
    wide.norm.eval()
    wide(torch.rand(2, 5, 4)).sum().backward()
    assert wide.norm.weight.grad is not None


def test_single_precision_stays_near() -> None:
    for frozen in (True, False):
        net, x, y = problem(network(NEURONS["ALIF"], frozen), sequence(7))
        exact = online_gradients(net, DRTRL(), x, y)
        single = online_gradients(net.float(), DRTRL(), x.float(), y)
        for parameter, gradient in exact.items():
            assert error(single[parameter].double(), gradient) < 1e-4, parameter
