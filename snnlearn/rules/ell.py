"""ELL: efficient local learning with trained classifiers (Ma et al. 2023, doi:10.1109/TCYB.2022.3188015).

Every hidden block has a trained linear readout G of its own and learns from its loss of this step alone:

    L^l_t = l(G^l s^l_t, y)      dL^l/dW^l = sum_t (G^l^T dl * ds_t/dy_t)^T x_t      dL^l/dG^l = sum_t dl s^l_t^T

Exact for: backpropagation of the block's own loss with every temporal edge cut, its input detached; any neuron. Thrown
away: time, and the network's loss in every block but the readout. Memory: no trace; G and its gradient. G is a
parameter of the network: `OnlineLearner` gives it to the optimizer, a plain loop adds it. Unlike in the paper the
local readout does not spike: its squared error is on G s, where the paper's is on the spikes of a layer of LIF
neurons.
"""

from snnlearn.functional.signals import LOCAL_LOSSES
from snnlearn.rules.arguments import check_one_of
from snnlearn.rules.axes import LearningRule, LocalHead


def ELL(loss: str = "mse", seed: int = 0) -> LearningRule:
    """Return ELL: no trace, local readouts that are trained, first drawn from `seed`.

    `loss` of the local readouts: cross_entropy, mse or smooth_l1.

    >>> ELL().head
    LocalHead(kind='trained', loss='mse')
    """
    head = LocalHead(kind="trained", loss=loss)
    check_one_of("loss", loss, LOCAL_LOSSES)
    return LearningRule(transition="none", storage="none", signal="local_readout", head=head, seed=seed, title="ELL")


__all__ = ["ELL"]
