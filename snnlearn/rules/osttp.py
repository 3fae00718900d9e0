"""OSTTP: online spatio-temporal learning with target projection (Ortner et al. 2023).

AICAS 2023, doi:10.1109/AICAS57966.2023.10168623. The per-synapse eligibility of OSTL (`snnlearn.rules.drtrl`) meets a
projection of the target in place of dL/ds, as in DRTP (Frenkel et al. 2021, doi:10.3389/fnins.2021.629892):

    u^l_t = -B^l y_t / n      Q_t = ds_t/dW      dL/dW^l = sum_t u^l_t * Q_t      n samples

y one-hot, or as it is; the readout learns from its own error. Nothing waits for the forward pass to reach the output.
Thrown away: the error itself. What the output already gets right is pushed on with, so small learning rates and
bounded weights matter. Memory: B x O x I per hidden value and one number per unit and output. The target has to be
shown: `OnlineLearner` does it, a plain loop calls `show_target(net, y)` before backward. The paper trains recurrent
nets; recurrent spikes are taken as constants here. The authors published no code.
"""

from snnlearn.rules.axes import LearningRule


def OSTTP(seed: int = 0, truncate_trace: bool = False) -> LearningRule:
    """Return OSTTP: local transition, one eligibility per synapse, target projected by a matrix drawn from `seed`.

    `truncate_trace` lets convolutions drop what came before each chunk, which nobody can keep.

    >>> OSTTP().signal
    'target'
    """
    return LearningRule(
        transition="local",
        storage="synaptic",
        signal="target",
        seed=seed,
        truncate_trace=truncate_trace,
        title="OSTTP",
    )


__all__ = ["OSTTP"]
