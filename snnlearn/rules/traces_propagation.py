"""Traces propagation: two paths, two traces and a contrastive loss per layer (Pes et al. 2025, arXiv:2509.13053).

The label y takes a path of its own through the hidden blocks, beside the input's: S y drives the neurons of the first
one in place of its connection, and the connection of every further one takes the target spikes s~ of the block below.
Both paths have traces of the spikes they send, and every hidden block learns from its own loss of the step:

    e^l <- beta e^l + s^l      f^l <- beta f^l + s~^l      f^0 <- beta f^0 + y      E^l_t = E(e^l, f^l; f^(l-1))

    dE/dW^l = (dE/de^l * ds/dv)^T x + (dE/df^l * ds~/dv~)^T s~^(l-1)      dE/dS = (dE/df^1 * ds~/dv~)^T y

with E of `snnlearn.functional.contrastive`, averaged over the batch; the share of s~ begins with the second block,
since S stands in the first. The trace is of spikes and in the loss, its past a constant; none is kept through a
membrane. Exact for: the sum of the blocks' own losses with every temporal edge and every edge between blocks cut.
Thrown away: the network's loss, in every block but the readout, and time in the membrane. Memory: three numbers per
unit, the state of a second neuron, and S [H, C] for the whole network.

A batch has at least two samples, since the loss compares them: the gradient of a batch is not the mean of its
samples'. The target has to be shown before the forward: `OnlineLearner` does it, a plain loop calls
`show_target(net, y)` first. A step without a target sends zeros along its path; a sample without a label is left out.

From the paper, as the public benchmark `neurotrain` quotes its equations: the traces, the loss, both shares of the
gradient, S in the first block. From the code of that benchmark: Euclidean distances, which are constants, no
temperature, S without a bias and normal with variance 2/C, beta 0.98. Ours: a dense chain of blocks alone, where the
paper has convolutions too; later recurrent blocks take their own target spikes; biases and constants of neurons learn
from both paths; a dropout mask thins the input's path alone; the readout keeps the ordinary rule of its block, where
the paper's is an integrator with a delta rule on the trace. The products of traces grow with the units and with
1/(1 - beta): a `temperature` above 1 keeps their softmax from saturating.
"""

from snnlearn.rules.axes import Contrast, LearningRule


def TracesPropagation(
    decay: float = 0.98, temperature: float = 1.0, trained: bool = True, seed: int = 0
) -> LearningRule:
    """Return traces propagation: no trace in the membrane, a contrastive loss per hidden block.

    `decay` of the traces of spikes per step; `temperature` that divides their products; `trained` whether the
    projection of the label, first drawn from `seed`, is learned.

    >>> TracesPropagation().signal
    'contrastive'
    """
    contrast = Contrast(decay=decay, temperature=temperature, trained=trained)
    return LearningRule(
        transition="none",
        storage="none",
        signal="contrastive",
        contrast=contrast,
        seed=seed,
        title="traces propagation",
    )


__all__ = ["TracesPropagation"]
