"""D-RTRL: real-time recurrent learning cut to each unit's own states; feed-forward it is OSTL.

Williams and Zipser 1989, doi:10.1162/neco.1989.1.2.270, in the diagonal form of Wang et al. 2024,
doi:10.1101/2024.09.24.614728; OSTL, Bohnstingl et al. 2023, doi:10.1109/TNNLS.2022.3153985. With the neuron's own
Jacobian (A, p, c, r) of the step, E = dh/dW and the spatial signal dL_t/ds_t,

    Q_t = c_t . E_{t-1} + r_t (x) x_t     dL/dW = sum_t dL_t/ds_t * Q_t     E_t = A_t E_{t-1} + p_t (x) x_t

Exact for: BPTT with the temporal edges of the later blocks cut, for every elementwise neuron, reset, constant per unit
and parameter of the neuron; for the last block with memory that is full BPTT. A batch norm between weights and neuron
is followed too, its statistics frozen or those of the step. Memory: B x O x I per hidden value.
"""

from snnlearn.rules.axes import LearningRule


def DRTRL(truncate_trace: bool = False) -> LearningRule:
    """Return D-RTRL: local transition, spatial signal, one eligibility per synapse.

    `truncate_trace` lets convolutions drop what came before each chunk, which nobody can keep.

    >>> DRTRL().storage
    'synaptic'
    """
    return LearningRule(transition="local", storage="synaptic", truncate_trace=truncate_trace, title="D-RTRL")


__all__ = ["DRTRL"]
