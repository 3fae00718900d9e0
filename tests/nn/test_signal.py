"""Signals in use: copies, resets, rules that come and go, what was shown and what was not."""

import copy
import pickle

import nets
import pytest
import torch
from nets import assert_alive, labels, live_input, live_net
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DECOLLE,
    DFA,
    ELL,
    LI,
    LIF,
    OPZO,
    OSTTP,
    OTTT,
    ETBlock,
    ETConv2d,
    ETLinear,
    FeedbackAlignment,
    LearningRule,
    RateTarget,
    Readout,
    RewardModulated,
    SignalError,
    TracesPropagation,
    attach,
    reset,
    show_reward,
    show_target,
)
from snnlearn.nn.signal_hub import hubs_of

ADAPTIVE = LearningRule(signal="adaptive", title="adaptive", rate=RateTarget(rate=0.1, weight=1.0))
RULES = [DFA(), FeedbackAlignment(), ADAPTIVE, LearningRule(signal="symmetric"), OSTTP(), DECOLLE(), ELL(), OPZO()]
EVERY = pytest.mark.parametrize("rule", [*RULES, RewardModulated(), TracesPropagation()], ids=lambda rule: rule.name)
STEPS = 4


def prepared(rule: LearningRule, batch: int = 4) -> tuple[nn.Sequential, Tensor, Tensor]:
    net, x, y = live_net(), live_input(2 * STEPS, batch), labels(batch)
    assert_alive(net, x, low=0.01)
    attach(net, rule)
    show(net, y)
    return net, x, y


def show(net: nn.Module, y: Tensor) -> None:
    nets.show(net, y, torch.linspace(-1.0, 1.0, len(y)).double())


def learn(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    net.zero_grad(set_to_none=True)
    for x_t in x:
        F.cross_entropy(net(x_t), y).backward()
    found = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    assert all(float(g.norm()) > 1e-9 for g in found.values())
    return found


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-10, atol=1e-12)


# Copies and resets.


@EVERY
def test_a_copy_in_mid_sequence_goes_on_alone(rule: LearningRule) -> None:
    net, x, y = prepared(rule)
    learn(net, x[:STEPS], y)
    twins = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]  # noqa: S301 (our own bytes)
    for twin in twins:
        assert all(a is not b for a in hubs_of(net) for b in hubs_of(twin))
        assert len(hubs_of(twin)) == len(hubs_of(net))
        nets.show(twin, (y + 1) % 3)  # the original does not see it
    expected = learn(net, x[STEPS:], y)
    for twin in twins:
        show(twin, y)
        assert_equal(learn(twin, x[STEPS:], y), expected)
        reset(twin)


@EVERY
def test_reset_forgets_and_rows_start_afresh(rule: LearningRule) -> None:
    if rule.signal == "noise":
        return  # its stream of noise and its estimate outlive a sequence: tests/rules/test_local_rules.py
    net, x, y = prepared(rule)
    fresh = learn(net, x[STEPS:], y)
    reset(net)
    learn(net, x[:STEPS], y)
    dirty = learn(net, x[STEPS:], y)
    assert any(not torch.allclose(dirty[name], fresh[name]) for name in fresh)  # control: the past matters
    reset(net)
    assert_equal(learn(net, x[STEPS:], y), fresh)
    if rule is ADAPTIVE:
        reset(net)
        learn(net, x[:STEPS], y)
        rows = torch.tensor([True, False, False, False])
        reset(net, rows)
        assert all(
            float(part[rows].abs().sum()) == 0 < float(part[~rows].abs().sum()) for part in net.hidden.signal.values
        )


def test_rules_come_and_go() -> None:
    net, x, y = prepared(ELL())
    plain = {name for name, _ in live_net().named_parameters()}
    assert {name for name, _ in net.named_parameters()} == plain | {"hidden.signal.head"}
    for rule, own in ((ADAPTIVE, {"hidden.signal.feedback"}), (DFA(), set()), (FeedbackAlignment(), set())):
        attach(net, rule)
        assert {name for name, _ in net.named_parameters()} == plain | own
        assert len(net._forward_hooks) == len(net._forward_pre_hooks) == int(rule.signal != "alignment")
        show(net, y)
        learn(net, x[:2], y)
    attach(net, OTTT())
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    assert hubs_of(net) == []
    assert net.hidden.feedback is None
    assert net.output.feedback is None
    assert_equal(learn(net, x, y), learn(attached(copy.deepcopy(net), OTTT()), x, y))


def attached(net: nn.Module, rule: LearningRule) -> nn.Module:
    attach(net, rule)
    return net


