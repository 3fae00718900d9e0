"""DECOLLE: deep continuous local learning (Kaiser et al. 2020, doi:10.3389/fnins.2020.00424).

Every hidden block has a fixed random readout G and a loss of its own at every step; nothing passes between blocks but
spikes:

    L^l_t = l(G^l s^l_t, y_t)      u^l_t = G^l^T dl      dL^l/dW^l = sum_t (u^l_t * ds_t/dy_t)^T a^l_t

with the trace a of the input, decayed by the neuron's leak (two cascaded traces for `CubaLIF`, which is the paper's
neuron). Exact for: backpropagation through time of the block's own loss, its input detached, for a soft detached or no
reset and one leak per layer. Thrown away: the network's loss, in every block but the readout. Memory: that of OTTT,
and one number per unit and output. Meant for update=1; maps are averaged to a 4 by 4 grid before G. Unlike in the
reference code bias and reset are inside the membrane that leaks, so the bias has a trace, and the readout block learns
from the network's loss.
"""

from snnlearn.functional.signals import LOCAL_LOSSES
from snnlearn.rules.arguments import check_one_of
from snnlearn.rules.axes import LearningRule, LocalHead


def DECOLLE(loss: str = "smooth_l1", seed: int = 0) -> LearningRule:
    """Return DECOLLE: leak transition, one trace per input, fixed random local readouts drawn from `seed`.

    `loss` of the local readouts: cross_entropy, mse or smooth_l1.

    >>> DECOLLE().head
    LocalHead(kind='random', loss='smooth_l1')
    """
    head = LocalHead(kind="random", loss=loss)
    check_one_of("loss", loss, LOCAL_LOSSES)
    return LearningRule(transition="leak", storage="pre", signal="local_readout", head=head, seed=seed, title="DECOLLE")


__all__ = ["DECOLLE"]
