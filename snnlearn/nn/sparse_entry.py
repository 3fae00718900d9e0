"""Where sparse events enter a block: which product they take, and one line in the log that says why."""

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from snnlearn.functional.sparse_map import density, found_rows, is_large, is_sparse, sparse_pays, spikes_pay
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
    _tell(block, kind, f"sparse events -> {why}")
    return x if kind == "sparse" else x.to_dense()


def enter_spikes(block: "ETBlock", x: Tensor) -> Tensor:
    """Return what a learning block multiplies of a chunk x [K B, ...]: x, or sparse rows where there are few spikes.

    The numbers are the same to rounding. A block large enough for it says in the log which it took, and why.

    >>> from snnlearn.nn import LIF, ETBlock
    >>> enter_spikes(ETBlock(ETLinear(3, 2), LIF()), torch.zeros(1, 3)).shape
    torch.Size([1, 3])
    """
    connection = block.connection
    has_form = type(connection) is ETLinear and isinstance(connection.trace, TraceBuffer | SynapticTrace)
    if is_sparse(x) or not has_form or torch.is_autocast_enabled(x.device.type):
        return x
    units = connection.unit_shape[0]
    if not is_large(x, units):
        return x
    if not spikes_pay(x, units):
        _tell(
            block, "many spikes", f"spikes -> dense products: too many of {len(x)} x {x.shape[1]} inputs are not zero"
        )
        return x
    rows = found_rows(x.detach())
    share = f"{density(rows):.2%} of {len(x)} x {x.shape[1]} inputs are not zero"
    _tell(block, "few spikes", f"spikes -> sparse products: {share}")
    return rows


def _tell(block: "ETBlock", kind: str, text: str) -> None:
    """Log what a block chose, the first time that it does."""
    if kind not in block.entries:
        block.entries |= {kind}
        log.info("%s: %s", "a block" if block.connection.trace is None else block.connection.trace.name, text)


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


__all__ = ["enter_events", "enter_spikes"]
