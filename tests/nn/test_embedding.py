"""The embedding: torch's own, drop-in, with the gradient of a linear layer of one-hot rows."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from nets import gradients
from oracles.networks import error, labels, online_gradients, oracle, problem
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DRTRL,
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETEmbedding,
    ETLinear,
    LearningRule,
    OnlineLearner,
    Readout,
    StaleTraceError,
    StateShapeError,
    attach,
    reset,
)
from snnlearn.functional import FixedTrace, Lookup, WeightedMap, et_embedding

EXACT = 1e-12
ROWS, UNITS = 6, 9
RULES = pytest.mark.parametrize("rule", [OTTT(), SLTT(), DRTRL()], ids=lambda rule: rule.name)


def indices(*shape: int, steps: int = 10, batch: int = 5) -> Tensor:
    return torch.randint(ROWS, (steps, batch, *shape))


def network(padding_idx: int | None = None) -> nn.Module:
    blocks: list[nn.Module] = [ETBlock(ETEmbedding(ROWS, UNITS, padding_idx), LIF(decay=0.7))]
    blocks += [ETBlock(ETLinear(UNITS, 8), LIF(decay=0.6)), Readout(nn.Linear(8, 3))]
    return nn.Sequential(*blocks).double()


def test_drop_in() -> None:
    assert issubclass(ETEmbedding, nn.Embedding)
    assert list(inspect.signature(ETEmbedding).parameters) == list(inspect.signature(nn.Embedding).parameters)
    made = []
    for kind in (ETEmbedding, nn.Embedding):
        torch.manual_seed(3)
        made.append(kind(ROWS, UNITS, -1))
    mine, plain = made
    assert list(mine.state_dict()) == ["weight"]
    assert torch.equal(mine.weight, plain.weight)
    assert mine.padding_idx == plain.padding_idx == ROWS - 1
    table = torch.randn(3, 2)
    assert torch.equal(ETEmbedding.from_pretrained(table).weight, table)
    x = indices(4)[0]
    assert torch.equal(mine(x), plain(x))
    for value in (et_embedding(x, FixedTrace(mine.traced_input(x)), mine.weight), mine(x.int())):
        assert torch.equal(value, plain(x))


@pytest.mark.parametrize(("name", "value"), [("max_norm", 1.0), ("scale_grad_by_freq", True), ("sparse", True)])
def test_what_a_trace_cannot_do_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"ETEmbedding\({name}=\.\.\.\).*leave {name} out"):
        ETEmbedding(ROWS, UNITS, **{name: value})


def test_inputs_are_whole_numbers_of_one_step() -> None:
    block = ETBlock(ETEmbedding(ROWS, UNITS), LIF())
    for rule in (OTTT(), SLTT(), DRTRL()):
        attach(block, rule)
        with pytest.raises(TypeError, match=r"torch\.float32.*whole numbers from 0 to 5.*x\.long\(\)"):
            block(torch.ones(2))
        reset(block)
    for shape in ((), (2, 3, 4)):
        with pytest.raises(StateShapeError, match="1 dimension or 2 dimensions"):
            block(torch.zeros(shape, dtype=torch.long))
    with pytest.raises((IndexError, RuntimeError)):
        block(torch.tensor([ROWS]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(), (4,)], ids=["one index", "several"])
@RULES
def test_against_bptt(rule: LearningRule, shape: tuple[int, ...]) -> None:
    """O1 to O3 and O7, for one index a sample and for several."""
    target = labels().unsqueeze(-1).expand(5, *shape) if shape else labels()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, -2), y.flatten())

    net, x, _ = problem(network(), indices(*shape))
    mine = online_gradients(net, rule, x, target, loss)
    cuts = {"0": ["1"], "1": [], "2": []}
    for name, gradient in mine.items():
        true = oracle(net, x, target, "all" if rule.transition == "none" else cuts[name[0]], loss)
        assert error(gradient, true[name]) < EXACT, name
    full = oracle(net, x, target, (), loss)
    assert error(mine["0.connection.weight"], full["0.connection.weight"]) > 1e-3
    if rule.transition != "none":
        untraced = online_gradients(net, SLTT(), x, target, loss)
        assert error(untraced["0.connection.weight"], mine["0.connection.weight"]) > 1e-2


@pytest.mark.usefixtures("unchecked")
@RULES
def test_it_is_a_linear_layer_of_one_hot_rows(rule: LearningRule) -> None:
    net, x, y = problem(network(), indices())
    twin = copy.deepcopy(net)
    twin[0] = ETBlock(ETLinear(ROWS, UNITS, bias=False), LIF(decay=0.7)).double()
    with torch.no_grad():
        twin[0].connection.weight.copy_(net[0].connection.weight.T)
    mine = online_gradients(net, rule, x, y)
    true = online_gradients(twin, rule, F.one_hot(x, ROWS).double(), y)
    assert error(mine["0.connection.weight"], true["0.connection.weight"].T) < EXACT
    assert error(mine["1.connection.weight"], true["1.connection.weight"]) < EXACT


@pytest.mark.usefixtures("unchecked")
@RULES
def test_the_padding_row_counts_and_learns_nothing(rule: LearningRule) -> None:
    net, x, y = problem(network(padding_idx=2), indices())
    with torch.no_grad():
        net[0].connection.weight[2] = 0.4
    assert (x == 2).any()
    mine, true = online_gradients(net, rule, x, y), oracle(net, x, y, "all" if rule.transition == "none" else ["1"])
    gradient = mine["0.connection.weight"]
    assert not gradient[2].any()
    assert error(gradient, true["0.connection.weight"]) < EXACT
    with torch.no_grad():
        net[0].connection.weight[2] = 0.0
    other = online_gradients(net, rule, x, y)["0.connection.weight"]
    assert error(other, gradient) > 1e-3, "the row takes part in the forward"


def test_the_trace_is_of_the_one_hot_input() -> None:
    block = ETBlock(ETEmbedding(3, 2), LI(decay=0.5)).double()
    attach(block, OTTT())
    for index, expected in ((0, [1.0, 0.0, 0.0]), (2, [0.5, 0.0, 1.0]), (2, [0.25, 0.0, 1.5])):
        block(torch.tensor([index])).sum().backward()
        trace = block.connection.trace
        assert trace is not None
        assert trace.values is not None
        assert trace.values[0].tolist() == [expected]


def test_its_map_is_the_lookup() -> None:
    layer, x = ETEmbedding(ROWS, UNITS).double(), indices(4)[0]
    mapping, entered, weight = layer.weighted_map(), layer.traced_input(x), layer.effective_weight()
    assert isinstance(mapping, Lookup)
    assert isinstance(mapping, WeightedMap)
    assert torch.equal(mapping.value(entered, weight, None), layer(x))
    assert torch.equal(mapping.value(entered, weight, torch.ones(UNITS)), layer(x) + 1)
    torch.testing.assert_close(layer(x), entered @ weight.T)


def test_clock_and_second_order() -> None:
    block = ETBlock(ETEmbedding(3, 2), LI()).double()
    attach(block, OTTT())
    late = block(torch.tensor([1]))
    block(torch.tensor([1]))
    with pytest.raises(StaleTraceError):
        late.sum().backward()
    table = torch.zeros(2, 1, requires_grad=True)
    value = et_embedding(torch.tensor([1]), FixedTrace(torch.ones(1, 2)), table)
    with pytest.raises(RuntimeError, match=r"create_graph=True reached an embedding"):
        torch.autograd.grad(value.sum(), table, create_graph=True)


def test_a_frozen_table_is_not_read() -> None:
    block = ETBlock(ETEmbedding(3, 4), LI()).double()
    net = nn.Sequential(block, ETBlock(ETLinear(4, 2), LI()).double())
    attach(net, OTTT())
    block.requires_grad_(False)
    net(torch.tensor([1])).sum().backward()
    assert set(gradients(net)) == {"1.connection.weight", "1.connection.bias"}


@RULES
def test_the_learner_takes_integers(rule: LearningRule) -> None:
    net = network()
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    x, y = indices(), labels()
    before = net[0].connection.weight.detach().clone()
    result = learner.learn(x, y)
    assert result.updates == 1
    assert result.batch_size == 5
    assert not torch.equal(before, net[0].connection.weight)
    assert learner.evaluate(x, y).steps == learner.predict(x).steps == len(x)
    reset(net)
    learner.step(x[0], y)
    learner.reset(torch.tensor([True, False, False, False, False]))
    learner.step(x[1], y)
    with pytest.raises(TypeError, match=r"x\.long\(\)"):
        learner.learn(x.float(), y)
