"""HYPR: hybrid propagation (Baronig et al. 2025, doi:10.48550/arXiv.2506.14464).

A chunk of K steps is differentiated at once and between chunks only the eligibility E = dh/dW is carried. With the
neuron's own Jacobian (A, p, c, r) of each step and the spatial signal u_t = dL_t/ds_t, for the steps 1 .. K of a chunk,

    R_K = 0     R_{t-1} = c_t u_t + A_t^T R_t     dL/dW += sum_t (r_t u_t + p_t . R_t)^T x_t + R_0 . E_0

(`snnlearn.functional.chunk`). The numbers are those of D-RTRL (`snnlearn.rules.drtrl`) for every K: K = 1 is its
textbook order, K = T needs no eligibility at all. This preset runs at K = 1.

Exact for: BPTT with the temporal edges of the later blocks cut, and every recurrent spike, as D-RTRL. Memory:
B x O x I per hidden value, and K steps of a chunk.

Unlike in the paper's code, whose recursion is an associative scan over the chunk, the scan runs backward over the
signal and never builds an eligibility inside a chunk.
"""

from snnlearn.rules.axes import LearningRule


def HYPR(truncate_trace: bool = False) -> LearningRule:
    """Return HYPR: local transition, spatial signal, one eligibility per synapse.

    `truncate_trace` lets convolutions drop what came before each chunk, which nobody can keep.

    >>> HYPR().storage
    'synaptic'
    """
    return LearningRule(transition="local", storage="synaptic", truncate_trace=truncate_trace, title="HYPR")


__all__ = ["HYPR"]
