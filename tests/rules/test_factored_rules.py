"""NDOT, S-TLLR, approximate OTPE and ES-D-RTRL: against bare tensors, on convolutions, and what is refused."""

from collections.abc import Callable

import pytest
import torch
from oracles import by_hand_traces
from oracles.networks import error, mlp, online_gradients, oracle, problem, scaled, sequence
from torch import Tensor, nn

from snnlearn import (
    ESDRTRL,
    LI,
    LIF,
    NDOT,
    OTTT,
    SLTT,
    STLLR,
    ApproximateOTPE,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    LearningRule,
    Readout,
    RuleChoiceError,
    attach,
    bptt_gradients,
    reset,
)

EXACT = 1e-12
DECAYS = [0.7, 0.6, 0.8]


def leaky_net() -> nn.Sequential:
    blocks = [ETBlock(ETLinear(7, 9), LIF(decay=DECAYS[0])), ETBlock(ETLinear(9, 8), LIF(decay=DECAYS[1]))]
    return scaled(nn.Sequential(*blocks, ETBlock(ETLinear(8, 3), LI(decay=DECAYS[2]))))  # type: ignore[return-value]


def spread(net: nn.Module) -> list[Tensor]:
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize(
    ("rule", "by_hand"),
    [
        (NDOT(), by_hand_traces.ndot),
        (STLLR(), lambda p, d, x, y: by_hand_traces.s_tllr(p, d, x, y, (0.2, 0.75, -1.0, 1.0))),
        (
            STLLR(pre_decay=0.5, post_decay=0.4, acausal=0.7, causal=1.3),
            lambda p, d, x, y: by_hand_traces.s_tllr(p, d, x, y, (0.4, 0.5, 0.7, 1.3)),
        ),
        (ApproximateOTPE(), by_hand_traces.approximate_otpe),
    ],
    ids=["NDOT", "S-TLLR", "S-TLLR with other factors", "approximate OTPE"],
)
def test_the_equations_without_autograd(
    rule: LearningRule, by_hand: Callable[[list[Tensor], list[float], Tensor, Tensor], list[Tensor]]
) -> None:
    net, x, y = problem(leaky_net(), sequence(7))
    mine, true = online_gradients(net, rule, x, y), by_hand(spread(net), DECAYS, x, y)
    for (name, gradient), expected in zip(mine.items(), true, strict=True):
        assert error(gradient, expected) < EXACT, name
    wrong = by_hand(spread(net), [0.7, 0.5, 0.8], x, y)
    assert error(mine["1.connection.weight"], wrong[2]) > 1e-3  # control: a leak that is not the network's
    other = online_gradients(net, OTTT(), x, y)
    assert error(mine["1.connection.weight"], other["1.connection.weight"]) > 1e-2  # control: it is a rule of its own
    single = online_gradients(net.float(), rule, x.float(), y)
    for name, gradient in mine.items():
        assert error(single[name].double(), gradient) < (1e-2 if rule.transition == "ratio" else 1e-5), name


def conv_net() -> nn.Module:
    blocks = [ETBlock(ETConv2d(1, 4, 3, padding=1), LIF(decay=0.7)), ETBlock(ETConv2d(4, 3, 3), LIF(decay=0.6))]
    return scaled(nn.Sequential(*blocks, nn.Flatten(), Readout(nn.Linear(48, 3))))


def as_linear(net: nn.Module, shape: tuple[int, int, int]) -> nn.Sequential:
    """The same network with every convolution written out as a matrix, weight by weight."""
    layers: list[nn.Module] = [nn.Flatten()]
    for module in net:  # type: ignore[attr-defined]
        if isinstance(module, ETBlock):
            kernel = module.connection
            basis = torch.eye(shape[0] * shape[1] * shape[2], dtype=torch.float64).reshape(-1, *shape)
            with torch.no_grad():
                plain = nn.functional.conv2d(basis, kernel.weight, None, padding=kernel.padding)
                wide = ETLinear(len(basis), plain[0].numel()).double()
                wide.weight.copy_(plain.flatten(1).T)
                wide.bias.copy_(kernel.bias.repeat_interleave(plain[0, 0].numel()))
            shape = tuple(plain.shape[1:])
            layers.append(ETBlock(wide, LIF(decay=module.neuron.decay)))
        elif isinstance(module, Readout):
            layers.append(module)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("rule", [OTTT(), NDOT(), STLLR(), ApproximateOTPE(), ESDRTRL()], ids=lambda rule: rule.name)
