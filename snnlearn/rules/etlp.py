"""ETLP: event-based three-factor local plasticity (Quintana et al. 2024, doi:10.1088/2634-4386/ad6733).

e-prop's eligibility without the filter of the readout, a projection of the label without any error, and a teacher that
fires at random: each step learns with probability 1 / `steps`,

    u^l_t = -B^l y / n      Q_t = ds_t/dW by the neuron's own Jacobian      dL/dW^l = sum u^l_t * Q_t, teacher's t

y one-hot, n samples. Thrown away: the error (as `snnlearn.rules.osttp`) and all steps but the teacher's. Memory: B x O
x I per hidden value, which an adaptive threshold needs. In the paper the teacher fires at 100 Hz in steps of 1 ms, so
`steps=10`, and every spike of it updates the weights: give `OnlineLearner` update=1 for that. Unlike in the reference
code the reset is what the neuron says (there detached), the output learns from the loss of this step (there a delta
rule on a spike one step late), and time constants are those of the network.
"""

from snnlearn.rules.arguments import check_steps
from snnlearn.rules.axes import LearningRule


def ETLP(steps: int = 10, seed: int = 0, truncate_trace: bool = False) -> LearningRule:
    """Return ETLP: local transition, target projection drawn from `seed`, one step in `steps` learns, at random.

    `truncate_trace` lets convolutions drop what came before each chunk, which nobody can keep.

    >>> ETLP(steps=4).learn_steps
    4
    """
    check_steps("steps", steps)
    return LearningRule(
        transition="local",
        storage="synaptic",
        signal="target",
        learn_on="poisson",
        learn_steps=steps,
        seed=seed,
        truncate_trace=truncate_trace,
        title="ETLP",
    )


__all__ = ["ETLP"]
