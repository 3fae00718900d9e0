"""NDOT, S-TLLR and approximate OTPE written out in bare tensors: no module, rule or autograd is used.

Two layers of LIF neurons (soft reset, derivative 1 / (1 + (pi u)^2)) and a readout that integrates with a leak.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


class HandNetwork:
    """The forward of the network and the error of its output, step by step."""

    def __init__(self, parameters: list[Tensor], decays: list[float], batch: int) -> None:
        self.weights, self.biases, self.decays = parameters[0::2], parameters[1::2], decays
        self.membranes = [w.new_zeros(batch, w.shape[0]) for w in self.weights]

    def step(self, x: Tensor, y: Tensor, steps: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Inputs of the three layers, surrogate derivatives of the two that fire, and the output's error."""
        inputs, derivatives = [x], []
        for layer in range(2):
            v = self.decays[layer] * self.membranes[layer] + inputs[-1] @ self.weights[layer].T + self.biases[layer]
            derivatives.append(1 / (1 + (torch.pi * (v - 1)) ** 2))
            spikes = (v >= 1).to(x)
            self.membranes[layer] = v - spikes
            inputs.append(spikes)
        output = self.decays[2] * self.membranes[2] + inputs[-1] @ self.weights[2].T + self.biases[2]
        self.membranes[2] = output
        one_hot = F.one_hot(y, output.shape[-1]).to(x)
        return inputs, derivatives, (torch.softmax(output, -1) - one_hot) / (len(x) * steps)


def ndot(parameters: list[Tensor], decays: list[float], x: Tensor, y: Tensor) -> list[Tensor]:
    """The first trace decays by its leak, the others by the ratio of the membranes of the layer below."""
    net, gradients = HandNetwork(parameters, decays, x.shape[1]), [torch.zeros_like(p) for p in parameters]
    traces: list[Tensor] = [torch.zeros_like(x[0]), *(torch.zeros_like(v) for v in net.membranes[:2])]
    ones, before = [0.0, 0.0, 0.0], [torch.zeros_like(v) for v in net.membranes]
    for x_t in x:
        now = [v.clone() for v in net.membranes]
        inputs, psi, error = net.step(x_t, y, len(x))
        for layer in range(3):
            bound = decays[layer]
            if layer == 0:
                ratio = torch.full_like(x_t, bound)
            else:
                below = layer - 1
                ratio = torch.where(
                    before[below] == 0,
                    bound * torch.sign(now[below]),
                    torch.clamp(now[below] / torch.where(before[below] == 0, 1.0, before[below]), -bound, bound),
                )
            traces[layer] = ratio * traces[layer] + inputs[layer]
            ones[layer] = bound * ones[layer] + 1
        second = (error @ net.weights[2]) * psi[1]
        first = (second @ net.weights[1]) * psi[0]
        for layer, d in enumerate((first, second, error)):
            gradients[2 * layer] += d.T @ traces[layer]
            gradients[2 * layer + 1] += ones[layer] * d.sum(0)
        before = now
    return gradients


def s_tllr(
    parameters: list[Tensor], decays: list[float], x: Tensor, y: Tensor, factors: tuple[float, float, float, float]
) -> list[Tensor]:
    """`factors` are lq, lp, aq, ap; the readout does not fire and has the causal term alone, with weight one."""
    lq, lp, aq, ap = factors
    net, gradients = HandNetwork(parameters, decays, x.shape[1]), [torch.zeros_like(p) for p in parameters]
    traces: list[Tensor] = [torch.zeros_like(x[0]), *(torch.zeros_like(v) for v in net.membranes[:2])]
    post, one = [torch.zeros_like(v) for v in net.membranes[:2]], 0.0
    for x_t in x:
        inputs, psi, error = net.step(x_t, y, len(x))
        traces = [lp * trace + now for trace, now in zip(traces, inputs, strict=True)]
        one = lp * one + 1
        second = error @ net.weights[2]
        first = (second * psi[1]) @ net.weights[1]
        for layer, signal in enumerate((first, second)):
            causal, other = ap * signal * psi[layer], aq * signal * post[layer]
            gradients[2 * layer] += causal.T @ traces[layer] + other.T @ inputs[layer]
            gradients[2 * layer + 1] += one * causal.sum(0) + other.sum(0)
            post[layer] = lq * post[layer] + psi[layer]
        gradients[4] += error.T @ traces[2]
        gradients[5] += one * error.sum(0)
    return gradients


def approximate_otpe(parameters: list[Tensor], decays: list[float], x: Tensor, y: Tensor) -> list[Tensor]:
    """Both firing layers are filtered by the leak above, and both have and relay the mean derivative."""
    net, gradients = HandNetwork(parameters, decays, x.shape[1]), [torch.zeros_like(p) for p in parameters]
    traces: list[Tensor] = [torch.zeros_like(x[0]), *(torch.zeros_like(v) for v in net.membranes[:2])]
    filtered = [torch.zeros_like(trace) for trace in traces[:2]]
    ones, filtered_ones = [0.0, 0.0, 0.0], [0.0, 0.0]
    means = [torch.zeros_like(v) for v in net.membranes[:2]]
    for x_t in x:
        inputs, psi, error = net.step(x_t, y, len(x))
        for layer in range(3):
            traces[layer] = decays[layer] * traces[layer] + inputs[layer]
            ones[layer] = decays[layer] * ones[layer] + 1
        for layer in range(2):
            filtered[layer] = decays[layer + 1] * filtered[layer] + traces[layer]
            filtered_ones[layer] = decays[layer + 1] * filtered_ones[layer] + ones[layer]
            count = ones[layer]
            means[layer] = (1 - 1 / count) * means[layer] + psi[layer] / count
        second = (error @ net.weights[2]) * means[1]
        first = (second @ net.weights[1]) * means[0]
        for layer, d in enumerate((first, second)):
            gradients[2 * layer] += d.T @ filtered[layer]
            gradients[2 * layer + 1] += filtered_ones[layer] * d.sum(0)
        gradients[4] += error.T @ traces[2]
        gradients[5] += ones[2] * error.sum(0)
    return gradients