def test_a_convolution_is_its_matrix(rule: LearningRule) -> None:
    """The gradient of a kernel is that of the big matrix, summed over the places where the kernel stands."""
    net, x, y = problem(conv_net(), sequence(1, 6, 6))
    wide = as_linear(net, (1, 6, 6))
    mine, big = online_gradients(net, rule, x, y), online_gradients(wide, rule, x, y)
    shape = (1, 6, 6)
    for layer, name in ((0, "0"), (1, "1")):
        kernel = net[layer].connection.weight.detach().clone().requires_grad_()
        basis = torch.eye(shape[0] * shape[1] * shape[2], dtype=torch.float64).reshape(-1, *shape)
        plain = nn.functional.conv2d(basis, kernel, None, padding=net[layer].connection.padding)
        (true,) = torch.autograd.grad(plain.flatten(1).T, kernel, big[f"{layer + 1}.connection.weight"])
        assert error(mine[f"{name}.connection.weight"], true) < EXACT, name
        bias = big[f"{layer + 1}.connection.bias"].reshape(plain.shape[1], -1).sum(1)
        assert error(mine[f"{name}.connection.bias"], bias) < EXACT, name
        shape = tuple(plain.shape[1:])
    if rule.name != "OTTT":
        other = online_gradients(net, OTTT(), x, y)["0.connection.weight"]
        assert (error(other, mine["0.connection.weight"]) > 1e-3) == (rule.name != "NDOT")  # control


