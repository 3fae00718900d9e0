"""The life of transient state: born with the input's shape, moved and copied with its module, never saved."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from nets import (
    assert_alive,
    assert_same,
    everything,
    furthest,
    gradients,
    labels,
    live_input,
    live_net,
    loop_gradients,
    maps,
    state_tensors,
)
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    BPTT,
    IF,
    LI,
    LIF,
    OTTT,
    SLTT,
    CubaLIF,
    ETBlock,
    ETConv2d,
    LearningRule,
    Neuron,
    StateShapeError,
    TimeConstantDropout,
    attach,
    reset,
)
from snnlearn.functional import ArcTan
from snnlearn.nn import stashed_state

ONLINE = pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)
NEURONS: list[Callable[[], Neuron]] = [IF, LIF, CubaLIF, ALIF, LI]


# S01: the batch size changes.


@ONLINE
def test_every_sequence_has_its_own_batch_size(rule: LearningRule, device: torch.device) -> None:
    """10 samples as 4, 4, 2; then 3; then 1 after 4: each as a fresh network would have it."""
    net = live_net(device)
    fresh = copy.deepcopy(net)
    attach(net, rule)
    x, y = live_input(5, 10, device=device), labels(10, device=device)
    assert_alive(net, x)
    for rows in (slice(0, 4), slice(4, 8), slice(8, 10), slice(0, 3), slice(0, 4), slice(9, 10)):
        found = loop_gradients(net, x[:, rows], y[rows])
        alone = copy.deepcopy(fresh)
        attach(alone, rule)
        assert_same(found, loop_gradients(alone, x[:, rows], y[rows]), 1e-14)


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4), (4, 2), (2, 4)])
@ONLINE
def test_another_batch_size_in_mid_sequence_raises(
    before: int, after: int, rule: LearningRule, device: torch.device
) -> None:
    """1 row would broadcast over 4, or take their state."""
    net = live_net(device)
    attach(net, rule)
    net(live_input(1, before, device=device)[0]).sum().backward()
    with pytest.raises(StateShapeError, match=rf"LIF.*\[{after}, 12\].*\[{before}, 12\].*reset\(net\)"):
        net(live_input(1, after, device=device)[0])
    reset(net)
    assert net(live_input(1, after, device=device)[0]).shape == (after, 3)


def test_another_shape_reaching_the_trace_raises() -> None:
    """A map of another size may give the neuron the same shape: the trace still notices."""
    block = ETBlock(ETConv2d(1, 1, 2, stride=2), LIF())
    attach(block, OTTT())
    block(torch.zeros(1, 1, 4, 4)).sum().backward()
    with pytest.raises(StateShapeError, match=r"the block: .*\[1, 1, 5, 5\].*\[1, 1, 4, 4\].*reset\(net\)"):
        block(torch.zeros(1, 1, 5, 5))


def test_dropout_notices_another_batch_size() -> None:
    dropout = TimeConstantDropout(0.5)
    dropout(torch.ones(4, 3))
    with pytest.raises(StateShapeError, match=r"\[1, 3\].*\[4, 3\].*reset\(net\)"):
        dropout(torch.ones(1, 3))


# S05: before the first forward.


@pytest.mark.parametrize("rule", [None, OTTT(), SLTT(), BPTT()], ids=lambda rule: rule.name if rule else "none")
def test_every_call_is_legal_on_an_untouched_net(rule: LearningRule | None) -> None:
    net = everything()
    if rule is not None:
        attach(net, rule)
    reset(net)
    reset(net, torch.tensor([True, False]))
    net.to("cpu").double().float()
    keys = net.state_dict().keys()
    twin = pickle.loads(pickle.dumps(copy.deepcopy(net)))  # noqa: S301
    net.train().eval().train()
    net.zero_grad()
    with stashed_state(net):
        net(maps(2))
    assert state_tensors(net) == []
    for each in (net, twin):
        each(maps(3)).sum().backward()
        assert each.state_dict().keys() == keys
        assert state_tensors(each)


# S06: moved or cast after state exists.

MOVES: dict[str, tuple[Callable[[nn.Module], object], torch.dtype]] = {
    "double": (lambda net: net.double(), torch.float64),
    "half": (lambda net: net.half(), torch.float16),
    "bfloat16": (lambda net: net.bfloat16(), torch.bfloat16),
    "there and back": (lambda net: net.double().cpu().float(), torch.float32),
    "channels_last": (lambda net: net.to(memory_format=torch.channels_last), torch.float32),
}


def floats(net: nn.Module) -> list[Tensor]:
    """The state but for the rows whose mask is still to be drawn, which are booleans."""
    return [value for value in state_tensors(net) if value.is_floating_point()]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("with_reset", [True, False])
def test_state_moves_and_casts_with_its_module(move: str, with_reset: bool, device: torch.device) -> None:
    act, dtype = MOVES[move]
    net = everything(device)
    attach(net, OTTT())
    net(maps(2, device)).sum().backward()
    assert len(state_tensors(net)) == 13  # the trace of a constant one is a number while all rows are equally old
    reset(net, rows=torch.zeros(2, dtype=torch.bool, device=device))
    before = [value.detach().clone() for value in floats(net)]
    assert len(before) == 18  # a mask, five pairs of traces (two deep for CubaLIF), seven hidden values
    net.zero_grad()
    act(net)
    net.to(device)
    after = floats(net)
    for old, new in zip(before, after, strict=True):
        assert new.dtype == dtype
        assert new.device.type == device.type
        torch.testing.assert_close(new.float(), old, rtol=1e-2, atol=1e-4)
    if with_reset:
        reset(net)
    output = net(maps(2, device, dtype))
    output.sum().backward()
    assert output.dtype == dtype
    tensors = [*floats(net), *net.parameters(), *net.buffers(), *gradients(net).values()]
    assert all(t.dtype == dtype and t.device.type == device.type for t in tensors)


@pytest.mark.parametrize("target", ["meta", "cpu"])
def test_to_empty_drops_state_since_its_memory_is_uninitialised(target: str) -> None:
    net = everything()
    attach(net, OTTT())
    for _ in range(20):  # stale memory may hold the right bytes by chance
        reset(net)
        with torch.no_grad():
            net(maps(2))
        net.to_empty(device=target)
        assert state_tensors(net) == []
        net.to_empty(device="cpu")
        for parameter in net.parameters():
            nn.init.zeros_(parameter)
        for buffer in net.buffers():
            buffer.fill_(0.5)


def test_moving_a_net_draws_no_random_number() -> None:
    net = everything()
    net(maps(2))
    before = torch.get_rng_state()
    net.to("cpu").double()
    assert torch.equal(torch.get_rng_state(), before)


def test_shared_memory_keeps_the_state() -> None:
    net = live_net()
    net(live_input(1, 2)[0])
    before = [t.clone() for t in state_tensors(net)]
    net.share_memory()
    assert all(torch.equal(a, b) for a, b in zip(before, state_tensors(net), strict=True))
    assert before


# S08: copies (traces in mid-sequence are in test_clock.py).


@pytest.mark.parametrize("rule", [OTTT(), SLTT(), BPTT()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("after_backward", [True, False])
def test_copies_after_a_forward_share_nothing(rule: LearningRule, after_backward: bool, device: torch.device) -> None:
    net = everything(device)
    net[6].connection.weight = nn.Parameter(net[4].connection.weight[:3].detach().clone())
    net[5].connection.weight = net[4].connection.weight
    attach(net, rule)
    output = net(maps(2, device))
    if after_backward:
        output.sum().backward()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):  # noqa: S301
        assert twin[5].connection.weight is twin[4].connection.weight
        ours, theirs = state_tensors(net), state_tensors(twin)
        assert len(ours) == len(theirs) > 0
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
            assert a.data_ptr() != b.data_ptr()
            assert b.grad_fn is None
        before = [value.detach().clone() for value in ours]
        twin(maps(2, device))
        reset(twin)
        assert all(torch.equal(a, b) for a, b in zip(before, state_tensors(net), strict=True))


def test_moving_average_copy() -> None:
    """torch's own EMA deep-copies the model, in mid-sequence too."""
    net = live_net()
    attach(net, OTTT())
    net(live_input(1, 2)[0]).sum().backward()
    averaged = torch.optim.swa_utils.AveragedModel(net)
    averaged.update_parameters(net)
    assert averaged(live_input(1, 2)[0]).shape == (2, 3)


