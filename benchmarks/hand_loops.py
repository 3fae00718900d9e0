"""The hand-written loops: OTTT step by step in plain tensor expressions, as one writes it first; torch alone.

Nothing is checked, nothing is counted, and the loss is differentiated by hand. `Tuned` is the best that we can write
for the one MLP.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

INPUTS, HIDDEN, CLASSES = 2312, 512, 10
DECAY, THRESHOLD = 0.5, 1.0
CONV_DECAY = 0.5
RECURRENT_DECAY = READOUT_DECAY = 0.875


class HandWritten:
    """The same training step in plain tensor expressions."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.parameters = [weight.detach().clone().requires_grad_() for weight in weights]
        self.gradients: list[Tensor] = []
        self.optimizer = torch.optim.Adam(self.parameters)

    @torch.no_grad()
    def sequence(self, x: Tensor, labels: Tensor) -> float:
        """Accumulate the gradients of one sequence x [T, B, I]; return the mean loss."""
        weight, bias, readout, readout_bias = (parameter.detach() for parameter in self.parameters)
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        grad_weight, grad_bias, grad_readout, grad_readout_bias = self.gradients
        target = F.one_hot(labels, CLASSES).to(x.dtype)
        v, trace = x.new_zeros(x.shape[1], HIDDEN), torch.zeros_like(x[0])
        bias_trace, loss, total = 0.0, x.new_zeros(()), x.new_zeros(x.shape[1], CLASSES)
        for x_t in x:
            # 1. forward
            v = DECAY * v + F.linear(x_t, weight, bias)
            u = v - THRESHOLD
            spikes = (u >= 0).to(x.dtype)
            v = v - THRESHOLD * spikes
            output = F.linear(spikes, readout, readout_bias)
            # 2. trace update
            trace = DECAY * trace + x_t
            bias_trace = DECAY * bias_trace + 1
            # 3. readout and neuron backward; arctan surrogate of alpha 2: 1 / (1 + (pi u)^2)
            error = (output.softmax(1) - target) / target.numel() * CLASSES / len(x)
            grad_readout += error.T @ spikes
            grad_readout_bias += error.sum(0)
            signal = error @ readout / (1 + (math.pi * u) ** 2)
            # 4. ET backward
            grad_weight += signal.T @ trace
            grad_bias += bias_trace * signal.sum(0)
            loss += F.cross_entropy(output, labels)
            total += output
        return float(loss) / len(x)

    def learn(self, x: Tensor, labels: Tensor) -> float:
        """One training step."""
        loss = self.sequence(x, labels)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        return loss


class Tuned:
    """The same again, every buffer allocated once and every operation in place."""

    def __init__(self, weights: list[Tensor], batch: int) -> None:
        self.parameters = [weight.detach().clone().requires_grad_() for weight in weights]
        self.gradients = [torch.zeros_like(weight) for weight in weights]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.weights = [parameter.detach() for parameter in self.parameters]
        like = weights[0]
        self.y, self.v, self.u, self.spikes, self.signal = (like.new_zeros(batch, HIDDEN) for _ in range(5))
        self.trace = like.new_zeros(batch, INPUTS)
        self.output, self.total = (like.new_zeros(batch, CLASSES) for _ in range(2))
        self.bias_trace = 0.0
        self.optimizer = torch.optim.Adam(self.parameters)

    def reset(self) -> None:
        """Forget state, trace and gradients."""
        for buffer in (*self.gradients, self.v, self.trace, self.total):
            buffer.zero_()
        self.bias_trace = 0.0

    def step(self, x_t: Tensor, target: Tensor, scale: float) -> Tensor:
        """Add the gradients of one step x_t [B, I], one-hot target [B, C]; return the summed cross entropy."""
        weight, bias, readout, readout_bias = self.weights
        grad_weight, grad_bias, grad_readout, grad_readout_bias = self.gradients
        # 1. forward
        torch.addmm(bias, x_t, weight.T, out=self.y)
        torch.add(self.y, self.v, alpha=DECAY, out=self.v)
        torch.sub(self.v, THRESHOLD, out=self.u)
        torch.ge(self.u, 0, out=self.spikes)
        self.v.sub_(self.spikes, alpha=THRESHOLD)
        torch.addmm(readout_bias, self.spikes, readout.T, out=self.output)
        # 2. trace update
        torch.add(x_t, self.trace, alpha=DECAY, out=self.trace)
        self.bias_trace = DECAY * self.bias_trace + 1
        # 3. readout and neuron backward; arctan surrogate of alpha 2: 1 / (1 + (pi u)^2)
        log_p = F.log_softmax(self.output, 1)
        loss = -(log_p * target).sum()
        error = log_p.exp_().sub_(target).mul_(scale)
        grad_readout.addmm_(error.T, self.spikes)
        grad_readout_bias.add_(error.sum(0))
        torch.mm(error, readout, out=self.signal)
        self.signal.div_(self.u.mul_(math.pi).square_().add_(1))
        # 4. ET backward
        grad_weight.addmm_(self.signal.T, self.trace)
        grad_bias.add_(self.signal.sum(0), alpha=self.bias_trace)
        self.total.add_(self.output)
        return loss

    def sequence(self, x: Tensor, labels: Tensor) -> float:
        """Accumulate the gradients of one sequence x [T, B, I]; return the mean loss."""
        self.reset()
        target = F.one_hot(labels, CLASSES).to(x.dtype)
        scale = 1 / (len(x) * len(labels))
        loss = x.new_zeros(())
        for x_t in x:
            loss += self.step(x_t, target, scale)
        return float(loss) * scale

    def learn(self, x: Tensor, labels: Tensor) -> float:
        """One training step."""
        loss = self.sequence(x, labels)
        self.optimizer.step()
        return loss


def fired(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return spikes, the membrane after its soft reset, and ds/dv by the arctan surrogate of alpha 2; threshold 1."""
    u = v - 1
    spikes = (u >= 0).to(v.dtype)
    return spikes, v - spikes, 1 / (1 + (math.pi * u) ** 2)


def spread_back(gradient: Tensor, like: Tensor) -> Tensor:
    """Return the gradient before an average over 2 x 2 pixels; a last odd row and column had no part in it."""
    wide = gradient.repeat_interleave(2, -1).repeat_interleave(2, -2) / 4
    return F.pad(wide, (0, like.shape[-1] - wide.shape[-1], 0, like.shape[-2] - wide.shape[-2]))


def convolution_gradients(d: Tensor, trace: Tensor, weight: Tensor, needs_input: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient of the input, empty where it is not needed, and that of the weight, read from the trace."""
    ones, zeros = [1, 1], [0, 0]
    grad_input, grad_weight, _ = torch.ops.aten.convolution_backward(
        d, trace, weight, None, ones, ones, ones, False, zeros, 1, [needs_input, True, False]
    )
    return grad_input if needs_input else d.new_empty(0), grad_weight


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
        trace, trace_2 = torch.zeros_like(x[0]), x.new_zeros(())
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
