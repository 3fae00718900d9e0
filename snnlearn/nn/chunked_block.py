"""How an `ETBlock` runs a chunk of steps: the product for all steps at once, the neuron step by step, one node.

Equations: `snnlearn.functional.chunk` and `snnlearn.functional.chunked_step`. The feed-forward product of a recurrent
connection is done for the whole chunk too; only its own spikes come back step by step.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from snnlearn.functional.chunked_step import ChunkedStep, ChunkRun, ChunkSteps
from snnlearn.functional.precision import LowPrecision
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.sparse_map import FoundSparse, SparseDense, is_sparse
from snnlearn.functional.traced_step import GatedStep, LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap
from snnlearn.nn.chunk import Chunk, NeuronScan, scan_gated, scan_neuron, step_of_scan
from snnlearn.nn.connection import Connection
from snnlearn.nn.factored_trace import RatioTrace
from snnlearn.nn.lif import FiringNeuron
from snnlearn.nn.norm_trace import NormTrace
from snnlearn.nn.normed_step import advance_behind, affine_parameters, norm_of_step
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.sparse_entry import enter_spikes
from snnlearn.nn.state import zero_rows
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer

if TYPE_CHECKING:
    from snnlearn.nn.block import ETBlock


def run_chunk(block: "ETBlock", x: Tensor, chunk: Chunk) -> Tensor:
    """Return the output [K B, *units] of a chunk x [K B, *inputs], with the gradients of the block's trace."""
    connection, trace = block.connection, block.connection.trace
    chunk.check_rows(x, block.neuron.state)
    if trace is None or not (trace.training and torch.is_grad_enabled()):
        if trace is not None:
            trace.skip()
        return _without_trace(block, x, chunk)
    if isinstance(trace, TraceBuffer) and not (block.norm is None or isinstance(block.norm, nn.Identity)):
        return _norm_apart(block, trace, x, chunk)
    if isinstance(trace, RatioTrace):
        trace.take_membrane(getattr(x, "membrane", None))
    block.neuron.refuse_replicas()
    norm = norm_of_step(block.norm)
    shown: list[Tensor] = []
    rows = enter_spikes(block, x)

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, weighted_map: WeightedMap) -> ChunkRun:
        x = x if rows.layout is torch.strided else rows
        steps, inputs = _steps(block, trace, x, weight, bias, weighted_map, chunk)
        if steps.membrane is not None:
            shown.append(steps.membrane)
        return ChunkRun(steps, inputs)

    output: Tensor = ChunkedStep.apply(
        x if isinstance(connection, ETRecurrent) else connection.traced_input(x),
        connection.effective_weight(),
        connection.bias,
        _map_for(connection, x) if rows.layout is x.layout else FoundSparse(),
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


def _norm_apart(block: "ETBlock", trace: TraceBuffer, x: Tensor, chunk: Chunk) -> Tensor:
    """Return the output of a block whose norm stands between two nodes, as in a single step: product and neuron."""
    connection, norm = block.connection, block.norm
    assert norm is not None

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, weighted_map: WeightedMap) -> ChunkRun:
        if isinstance(connection, ETRecurrent):
            y, before = _fed_back(block, x, weight, bias, weighted_map, chunk)
            inputs: Tensor | SideBySide = SideBySide((x, before))
        else:
            y, inputs = weighted_map.value(x, weight, bias), x
        gate = y.new_ones(()).expand(y.shape)  # the product is its own output
        return ChunkRun(ChunkSteps(y, gate, None, (), chunk.steps, chunk.restarts), inputs)

    y: Tensor = ChunkedStep.apply(
        x if isinstance(connection, ETRecurrent) else connection.traced_input(x),
        connection.effective_weight(),
        connection.bias,
        _map_for(connection, x),
        trace,
        run,
        block._tell,
        None,
    )
    output: Tensor = block.neuron(block._normalised(norm, y))
    if isinstance(connection, ETRecurrent):
        connection.spikes = chunk.unfolded(output.detach())[-1]
    return output


def _fed_back(
    block: "ETBlock", x: Tensor, weight: Tensor, bias: Tensor | None, weighted_map: WeightedMap, chunk: Chunk
) -> tuple[Tensor, Tensor]:
    """Return y [K B, O] of a recurrent block with a norm, its own spikes in it, and these, of the step before each.

    They come back in front of the norm, so the steps are run once to know them; the neuron's state stays where it was.
    """
    connection, neuron = block.connection, block.neuron
    assert isinstance(connection, ETRecurrent)
    inner = connection.in_features
    y = chunk.unfolded(weighted_map.value(x, weight[:, :inner], bias))
    spikes, kept, before = connection.spikes_for(chunk.unfolded(x)[0]), neuron.stash(), []
    for t in range(chunk.steps):
        rows = chunk.rows_at(t)
        if rows is not None:
            neuron.reset(rows)
            spikes = zero_rows(spikes, rows)
        before.append(spikes)
        y[t] += weighted_map.value(spikes, weight[:, inner:], None)
        spikes = neuron._advance(y[t] if block.norm is None else block.norm(y[t])).detach()
    neuron.restore(kept)
    return y.flatten(0, 1), torch.cat(before).to(x.dtype)


def _steps(
    block: "ETBlock",
    trace: TraceBuffer | StepTrace,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    weighted_map: WeightedMap,
    chunk: Chunk,
) -> tuple[ChunkSteps, Tensor | SideBySide]:
    """Run connection and neuron through the chunk, outside autograd; return the steps and what entered the weights."""
    connection, neuron, norm = block.connection, block.neuron, norm_of_step(block.norm)
    recurrent_weight = spikes = before = None
    if isinstance(connection, ETRecurrent) and norm is not None:
        y, before = _fed_back(block, x, weight, bias, weighted_map, chunk)
    elif isinstance(connection, ETRecurrent):
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
            scan, gate = scan_gated(neuron, folded, chunk, recurrent_weight, spikes, block.shows_membrane)
            scans.append(scan)
            return GatedStep(scan.spikes.flatten(0, 1), gate.flatten(0, 1))
        scans.append(scan_neuron(neuron, folded, chunk, recurrent_weight, spikes, block.shows_membrane))
        return step_of_scan(neuron, scans[-1])

    step = advance(y) if norm is None else advance_behind(norm, advance, y)
    assert step.ties is None, "a chunk meets frozen statistics alone"
    (scan,) = scans
    jacobian, parameters = (step.jacobian, step.parameters) if isinstance(step, LinearisedStep) else (None, ())
    membrane = None if scan.membrane is None else scan.membrane.flatten(0, 1)
    steps = ChunkSteps(step.spike, step.spike_input, jacobian, parameters, chunk.steps, chunk.restarts, membrane)
    if not isinstance(connection, ETRecurrent):
        return steps, x
    connection.spikes = scan.spikes[-1]
    if before is None:
        assert scan.before is not None
        before = scan.before.flatten(0, 1).to(x.dtype)
    return steps, SideBySide((x, before))


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
    output: Tensor = neuron(y if block.norm is None else block._normalised(block.norm, y))
    return output


def _recurrent_without_trace(block: "ETBlock", connection: ETRecurrent, x: Tensor, chunk: Chunk) -> Tensor:
    neuron, norm_trace = block.neuron, block._modules.get("norm_trace")
    if isinstance(norm_trace, NormTrace):
        norm_trace.skip()
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
