"""Pair STDP, and STDP modulated by a reward: rules without a loss.

Bi and Poo 1998, doi:10.1523/JNEUROSCI.18-24-10464.1998; with a reward Izhikevich 2007, doi:10.1093/cercor/bhl152, and
Florian 2007 (MSTDPET), doi:10.1162/neco.2007.19.6.1468. Equations, and what a coincident pair counts as:
`snnlearn.functional.stdp`. Nothing is differentiated. Memory does not grow with time: two traces, and with a reward one
number per synapse and sample.
"""

import torch
from torch import Tensor, nn

from snnlearn.functional.arguments import is_number
from snnlearn.functional.stdp import PairTraces, advance_pair_traces, bounded_change, pairings
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.nn.block import ETBlock
from snnlearn.nn.connection import Connection, is_described
from snnlearn.nn.state import Stateful


class PairPlasticity(Stateful):
    """Base of `STDP` and `RewardSTDP`: watch a block and keep the traces of its input and output.

    It becomes the block's child `plasticity`, so that `reset(net)`, copies and moves take it along; `remove` ends it.

    >>> PairPlasticity.transient
    ('pre', 'post', 'spikes')
    """

    transient: tuple[str, ...] = ("pre", "post", "spikes")
    plain = ("connection",)

    def __init__(
        self,
        block: ETBlock,
        decay_pre: float,
        decay_post: float,
        a_plus: float,
        a_minus: float,
        bounds: tuple[float, float],
        soft_bounds: bool,
    ) -> None:
        super().__init__()
        _check_decays(decay_pre=decay_pre, decay_post=decay_post)
        _check_constants(a_plus, a_minus, bounds)
        self.connection = _checked(block, bounds)
        self.decays, self.amplitudes = (decay_pre, decay_post), (a_plus, a_minus)
        self.bounds, self.soft_bounds = bounds, soft_bounds
        self.pre: Tensor | None = None
        self.post: Tensor | None = None
        self.spikes: Tensor | None = None
        block.add_module("plasticity", self)
        self._hook = block.register_forward_hook(self._take_in)

    def remove(self, block: ETBlock) -> None:
        """Stop watching `block`."""
        self._hook.remove()
        del block.plasticity

    @torch.no_grad()
    def _take_in(self, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x, spikes = self.connection.traced_input(inputs[0].detach()), output.detach()
        before = PairTraces(_or_zeros(self.pre, x), _or_zeros(self.post, spikes))
        traces = advance_pair_traces(before, x, _or_zeros(self.spikes, spikes), *self.decays)
        self.pre, self.post, self.spikes = flush_subnormals_(traces.pre), flush_subnormals_(traces.post), spikes
        potentiation, depression = self._pair(spikes, self.pre), self._pair(self.post, x)
        self._gather(self.amplitudes[0] * potentiation, self.amplitudes[1] * depression, block.training)

    def _pair(self, post: Tensor, pre: Tensor) -> Tensor:
        """Return what the step pairs, in the form that `_gather` takes."""
        raise TypeError(f"{type(self).__name__} must define _pair(post, pre)")

    def _gather(self, potentiation: Tensor, depression: Tensor, learning: bool) -> None:
        """Take in the step's pairs, scaled."""
        raise TypeError(f"{type(self).__name__} must define _gather(potentiation, depression, learning)")

    @torch.no_grad()
    def _change(self, potentiation: Tensor, depression: Tensor) -> None:
        weight = self.connection.effective_weight()
        weight.copy_(bounded_change(weight, potentiation, depression, self.bounds, self.soft_bounds))


class STDP(PairPlasticity):
    """Pair STDP of the weights of `block`: run the block forward, then `step`.

    `decay_pre`, `decay_post` of the traces per step, in [0, 1); `a_plus`, `a_minus` what a coincident pair adds, and
    what a pair just out of order takes before its decay, in units of the weight; `bounds` (low, high) that no weight
    leaves, hard, or with `soft_bounds` approached ever more slowly. A change is the mean over the batch and the sum
    over the places of a convolution. Traces run on in eval(), where nothing is learned. Raises ValueError for a
    constant outside its range and for weights that lie outside the bounds, TypeError for weights that are not used
    as they are.

    >>> from snnlearn.nn import ETLinear, LIF
    >>> block = ETBlock(ETLinear(1, 1, bias=False), LIF())
    >>> _ = block.connection.weight.data.fill_(0.5)
    >>> stdp = STDP(block, a_plus=0.1, bounds=(0.0, 1.0), soft_bounds=False)
    >>> _ = block(torch.tensor([[2.0]])); stdp.step(); block.connection.weight.data
    tensor([[0.7000]])
    """

    def __init__(
        self,
        block: ETBlock,
        decay_pre: float = 0.9,
        decay_post: float = 0.9,
        a_plus: float = 0.01,
        a_minus: float = 0.01,
        bounds: tuple[float, float] = (0.0, 1.0),
        soft_bounds: bool = True,
    ) -> None:
        super().__init__(block, decay_pre, decay_post, a_plus, a_minus, bounds, soft_bounds)
        self._gathered: tuple[Tensor, Tensor] | None = None

    def _pair(self, post: Tensor, pre: Tensor) -> Tensor:
        weight = self.connection.effective_weight()
        return self.connection.weighted_map().weight_gradient(post, pre, weight) / max(post.shape[0], 1)

    def _gather(self, potentiation: Tensor, depression: Tensor, learning: bool) -> None:
        if learning:
            past = self._gathered or (torch.zeros_like(potentiation), torch.zeros_like(depression))
            self._gathered = past[0] + potentiation, past[1] + depression

    def step(self) -> None:
        """Change the weights by the pairs of every step since the last `step`; raise RuntimeError without any."""
        if self._gathered is None:
            raise RuntimeError("no step to learn from: run the block forward in train() before stdp.step()")
        self._change(*(part.to(self.connection.effective_weight()) for part in self._gathered))
        self._gathered = None


class RewardSTDP(PairPlasticity):
    """STDP whose pairs wait in an eligibility until a reward comes: run the block forward, then `reward(r)`.

    `decay_eligibility` per step in [0, 1); 0 rewards the present step's pairs alone. Others as for `STDP`; soft bounds
    act on the rewarded change. Keeps one number per synapse and sample, so that samples have rewards of their own.

    >>> from snnlearn.nn import ETLinear, LIF
    >>> block = ETBlock(ETLinear(1, 1, bias=False), LIF())
    >>> _ = block.connection.weight.data.fill_(0.5)
    >>> stdp = RewardSTDP(block, a_plus=0.1, bounds=(0.0, 1.0), soft_bounds=False)
    >>> _ = block(torch.tensor([[2.0]])); stdp.reward(-1.0); block.connection.weight.data
    tensor([[0.3000]])
    """

    transient = ("pre", "post", "spikes", "eligibility")

    def __init__(
        self,
        block: ETBlock,
        decay_pre: float = 0.9,
        decay_post: float = 0.9,
        decay_eligibility: float = 0.9,
        a_plus: float = 0.01,
        a_minus: float = 0.01,
        bounds: tuple[float, float] = (0.0, 1.0),
        soft_bounds: bool = True,
    ) -> None:
        _check_decays(decay_eligibility=decay_eligibility)
        super().__init__(block, decay_pre, decay_post, a_plus, a_minus, bounds, soft_bounds)
        self.eligibility: Tensor | None = None
        self.decay_eligibility = decay_eligibility

    def _pair(self, post: Tensor, pre: Tensor) -> Tensor:
        return pairings(self.connection.weighted_map(), post, pre, self.connection.effective_weight())

    def _gather(self, potentiation: Tensor, depression: Tensor, learning: bool) -> None:
        eligibility = self.decay_eligibility * _or_zeros(self.eligibility, potentiation)
        self.eligibility = flush_subnormals_(eligibility + (potentiation - depression if learning else 0.0))

    @torch.no_grad()
    def reward(self, reward: float | Tensor) -> None:
        """Change the weights by `reward`, one number or one per sample [B], times the eligibility.

        Raises RuntimeError before the first step, ValueError for a reward that is not finite or not one per sample.
        """
        eligibility = self.eligibility
        if eligibility is None:
            raise RuntimeError("no step to reward: run the block forward in train() before stdp.reward(r)")
        rewards = torch.as_tensor(reward, dtype=eligibility.dtype, device=eligibility.device)
        if rewards.shape not in ((), eligibility.shape[:1]) or not bool(torch.isfinite(rewards).all()):
            raise ValueError(
                f"reward of shape {list(rewards.shape)} for a batch of {eligibility.shape[0]}: pass one finite number, "
                f"or one per sample"
            )
        each = rewards.expand(eligibility.shape[0])
        change = torch.einsum("b,b...->...", each, eligibility) / max(len(each), 1)
        self._change(change.clamp(min=0), (-change).clamp(min=0))


def _or_zeros(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if value is None else value


def _checked(block: ETBlock, bounds: tuple[float, float]) -> Connection:
    """Return the connection of `block`, whose weights have to be a parameter that is used as it is."""
    if not isinstance(block, ETBlock):
        raise TypeError(
            f"STDP got a {type(block).__name__} as block: it pairs the spikes of a neuron with its input, which an "
            f"ETBlock holds together; write STDP(ETBlock(ETLinear(...), LIF())), or pass one block of a network"
        )
    connection = block.connection
    if not is_described(connection) or connection.effective_weight() is not connection.weight:
        raise TypeError(
            f"STDP changes weights where they are, and {type(connection).__name__} makes those it uses from others; "
            f"use ETLinear or a convolution such as ETConv2d"
        )
    if hasattr(block, "plasticity"):
        raise ValueError("this block learns by STDP already: call block.plasticity.remove(block) first")
    low, high = connection.effective_weight().detach().aminmax()
    if low < bounds[0] or high > bounds[1]:
        raise ValueError(
            f"weights from {float(low):.3g} to {float(high):.3g} lie outside bounds={bounds}; begin inside, for "
            f"example with torch.nn.init.uniform_(block.connection.weight, *bounds)"
        )
    return connection


def _check_decays(**decays: float) -> None:
    for name, decay in decays.items():
        if not (is_number(decay) and 0 <= decay < 1):
            raise ValueError(f"{name}={decay!r}: a decay per step lies in [0, 1); write {name}=0.9")


def _check_constants(a_plus: float, a_minus: float, bounds: tuple[float, float]) -> None:
    for name, amplitude in (("a_plus", a_plus), ("a_minus", a_minus)):
        if not (is_number(amplitude) and amplitude >= 0):
            raise ValueError(f"{name}={amplitude!r}: what a pair adds or takes is at least 0; write {name}=0.01")
    pair = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(is_number, bounds))
    if not (pair and bounds[0] < bounds[1]):
        raise ValueError(f"bounds={bounds!r}: two finite numbers, the lower first; write bounds=(0.0, 1.0)")


__all__ = ["STDP", "PairPlasticity", "RewardSTDP"]
