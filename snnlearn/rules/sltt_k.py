"""SLTT-K: spatial learning through time at K of T steps (Meng et al., ICCV 2023, doi:10.48550/arXiv.2302.14311).

K steps are drawn anew for every sequence, without replacement, and only these learn, as under SLTT:

    dL/dW = sum_(t in drawn) d_t^T x_t        d_t = dL_t/dy_t

The loss keeps its 1/T and nothing is scaled up, as in the paper's code, so that over the draws the mean is K/T times
the gradient of SLTT. Exact for: BPTT of the drawn steps' losses with every temporal edge cut. Memory: none.

`OnlineLearner.learn` draws the steps; in a loop of one's own every step whose loss is run backward learns. The forward
of the other steps is the same here, without a backward; in the paper's code it runs without a graph as well.
"""

from snnlearn.rules.arguments import check_steps
from snnlearn.rules.axes import LearningRule


def SLTTK(steps: int = 2) -> LearningRule:
    """Return SLTT-K: no trace, spatial signal, at `steps` random steps of a sequence (whole number from 1).

    >>> SLTTK(steps=3).learn_steps
    3
    """
    check_steps("steps", steps)
    return LearningRule(transition="none", storage="none", learn_on="random", learn_steps=steps, title="SLTT-K")


__all__ = ["SLTTK"]
