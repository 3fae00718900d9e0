"""Spike-timing-dependent plasticity of pairs, and its eligibility for a reward that comes later.

With inputs x_t, output spikes s_t and traces of both,

    pre_t  = decay_pre * pre_{t-1} + x_t            meets s_t: potentiation P_t = s_t (x) pre_t
    post_t = decay_post * (post_{t-1} + s_{t-1})    meets x_t: depression   D_t = post_t (x) x_t

A pair with the input d steps before the output is worth decay_pre^d, d from 0, and one with the output d steps before
the input -decay_post^d, d from 1. A coincident pair is causal, since the input of a step drives the spike of the same
step, so the trace of the outputs leaves the present spike out. Every pair counts, not only nearest neighbours. Bi and
Poo 1998, doi:10.1523/JNEUROSCI.18-24-10464.1998; Song et al. 2000, doi:10.1038/78829. With a reward r_t and

    E_t = decay * E_{t-1} + a_plus * P_t - a_minus * D_t ,    dw = r_t * E_t

it is reward-modulated: Izhikevich 2007, doi:10.1093/cercor/bhl152; Florian 2007, doi:10.1162/neco.2007.19.6.1468.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.weighted_map import Dense, WeightedMap


class PairTraces(NamedTuple):
    """Traces of a step: `pre` of the inputs, x_t included, `post` of the outputs, s_t left out."""

    pre: Tensor
    post: Tensor


def advance_pair_traces(
    traces: PairTraces,
    x: Float[Tensor, "*inputs"],
    last_spikes: Float[Tensor, "*outputs"],
    decay_pre: float,
    decay_post: float,
) -> PairTraces:
    """Return the traces of the step with inputs `x`, after a step with outputs `last_spikes`; decays per step.

    >>> import torch
    >>> one = torch.ones(1)
    >>> advance_pair_traces(PairTraces(one, one), one, one, 0.5, 0.25)
    PairTraces(pre=tensor([1.5000]), post=tensor([0.5000]))
    """
    return PairTraces(decay_pre * traces.pre + x, decay_post * (traces.post + last_spikes))


def bounded_change(
    weight: Float[Tensor, "*weights"],
    potentiation: Float[Tensor, "*weights"],
    depression: Float[Tensor, "*weights"],
    bounds: tuple[float, float],
    soft: bool,
) -> Float[Tensor, "*weights"]:
    """Return the new weight, inside `bounds` (low, high); all [*weights], potentiation and depression from 0 up.

    Hard bounds cut weight + potentiation - depression. `soft` ones first scale potentiation by the share of the range
    left above, and depression by the share left below (van Rossum et al. 2000, doi:10.1523/JNEUROSCI.20-23-08812.2000).

    >>> import torch
    >>> quarter, tenth = torch.tensor([0.25]), torch.tensor([0.1])
    >>> bounded_change(quarter, tenth, 0 * tenth, (0.0, 1.0), soft=True)
    tensor([0.3250])
    """
    low, high = bounds
    if soft:
        potentiation = potentiation * ((high - weight) / (high - low))
        depression = depression * ((weight - low) / (high - low))
    return (weight + potentiation - depression).clamp(low, high)


def pairings(layer: WeightedMap, post: Tensor, pre: Tensor, weight: Tensor) -> Float[Tensor, "batch ..."]:
    """Return post (x) pre for every sample, summed over places: [B, *weights].

    `layer` what the weights do; `post` [B, ...] shaped like its output, `pre` [B, ...] like its input.

    >>> pairings(Dense(), torch.ones(2, 3), torch.ones(2, 4), torch.zeros(3, 4)).shape
    torch.Size([2, 3, 4])
    """
    if isinstance(layer, Dense):
        return torch.einsum("b...o,b...i->boi", post, pre)
    return torch.stack([layer.weight_gradient(post[n : n + 1], pre[n : n + 1], weight) for n in range(post.shape[0])])


__all__ = ["PairTraces", "advance_pair_traces", "bounded_change", "pairings"]