# S09, X05: state is neither parameter nor buffer.


def test_strict_load_between_batch_sizes(device: torch.device) -> None:
    used, fresh = everything(device), everything(device)
    attach(used, OTTT())
    keys = set(fresh.state_dict())
    shapes = {name: value.shape for name, value in used.state_dict().items()}
    for _ in range(3):
        used(maps(8, device)).sum().backward()
    assert set(used.state_dict()) == keys
    assert {name: value.shape for name, value in used.state_dict().items()} == shapes
    fresh.load_state_dict(used.state_dict(), strict=True)
    fresh.eval()
    used.eval()
    reset(used)
    x = maps(3, device)
    assert torch.equal(fresh(x), used(x))


def test_nothing_of_the_state_is_broadcast_by_ddp() -> None:
    """X05: DDP broadcasts buffers at every forward; ranks may have other batch sizes."""
    net = everything()
    attach(net, OTTT())
    net(maps(4)).sum().backward()
    assert [name for name, _ in net.named_buffers()] == ["1.neuron.decay"]
    assert len(list(net.named_parameters())) == len(list(everything().named_parameters()))


# S13: state carried on purpose.


@ONLINE
def test_one_recording_in_two_parts_equals_one_run(rule: LearningRule, device: torch.device) -> None:
    """8 steps as 8, and as 4 + 4 without a reset between: outputs, traces and the summed gradient."""
    x, y = live_input(8, 3, device=device), labels(3, device=device)
    whole = live_net(device)
    parts = copy.deepcopy(whole)
    outputs: dict[str, list[Tensor]] = {}
    for name, net, chunks in (("whole", whole, [x]), ("parts", parts, [x[:4], x[4:]])):
        attach(net, rule)
        outputs[name] = []
        for chunk in chunks:
            for x_t in chunk:
                output = net(x_t)
                F.cross_entropy(output, y).backward()
                outputs[name].append(output.detach())
    assert torch.equal(torch.stack(outputs["whole"]), torch.stack(outputs["parts"]))
    assert_same(gradients(parts), gradients(whole), 1e-14)
    for a, b in zip(state_tensors(whole), state_tensors(parts), strict=True):
        assert torch.equal(a, b)
    reset(parts)
    parts.zero_grad()
    for chunk in (x[:4], x[4:]):
        reset(parts)
        for x_t in chunk:
            F.cross_entropy(parts(x_t), y).backward()
    assert furthest(gradients(parts), gradients(whole)) > 1e-3  # a restart in between is another thing