def test_a_part_has_a_signal_of_its_own() -> None:
    """The part is called inside a network: its broadcast is made where its own output is."""
    torch.manual_seed(1)
    part = live_net(sizes=(6, 12, 3))
    net = nn.Sequential(part, Readout(nn.Linear(3, 3)).double())
    attach(net, OTTT())
    attach(part, DFA())
    assert not net._forward_hooks
    assert len(part._forward_hooks) == 1
    x, y = live_input(STEPS, 4), labels(4)
    learn(net, x, y)
    error = []
    attach(part, DFA())
    handle = part.register_full_backward_pre_hook(lambda _m, gradient: error.append(gradient[0]))
    F.cross_entropy(net(x[0]), y).backward()
    handle.remove()
    assert error[0].shape == (4, 3)
    attach(net, OTTT())
    assert not part._forward_hooks


# What was shown.


@pytest.mark.parametrize("rule", [OSTTP(), DECOLLE(), ELL(), RewardModulated()], ids=lambda rule: rule.name)
def test_nothing_shown_is_an_error(rule: LearningRule) -> None:
    net, x, y = prepared(rule)
    show_target(net, None)
    show_reward(net, None)
    loss = F.cross_entropy(net(x[0]), y)
    with pytest.raises(SignalError, match="none was shown"):
        loss.backward()


@pytest.mark.parametrize("rule", [OTTT(), DFA(), OPZO(), ADAPTIVE], ids=lambda rule: rule.name)
def test_what_nobody_learns_from_is_refused(rule: LearningRule) -> None:
    net, _, y = prepared(rule)
    with pytest.raises(SignalError, match=r"a target was shown to a Sequential .*attach OSTTP\(\)"):
        show_target(net, y)
    with pytest.raises(SignalError, match=r"a reward was shown .*attach RewardModulated\(\)"):
        show_reward(net, 1.0)
    show_target(net, None)  # taking away what is not there is legal
    show_reward(net, None)


def test_each_is_shown_to_those_who_learn_from_it() -> None:
    net, _, y = prepared(OSTTP())
    with pytest.raises(SignalError, match="no block learns from a reward"):
        show_reward(net, 1.0)
    net, _, y = prepared(RewardModulated())
    with pytest.raises(SignalError, match="no block learns from a target"):
        show_target(net, y)


def test_a_part_may_be_shown_and_a_part_may_learn() -> None:
    """The blocks of a network share what they are shown, whichever part holds the call; a readout learns from none."""
    net, x, y = prepared(OSTTP())
    show_target(net, None)
    show_target(net.hidden, y)
    assert learn(net, x[:1], y)
    with pytest.raises(SignalError, match="pass the network"):
        show_target(net.output, y)
    inner = live_net()
    attach(inner, RewardModulated())
    whole = nn.Sequential(inner, nn.Linear(3, 3))
    show_reward(whole, 2.0)
    assert hubs_of(inner)[0].reward == 2.0


def test_what_can_be_shown(unchecked: None) -> None:
    net, _, _ = prepared(OSTTP())
    with pytest.raises(TypeError, match=r"target shown is a list: .*write torch\.as_tensor\(y\)"):
        show_target(net, [0, 1])  # type: ignore[arg-type]
    net, _, _ = prepared(RewardModulated())
    with pytest.raises(TypeError, match="the reward is '1'"):
        show_reward(net, "1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the reward is nan"):
        show_reward(net, float("nan"))


def test_what_does_not_fit_is_an_error() -> None:
    net, x, y = prepared(OSTTP())
    show_target(net, torch.zeros(4, 2))
    loss = F.cross_entropy(net(x[0]), y)
    with pytest.raises(SignalError, match=r"\[4, 2\]"):
        loss.backward()
    net, x, y = prepared(RewardModulated())
    show_reward(net, torch.zeros(3))
    loss = F.cross_entropy(net(x[0]), y)
    with pytest.raises(SignalError, match="one number per sample"):
        loss.backward()


def test_an_output_per_place_is_refused() -> None:
    net = nn.Sequential(ETBlock(ETLinear(3, 4), LIF()), ETBlock(ETLinear(4, 2), LI()))
    attach(net, DFA())
    with pytest.raises(TypeError, match=r"\[5, 6, 2\]"):
        net(torch.rand(5, 6, 3))
    with torch.no_grad():
        assert net(torch.rand(5, 6, 3)).shape == (5, 6, 2)  # nothing is learned, so nothing is refused
    reset(net)
    for rule in (ADAPTIVE, LearningRule(signal="symmetric")):
        mean = nn.Sequential(net[0], _MeanOverPlaces(), net[1])
        attach(mean, rule)
        with pytest.raises(SignalError, match="signal='random'"):
            F.cross_entropy(mean(torch.rand(5, 6, 3)), labels(5, 2)).backward()
    attach(mean, DFA())
    F.cross_entropy(mean(torch.rand(5, 6, 3)), labels(5, 2)).backward()
    assert net[0].signal.feedback.shape == (6, 4, 2)
    assert float(net[0].connection.weight.grad.norm()) > 0


