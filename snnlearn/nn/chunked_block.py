"""How an `ETBlock` runs a chunk of steps: the product for all steps at once, the neuron step by step, one node.

Equations: `snnlearn.functional.chunk` and `snnlearn.functional.chunked_step`. The feed-forward product of a recurrent
connection is done for the whole chunk too; only its own spikes come back step by step.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from snnlearn.functional.chunked_step import ChunkedStep, ChunkRun, ChunkSteps
from snnlearn.functional.precision import LowPrecision
from snnlearn.functional.sparse_map import SparseDense, is_sparse
from snnlearn.functional.traced_step import GatedStep, LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap
from snnlearn.nn.chunk import Chunk, NeuronScan, scan_cut, scan_neuron, step_of_scan
from snnlearn.nn.connection import Connection
from snnlearn.nn.factored_trace import RatioTrace
from snnlearn.nn.lif import FiringNeuron
from snnlearn.nn.normed_step import advance_behind, affine_parameters, norm_of_step
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer

if TYPE_CHECKING:
    from snnlearn.nn.block import ETBlock


def run_chunk(block: "ETBlock", x: Tensor, chunk: Chunk) -> Tensor:
    """Return the output [K B, *units] of a chunk x [K B, *inputs], with the gradients of the block's trace."""
    connection, trace = block.connection, block.connection.trace
    if trace is None or not (trace.training and torch.is_grad_enabled()):
        if trace is not None:
            trace.skip()
        return _without_trace(block, x, chunk)
    if isinstance(trace, RatioTrace):
        trace.take_membrane(getattr(x, "membrane", None))
    block.neuron.refuse_replicas()
    norm = norm_of_step(block.norm)
    shown: list[Tensor] = []

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, weighted_map: WeightedMap) -> ChunkRun:
        steps, inputs = _steps(block, trace, x, weight, bias, weighted_map, chunk)
        if steps.membrane is not None:
            shown.append(steps.membrane)
        return ChunkRun(steps, inputs)

    output: Tensor = ChunkedStep.apply(
        x if isinstance(connection, ETRecurrent) else connection.traced_input(x),
        connection.effective_weight(),
        connection.bias,
        _map_for(connection, x),
        trace,
        run,
        block._tell,
        None if block.feedback is None else block.feedback.to(x.device),
        *block.neuron.parameters(),
        *(() if norm is None else affine_parameters(norm, x.dim())),
    )
    if shown:
        output.membrane = shown[0]  # type: ignore[attr-defined]
    return output


def _steps(
    block: "ETBlock",
    trace: TraceBuffer | StepTrace,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    weighted_map: WeightedMap,
    chunk: Chunk,
) -> tuple[ChunkSteps, Tensor]:
    """Run connection and neuron through the chunk, outside autograd; return the steps and what entered the weights."""
    connection, neuron = block.connection, block.neuron
    recurrent_weight = spikes = None
    if isinstance(connection, ETRecurrent):
        inner = connection.in_features
        y = weighted_map.value(x, weight[:, :inner], bias)
        recurrent_weight, spikes = weight[:, inner:], connection.spikes_for(chunk.unfolded(x)[0])
        if isinstance(weighted_map, LowPrecision):
            recurrent_weight = recurrent_weight.to(weighted_map.dtype)
    else:
        y = weighted_map.value(x, weight, bias)
    needs_jacobian = isinstance(trace, StepTrace) and (trace.needs_jacobian or _has_affine(block))
    scans: list[NeuronScan] = []

    def advance(y: Tensor) -> Step:
        folded = chunk.unfolded(y)
        if isinstance(neuron, FiringNeuron) and neuron.cuts_its_past and not needs_jacobian:
            scan, u = scan_cut(neuron, folded, chunk, recurrent_weight, spikes, block.shows_membrane)
            scans.append(scan)
            return GatedStep(scan.spikes.flatten(0, 1), neuron.surrogate.derivative(u).flatten(0, 1))
        scans.append(scan_neuron(neuron, folded, chunk, recurrent_weight, spikes, block.shows_membrane))
        return step_of_scan(neuron, scans[-1])

    norm = norm_of_step(block.norm)
    step = advance(y) if norm is None else advance_behind(norm, advance, y)
    assert step.ties is None, "a chunk meets frozen statistics alone"
    (scan,) = scans
    jacobian, parameters = (step.jacobian, step.parameters) if isinstance(step, LinearisedStep) else (None, ())
    membrane = None if scan.membrane is None else scan.membrane.flatten(0, 1)
    steps = ChunkSteps(step.spike, step.spike_input, jacobian, parameters, chunk.steps, chunk.restarts, membrane)
    if not isinstance(connection, ETRecurrent):
        return steps, x
    assert scan.before is not None
    connection.spikes = scan.spikes[-1]
    return steps, torch.cat([x, scan.before.flatten(0, 1).to(x.dtype)], dim=-1)


def _map_for(connection: Connection, x: Tensor) -> WeightedMap:
    return SparseDense() if is_sparse(x) else connection.weighted_map()


def _has_affine(block: "ETBlock") -> bool:
    norm = norm_of_step(block.norm)
    return norm is not None and next(norm.parameters(), None) is not None


def _without_trace(block: "ETBlock", x: Tensor, chunk: Chunk) -> Tensor:
    """Run a block that keeps no trace, or not now; its gradient is that of each step alone."""
    connection, neuron = block.connection, block.neuron
    if isinstance(connection, ETRecurrent):
        return _recurrent_without_trace(block, connection, x, chunk)
    y = connection(x)
    output: Tensor = neuron(y if block.norm is None else block.norm(y))
    return output


def _recurrent_without_trace(block: "ETBlock", connection: ETRecurrent, x: Tensor, chunk: Chunk) -> Tensor:
    neuron = block.neuron
    spikes = []
    for t, x_t in enumerate(chunk.unfolded(x).unbind()):
        rows = chunk.rows_at(t)
        if rows is not None:
            connection.reset(rows)
            neuron.reset(rows)
        y = connection(x_t)
        spikes.append(neuron._advance(y if block.norm is None else block.norm(y)))
        connection.take_output(spikes[-1], neuron.carry_graph)
    return torch.cat(spikes)


__all__ = ["run_chunk"]
