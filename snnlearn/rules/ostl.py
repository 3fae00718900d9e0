"""OSTL: online spatio-temporal learning (Bohnstingl et al., TNNLS 2023, doi:10.1109/TNNLS.2022.3153985).

Each unit follows how its own state depends on its weights, and meets the spatial signal of the step:

    Q_t = c_t . E_{t-1} + r_t (x) x_t     dL/dW = sum_t dL_t/ds_t * Q_t     E_t = A_t E_{t-1} + p_t (x) x_t

with the neuron's own Jacobian (A, p, c, r) of the step. These are the numbers of `snnlearn.rules.drtrl`; the two names
are two papers. In a recurrent layer this is the form that the paper calls "without H": what a unit's spike does to the
others, and through them to itself, is left out.

Exact for: BPTT with the temporal edges of the later blocks cut, and every recurrent spike; any elementwise neuron,
reset, constant per unit and parameter of the neuron. Memory: B x O x I per hidden value.
"""

from snnlearn.rules.axes import LearningRule


def OSTL(truncate_trace: bool = False) -> LearningRule:
    """Return OSTL: local transition, spatial signal, one eligibility per synapse.

    `truncate_trace` lets convolutions drop what came before each chunk, which nobody can keep.

    >>> OSTL().transition
    'local'
    """
    return LearningRule(transition="local", storage="synaptic", truncate_trace=truncate_trace, title="OSTL")


__all__ = ["OSTL"]