@pytest.mark.parametrize("rule", [NDOT(), STLLR(), ApproximateOTPE(), ESDRTRL()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("recurrent", [False, True])
def test_what_the_report_says_is_so(rule: LearningRule, recurrent: bool) -> None:
    """A row says exact where, and only where, the gradient is the yardstick's."""
    first = ETRecurrent(7, 9) if recurrent else ETLinear(7, 9)
    blocks = [ETBlock(first, LIF(decay=0.7)), ETBlock(ETLinear(9, 8), LIF(decay=0.6))]
    net, x, y = problem(scaled(nn.Sequential(*blocks, Readout(nn.Linear(8, 3)))), sequence(7))
    report, mine = attach(net, rule), online_gradients(net, rule, x, y)
    for row in report:
        later = ["1"] if row.parameter[0] == "0" and "later" in row.yardstick else []
        true = bptt_gradients(net, x, y, cut=later, cut_recurrent=recurrent)[row.parameter]
        assert (error(mine[row.parameter], true) < EXACT) == row.exact, row


def test_ndot_is_refused_where_no_membrane_comes_with_the_spikes() -> None:
    with pytest.raises(RuleChoiceError, match=r"take LIF\(\), or attach OTTT"):
        attach(mlp(CubaLIF), NDOT())
    blocks = [ETBlock(ETLinear(7, 9), LIF()), ETBlock(ETRecurrent(9, 8), LIF())]
    with pytest.raises(RuleChoiceError, match="own spikes as inputs too"):
        attach(nn.Sequential(*blocks, Readout(nn.Linear(8, 3))), NDOT())
    net = nn.Sequential(ETBlock(ETConv2d(1, 4, 3), LIF()), nn.Flatten(), ETBlock(ETLinear(64, 3), LI()))
    attach(net, NDOT())
    with pytest.raises(RuntimeError, match="does not come straight from a block"):
        net(torch.zeros(2, 1, 6, 6))


def test_o24_ndot_is_ottt_while_the_senders_stay_silent_after_one_volley() -> None:
    """After the first spikes every membrane decays by the leak alone, so each ratio is the leak."""
    net = mlp(lambda: LIF(decay=0.7))
    x, y = torch.zeros(10, 5, 7, dtype=torch.float64), torch.arange(5) % 3
    x[0] = torch.rand(5, 7)
    with torch.no_grad():
        net[0].connection.bias.zero_()  # type: ignore[index, union-attr]
    reset(net)
    volley = [net[0](x_t).detach() for x_t in x]  # type: ignore[index]
    assert 0.05 < float(volley[0].mean()) < 0.8
    assert all(float(spikes.sum()) == 0 for spikes in volley[1:])
    mine, true, none = (plain_loop(net, rule, x, y) for rule in (NDOT(), OTTT(), SLTT()))
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
    assert error(none["1.connection.weight"], true["1.connection.weight"]) > 1e-2  # control: the trace matters
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    mine, true = online_gradients(net, NDOT(), x, y), online_gradients(net, OTTT(), x, y)
    assert error(mine["1.connection.weight"], true["1.connection.weight"]) > 1e-2  # control: with spikes it is not


def plain_loop(net: nn.Module, rule: LearningRule, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """A loop without the check of firing rates: one layer here fires once by design."""
    attach(net, rule)
    net.zero_grad(set_to_none=True)
    for x_t in x:
        (nn.functional.cross_entropy(net(x_t), y) / len(x)).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None and p.grad.norm() > 0}


def test_o17_s_tllr_with_one_term_is_ottt_and_without_a_trace_sltt() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    name, full = "1.connection.weight", oracle(net, x, y)
    ottt, sltt = online_gradients(net, OTTT(), x, y), online_gradients(net, SLTT(), x, y)
    for lq in (0.0, 0.5):
        for lp in (0.7, None):
            mine = online_gradients(net, STLLR(lp, lq, acausal=0.0), x, y)
            assert all(error(mine[n], ottt[n]) < EXACT for n in ottt)
        mine = online_gradients(net, STLLR(0.0, lq, acausal=0.0), x, y)
        assert all(error(mine[n], sltt[n]) < EXACT for n in sltt)
    assert error(ottt[name], full[name]) < EXACT
    assert attach(net, STLLR(None, 0.5, acausal=0.0))[name].exact
    for other in (STLLR(0.7, 0.2), STLLR(0.5, 0.2, acausal=0.0), STLLR(0.7, 0.2, acausal=0.0, causal=0.9)):
        assert error(online_gradients(net, other, x, y)[name], full[name]) > 1e-2, other
        assert not attach(net, other)[name].exact


@pytest.mark.parametrize("shape", [(7,), (1, 6, 6)])
def test_o20_es_d_rtrl_that_forgets_at_once_is_ottt(shape: tuple[int, ...]) -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)) if len(shape) == 1 else conv_net(), sequence(*shape))
    ottt = online_gradients(net, OTTT(), x, y)
    mine = online_gradients(net, ESDRTRL(forgetting=0.0), x, y)
    assert all(error(mine[name], ottt[name]) < EXACT for name in ottt)
    name = "1.connection.weight"
    for other in (ESDRTRL(), ESDRTRL(forgetting=0.3), ESDRTRL(input_decay=0.4, forgetting=0.0)):
        assert error(online_gradients(net, other, x, y)[name], ottt[name]) > 1e-2, other
    given = LearningRule(trace_decay=0.4)
    mine, true = (online_gradients(net, rule, x, y) for rule in (ESDRTRL(0.4, 0.0), given))
    assert all(error(mine[name], true[name]) < EXACT for name in true)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ESDRTRL(forgetting=1.0), "forgetting=1.0"),
        (lambda: ESDRTRL(input_decay=1.5), "input_decay=1.5"),
        (lambda: STLLR(post_decay=1.0), "decay=1.0"),
        (lambda: LearningRule(transition="local", storage="synaptic", trace_decay=0.5), "only a leak takes a decay"),
    ],
)
def test_what_is_out_of_range_is_refused(make: Callable[[], LearningRule], words: str) -> None:
    with pytest.raises(RuleChoiceError, match=words):
        make()