# S14: autograd flags.


@pytest.mark.parametrize("neuron", NEURONS)
def test_initial_state_never_requires_grad(neuron: Callable[[], Neuron], device: torch.device) -> None:
    start = torch.rand(2, 3, device=device, requires_grad=True)
    assert not any(value.requires_grad for value in neuron().initial_state(start))


@ONLINE
def test_state_carried_on_never_requires_grad_online(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    attach(net, rule)
    for x_t in live_input(3, 2, device=device):
        net(x_t.requires_grad_()).sum().backward()
        assert not any(value.requires_grad for value in state_tensors(net))


@ONLINE
def test_input_gradient_of_every_step_is_the_spatial_chain(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    attach(net, rule)
    x, y = live_input(5, 3, device=device), labels(3, device=device)
    assert_alive(net, x)
    membrane = torch.zeros(3, 12, device=device, dtype=torch.float64)
    hidden, output = net.hidden.connection, net.output.connection
    leak = torch.zeros(3, 3, device=device, dtype=torch.float64)
    for x_t in x:
        found = torch.autograd.grad(F.cross_entropy(net(x_t.requires_grad_()), y), x_t)[0]
        u = 0.5 * membrane + F.linear(x_t, hidden.weight, hidden.bias).detach() - 1.0
        spikes = (u >= 0).double()
        membrane = u + 1.0 - spikes
        leak = 0.5 * leak + F.linear(spikes, output.weight, output.bias).detach()
        error = (leak.softmax(-1) - F.one_hot(y, 3)) / 3
        expected = ((error @ output.weight) * ArcTan().derivative(u)) @ hidden.weight
        assert float(found.abs().max()) > 1e-3
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