class _MeanOverPlaces(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


# Modes and orders.


@EVERY
def test_eval_and_no_grad_leave_no_trace_of_it(rule: LearningRule) -> None:
    net, x, y = prepared(rule)
    before = copy.deepcopy(net.state_dict())
    net.eval()
    output = net(x[0])
    reset(net)
    net.train()
    with torch.no_grad():
        assert torch.equal(net(x[0]), output)
    reset(net)
    assert all(not hub.offered for hub in hubs_of(net))
    for key, value in net.state_dict().items():
        assert value == before[key] if isinstance(value, dict) else torch.equal(value, before[key])
    learn(net, x[:2], y)


def test_parts_called_by_hand_are_refused_and_a_failed_forward_is_forgotten() -> None:
    net, x, y = prepared(DFA())
    net.hidden(x[0])
    with pytest.raises(SignalError, match="as a whole"):
        net.hidden(x[1])
    reset(net)
    handle = net.output.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(OSError("planted")))
    with pytest.raises(OSError, match="planted"):
        net(x[0])
    handle.remove()
    reset(net)
    assert learn(net, x[:2], y)


def test_frozen_blocks_ask_for_no_signal() -> None:
    """A target is needed only by a block that learns; gradients of the others are as before."""
    net, x, y = prepared(OSTTP())
    learn(net, x[:2], y)
    net.hidden.requires_grad_(False)
    show_target(net, None)
    reset(net)
    assert learn(net, x[:2], y).keys() == {"output.connection.weight", "output.connection.bias"}
    net, x, y = prepared(ADAPTIVE)
    whole = learn(net, x[:2], y)
    net.hidden.signal.requires_grad_(False)
    reset(net)
    rest = learn(net, x[:2], y)
    assert "hidden.signal.feedback" not in rest
    assert_equal(rest, {name: whole[name] for name in rest})


def test_one_backward_for_many_steps_gives_each_step_its_own() -> None:
    """Without a trace a whole-sequence loss is legal: what a signal saw belongs to its step, not to the last one."""
    rule = LearningRule(transition="none", storage="none", signal="adaptive")
    net, x, y = prepared(rule)
    one_by_one = learn(net, x, y)
    reset(net)
    net.zero_grad(set_to_none=True)
    torch.stack([F.cross_entropy(net(x_t), y) for x_t in x]).sum().backward()
    assert_equal({n: p.grad for n, p in net.named_parameters()}, one_by_one)


def test_second_order_gradients_are_refused() -> None:
    net, x, y = prepared(DFA())
    with pytest.raises(RuntimeError, match="create_graph"):
        F.cross_entropy(net(x[0]), y).backward(create_graph=True)


@EVERY
def test_half_precision_outputs(rule: LearningRule) -> None:
    net, x, y = live_net(dtype=torch.float32), live_input(3, 4, dtype=torch.float32), labels(4)
    attach(net, rule)
    show(net, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x_t in x:
            output = net(x_t)
            F.cross_entropy(output.float(), y).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()
    assert float(net.hidden.connection.weight.grad.norm()) > 0


@EVERY
def test_maps_too(rule: LearningRule) -> None:
    if rule.signal in ("adaptive", "symmetric", "contrastive") or rule.storage == "synaptic":
        return  # refused for a convolution: tests/rules
    net = nn.Sequential(ETBlock(ETConv2d(2, 3, 3), LIF()), nn.Flatten(), ETBlock(ETLinear(48, 3), LI())).double()
    attach(net, rule)
    y = labels(4)
    show(net, y)
    assert learn(net, 4 * torch.rand(2, 4, 2, 6, 6, dtype=torch.float64), y).keys() >= {"0.connection.weight"}


# What a state_dict holds.


def test_the_keys_of_a_state_dict() -> None:
    plain = set(live_net().state_dict())
    for rule in (DFA(), FeedbackAlignment(), OSTTP(), DECOLLE(), RewardModulated()):
        net, x, y = prepared(rule)
        learn(net, x[:2], y)
        assert set(net.state_dict()) == plain, rule.name
    assert set(prepared(ELL())[0].state_dict()) == plain | {"hidden.signal.head"}
    assert set(prepared(ADAPTIVE)[0].state_dict()) == plain | {"hidden.signal.feedback"}
    net, x, y = prepared(OPZO())
    learn(net, x[:2], y)
    state = net.state_dict()
    assert set(state) == plain | {"hidden.signal._extra_state"}
    assert state["hidden.signal._extra_state"]["estimate"].shape == (3, 12)
    assert state["hidden.signal._extra_state"]["drawn"] == 2
