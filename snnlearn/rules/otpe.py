"""OTPE: online training with postsynaptic estimates (Summe, Schaefer and Joshi 2023, doi:10.48550/arXiv.2311.16151).

The neuron of the next block remembers what it was sent; so the eligibility Q_t = ds_t/dW of D-RTRL is filtered by the
leak lambda of that neuron before it meets the spatial signal:

    R_t = lambda * R_{t-1} + Q_t          dL/dW = sum_t dL_t/ds_t * R_t

Exact for: BPTT with the temporal edges from the second block above on cut, so full BPTT for the last two blocks with
memory; any neuron in the block itself, while that of the next block is a leak with a soft detached reset or none, and
nothing but averages, reshapes and masks that last a sequence stand between; a batch norm in the next block has to be
frozen. Memory: twice B x O x I per hidden value.

Unlike in the paper's code the filter is the next block's own leak, not one for all layers, and a static readout adds
none. There, the signal passed down is multiplied by a leaky mean of ds/dy; here that is `relay="mean"` (in blocks that
have a filter), and the default is the derivative of the step itself, without which no block below is exact.
"""

from snnlearn.rules.axes import LearningRule


def OTPE(relay: str = "instantaneous", truncate_trace: bool = False) -> LearningRule:
    """Return OTPE: local transition, filter of the block above, spatial signal, one eligibility per synapse.

    `relay` what the signal is multiplied by on its way down: instantaneous, or mean as in the paper.
    `truncate_trace` lets convolutions drop what came before each chunk, which nobody can keep.

    >>> OTPE().trace_filter
    'above'
    """
    return LearningRule(
        transition="local",
        trace_filter="above",
        storage="synaptic",
        relay=relay,
        truncate_trace=truncate_trace,
        title="OTPE",
    )


__all__ = ["OTPE"]
