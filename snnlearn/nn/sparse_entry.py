"""Where sparse events enter a block: which product they take, and one line in the log that says why."""

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from snnlearn.functional.sparse_map import density, is_sparse, sparse_pays
from snnlearn.nn.connection import ETLinear
from snnlearn.nn.synaptic_trace import SynapticTrace
from snnlearn.nn.trace_buffer import TraceBuffer

if TYPE_CHECKING:
    from snnlearn.nn.block import ETBlock

log = logging.getLogger("snnlearn.nn")


def enter_events(block: "ETBlock", x: Tensor) -> Tensor:
    """Return x as the block multiplies it: as it is, or sparse rows [N, I] made dense where that is faster or needed.

    The first time that a block takes either way the log says so, and why. Raises TypeError for sparse events in front
    of a connection that has no sparse product, and for a sparse layout other than rows.

    >>> from snnlearn.nn import LIF, ETBlock
    >>> enter_events(ETBlock(ETLinear(3, 2), LIF()), torch.zeros(1, 3)).shape
    torch.Size([1, 3])
    """
    if not is_sparse(x):
        return x
    connection = block.connection
    if type(connection) is not ETLinear:
        kind = type(connection).__name__
        raise TypeError(
            f"ETBlock({kind}) got sparse events: ETLinear multiplies them, {kind} takes dense steps; begin the network "
            f"with ETBlock(ETLinear(inputs, units), ...), or hand over dense frames: Binning(sparse=False), or "
            f"events.to_dense()"
        )
    kind, why = _reason_for_dense(block, x)
    name = "a block" if connection.trace is None else connection.trace.name
    if kind not in block.entries:
        block.entries |= {kind}
        log.info("%s: sparse events -> %s", name, why)
    return x if kind == "sparse" else x.to_dense()


def _reason_for_dense(block: "ETBlock", x: Tensor) -> tuple[str, str]:
    trace, share = block.connection.trace, f"{density(x):.2%} of {len(x)} x {x.shape[1]} inputs are not zero"
    learning = trace is not None and trace.training and torch.is_grad_enabled()
    if learning and block.chunk is None:
        return (
            "step",
            "dense inputs, step by step: a single step meets the trace, which is dense; chunk=16 stays sparse",
        )
    if not sparse_pays(x):
        return "dense", f"dense products: {share}; sparse ones pay for longer chunks or fewer events"
    if learning and not isinstance(trace, TraceBuffer | SynapticTrace):
        return "sparse", f"sparse products forward: {share}; a {type(trace).__name__} takes in dense steps"
    return "sparse", f"sparse products: {share}"


__all__ = ["enter_events"]
