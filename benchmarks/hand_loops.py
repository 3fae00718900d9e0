"""The hand-written loops of `chunk_speed.py`: OTTT step by step in plain tensor expressions, as one writes it first.

That of the MLP is `step_speed.HandWritten`; here are the convolutional and the recurrent one. Nothing is checked,
nothing is counted, and the loss is differentiated by hand.
"""

import math

import torch
from step_speed import HandWritten
from torch import Tensor
from torch.nn import functional as F

CONV_DECAY = 0.5
RECURRENT_DECAY = READOUT_DECAY = 0.875


def fired(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return spikes, the membrane after its soft reset, and ds/dv by the arctan surrogate of alpha 2; threshold 1."""
    u = v - 1
    spikes = (u >= 0).to(v.dtype)
    return spikes, v - spikes, 1 / (1 + (math.pi * u) ** 2)


def spread_back(gradient: Tensor, like: Tensor) -> Tensor:
    """Return the gradient before an average over 2 x 2 pixels; a last odd row and column had no part in it."""
    wide = gradient.repeat_interleave(2, -1).repeat_interleave(2, -2) / 4
    return F.pad(wide, (0, like.shape[-1] - wide.shape[-1], 0, like.shape[-2] - wide.shape[-2]))


def convolution_gradients(d: Tensor, trace: Tensor, weight: Tensor, needs_input: bool) -> tuple[Tensor | None, Tensor]:
    """Return the gradient of the input, where it is needed, and that of the weight, read from the trace."""
    ones, zeros = [1, 1], [0, 0]
    grad_input, grad_weight, _ = torch.ops.aten.convolution_backward(
        d, trace, weight, None, ones, ones, ones, False, zeros, 1, [needs_input, True, False]
    )
    return grad_input, grad_weight


class HandConvolutional(HandWritten):
    """Conv 2 -> 32 -> 64, averages over 2 x 2 pixels behind each, and a linear readout."""

    @torch.no_grad()
    def sequence(self, x: Tensor, labels: Tensor) -> float:
        """Accumulate the gradients of one sequence x [T, B, 2, H, W]; return the mean loss."""
        weight, bias, weight_2, bias_2, readout, readout_bias = (p.detach() for p in self.parameters)
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        grad_weight, grad_bias, grad_weight_2, grad_bias_2, grad_readout, grad_readout_bias = self.gradients
        target = F.one_hot(labels, len(readout)).to(x.dtype)
        v: Tensor | float = 0.0
        v_2: Tensor | float = 0.0
        trace: Tensor | float = 0.0
        trace_2: Tensor | float = 0.0
        bias_trace, loss = 0.0, x.new_zeros(())
        for x_t in x:
            # 1. forward
            spikes, v, gate = fired(CONV_DECAY * v + F.conv2d(x_t, weight, bias, padding=1))
            pooled = F.avg_pool2d(spikes, 2)
            spikes_2, v_2, gate_2 = fired(CONV_DECAY * v_2 + F.conv2d(pooled, weight_2, bias_2, padding=1))
            pooled_2 = F.avg_pool2d(spikes_2, 2)
            features = pooled_2.flatten(1)
            output = F.linear(features, readout, readout_bias)
            # 2. trace update
            trace, trace_2 = CONV_DECAY * trace + x_t, CONV_DECAY * trace_2 + pooled
            bias_trace = CONV_DECAY * bias_trace + 1
            # 3. readout and neuron backward, 4. ET backward
            error = (output.softmax(1) - target) / len(labels) / len(x)
            grad_readout += error.T @ features
            grad_readout_bias += error.sum(0)
            signal_2 = spread_back((error @ readout).view_as(pooled_2), spikes_2) * gate_2
            grad_pooled, gathered_2 = convolution_gradients(signal_2, trace_2, weight_2, True)
            grad_weight_2 += gathered_2
            grad_bias_2 += bias_trace * signal_2.sum((0, 2, 3))
            signal = spread_back(grad_pooled, spikes) * gate
            grad_weight += convolution_gradients(signal, trace, weight, False)[1]
            grad_bias += bias_trace * signal.sum((0, 2, 3))
            loss += F.cross_entropy(output, labels)
        return float(loss) / len(x)


class HandRecurrent(HandWritten):
    """A recurrent layer without self-connections and a leaky readout, each with traces of what enters it."""

    @torch.no_grad()
    def sequence(self, x: Tensor, labels: Tensor) -> float:
        """Accumulate the gradients of one sequence x [T, B, I]; return the mean loss."""
        weight, recurrent, bias, readout, readout_bias = (p.detach() for p in self.parameters)
        recurrent = recurrent - torch.diag_embed(recurrent.diagonal())
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        grad_weight, grad_recurrent, grad_bias, grad_readout, grad_readout_bias = self.gradients
        target = F.one_hot(labels, len(readout)).to(x.dtype)
        v = x.new_zeros(x.shape[1], len(weight))
        spikes, spike_trace, readout_trace = torch.zeros_like(v), torch.zeros_like(v), torch.zeros_like(v)
        trace, output = torch.zeros_like(x[0]), x.new_zeros(x.shape[1], len(readout))
        bias_trace, readout_bias_trace, loss = 0.0, 0.0, x.new_zeros(())
        for x_t in x:
            # 1. forward and 2. trace update; the layer hears its spikes of the step before
            spike_trace = RECURRENT_DECAY * spike_trace + spikes
            v = RECURRENT_DECAY * v + F.linear(x_t, weight, bias) + F.linear(spikes, recurrent)
            spikes, v, gate = fired(v)
            output = READOUT_DECAY * output + F.linear(spikes, readout, readout_bias)
            trace, readout_trace = RECURRENT_DECAY * trace + x_t, READOUT_DECAY * readout_trace + spikes
            bias_trace, readout_bias_trace = RECURRENT_DECAY * bias_trace + 1, READOUT_DECAY * readout_bias_trace + 1
            # 3. readout and neuron backward, 4. ET backward
            error = (output.softmax(1) - target) / len(labels) / len(x)
            grad_readout += error.T @ readout_trace
            grad_readout_bias += readout_bias_trace * error.sum(0)
            signal = (error @ readout) * gate
            grad_weight += signal.T @ trace
            grad_recurrent += signal.T @ spike_trace
            grad_bias += bias_trace * signal.sum(0)
            loss += F.cross_entropy(output, labels)
        grad_recurrent.fill_diagonal_(0)
        return float(loss) / len(x)
