"""The works that `chunk_speed.py` times: network, input, hand-written loop, bare products, bytes of the traces."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hand_loops import CONV_DECAY, READOUT_DECAY, RECURRENT_DECAY, HandConvolutional, HandRecurrent, HandWritten
from inputs import digits, frames, labels_for, recordings_folder, utterances
from step_speed import build_network
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LI, LIF, ETBlock, ETConv2d, ETLinear, ETRecurrent, Readout
from snnlearn.data import NMNIST, Binning, SparseSequence
from snnlearn.functional.sparse_map import add_weight_gradient_, sparse_value

QUANTUM = 2.0**-12
RECORDED_MS = 310


@dataclass(frozen=True)
class Work:
    """One network and its input; T and B unless told otherwise are `inputs.SIZES`.

    `inputs(steps, batch)` gives x [T, B, ...] and labels [B]; `products(x, net, chunk)` a run of the work's bare
    matrix products, K steps at once; `has_events` whether the input is handed over as sparse events too.
    """

    title: str
    build: Callable[[], nn.Sequential]
    inputs: Callable[[int, int], tuple[Tensor, Tensor]]
    hand: type[HandWritten]
    products: Callable[[Tensor, nn.Sequential, int], Callable[[], None]]
    has_events: bool = False


def quantized(net: nn.Sequential) -> nn.Sequential:
    """Round the weights to multiples of 2^-12: products of counts are then exact in whatever order they are summed.

    So no spike flips because a chunk has its products summed in another order, and gradients differ by rounding alone.
    """
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_((parameter / QUANTUM).round() * QUANTUM)
    return net


def mlp() -> nn.Sequential:
    """Return 2312-512-10, its weights wide enough that it fires on bins of 1 ms too."""
    net = build_network()
    with torch.no_grad():
        next(net.parameters()).mul_(4)
    return quantized(net)


def convolutional() -> nn.Sequential:
    """Return 2 x 34 x 34 -> 32 -> 64 -> 10."""
    net = nn.Sequential(
        ETBlock(ETConv2d(2, 32, 3, padding=1), LIF(decay=CONV_DECAY)),
        nn.AvgPool2d(2),
        ETBlock(ETConv2d(32, 64, 3, padding=1), LIF(decay=CONV_DECAY)),
        nn.AvgPool2d(2),
        nn.Flatten(),
        Readout(nn.Linear(64 * 8 * 8, 10)),
    )
    with torch.no_grad():
        for parameter in list(net.parameters())[:4]:
            parameter.mul_(4)
    return quantized(net)


def recurrent() -> nn.Sequential:
    """Return 700-256-20 with recurrent weights and a leaky readout."""
    net = nn.Sequential(
        ETBlock(ETRecurrent(700, 256), LIF(decay=RECURRENT_DECAY)),
        ETBlock(ETLinear(256, 20), LI(decay=READOUT_DECAY)),
    )
    with torch.no_grad():
        next(net.parameters()).mul_(3)
    return quantized(net)


def pieces(x: Tensor, chunk: int) -> list[Tensor]:
    """Return x [T, B, ...] as pieces [K B, ...]."""
    return [piece.flatten(0, 1) for piece in x.split(chunk)]


def linear_products(x: Tensor, weight: Tensor, readout: Tensor, chunk: int) -> Callable[[], None]:
    """Return a run of forward and weight gradient of one layer, and of the readout with the gradient of its input."""
    folded = pieces(x.flatten(2), chunk)
    units = [x.new_zeros(len(piece), len(weight)) for piece in folded]

    def run() -> None:
        for x_t, hidden in zip(folded, units, strict=True):
            torch.mm(x_t, weight.T, out=hidden)
            output = hidden @ readout.T
            output.T @ hidden
            signal = output @ readout
            signal.T @ x_t

    return run


def mlp_products(x: Tensor, net: nn.Sequential, chunk: int) -> Callable[[], None]:
    """Return the products of the MLP."""
    weight, _, readout, _ = (parameter.detach() for parameter in net.parameters())
    return linear_products(x, weight, readout, chunk)


def events_of(x: Tensor) -> SparseSequence:
    """Return counts [T, B, I] as sparse events."""
    rows = x.flatten(2).flatten(0, 1)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), (rows != 0).sum(1).cumsum(0)]).int()
    return SparseSequence(ends, rows.nonzero()[:, 1].int(), rows[rows != 0], x.shape[1], rows.shape[1])


def sparse_products(events: SparseSequence, net: nn.Sequential, chunk: int) -> Callable[[], None]:
    """Return the products of the MLP, those with the input sparse; cutting the chunks out is part of it."""
    weight, _, readout, _ = (parameter.detach() for parameter in net.parameters())
    total = torch.zeros(weight.shape[::-1])

    def run() -> None:
        for begin in range(0, len(events), chunk):
            x_t = events.folded(begin, min(begin + chunk, len(events)))
            hidden = sparse_value(x_t, weight)
            output = hidden @ readout.T
            output.T @ hidden
            add_weight_gradient_(total, output @ readout, x_t)

    return run


def recurrent_products(x: Tensor, net: nn.Sequential, chunk: int) -> Callable[[], None]:
    """Return the products of the recurrent network; the spikes come back step by step."""
    weight, inner, _, readout, _ = (parameter.detach() for parameter in net.parameters())
    batch, layer = x.shape[1], linear_products(x, weight, readout, chunk)
    spikes = x.new_zeros(batch, len(weight))
    folded = [spikes.new_zeros(len(piece), len(weight)) for piece in pieces(x, chunk)]

    def run() -> None:
        layer()
        for _ in range(len(x)):
            spikes @ inner.T
        for signal in folded:
            signal.T @ signal

    return run


def convolutional_products(x: Tensor, net: nn.Sequential, chunk: int) -> Callable[[], None]:
    """Return the convolutions and products of the convolutional network."""
    weight, _, weight_2, _, readout, _ = (parameter.detach() for parameter in net.parameters())
    folded = pieces(x, chunk)
    ones, zeros = [1, 1], [0, 0]

    def gradients(d: Tensor, x: Tensor, weight: Tensor, needs_input: bool) -> None:
        mask = [needs_input, True, False]
        torch.ops.aten.convolution_backward(d, x, weight, None, ones, ones, ones, False, zeros, 1, mask)

    def run() -> None:
        for x_t in folded:
            y = F.conv2d(x_t, weight, padding=1)
            pooled = y[..., :17, :17].contiguous()
            y_2 = F.conv2d(pooled, weight_2, padding=1)
            features = y_2[..., :8, :8].flatten(1)
            output = features @ readout.T
            output.T @ features
            output @ readout
            gradients(y_2, pooled, weight_2, True)
            gradients(y, x_t, weight, False)

    return run


def with_labels(make: Callable[[int, int], Tensor], classes: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Return `make` with labels for what it makes."""
    return lambda steps, batch: (make(steps, batch), labels_for(batch, classes))


def recordings(steps: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return the first T ms of real N-MNIST recordings as counts [T, B, 2312] in bins of 1 ms, and their labels."""
    folder = recordings_folder()
    if folder is None:
        raise FileNotFoundError("no N-MNIST recordings: put some into data/nmnist, or name $SNNLEARN_SHARED")
    data = NMNIST(folder, "train", Binning(by="duration", bin_us=1_000, steps=RECORDED_MS))
    chosen = [data[number * len(data) // batch] for number in range(batch)]
    x = torch.stack([torch.as_tensor(sample[0]) for sample in chosen], dim=1).float().flatten(2)
    return x[:steps], torch.tensor([int(sample[1]) for sample in chosen])


WORKS = {
    "a": Work("MLP 2312-512-10", mlp, with_labels(digits, 10), HandWritten, mlp_products),
    "b": Work(
        "conv 2x34x34 -> 32 -> 64 -> 10",
        convolutional,
        with_labels(frames, 10),
        HandConvolutional,
        convolutional_products,
    ),
    "c": Work(
        "recurrent 700-256-20",
        recurrent,
        with_labels(utterances, 20),
        HandRecurrent,
        recurrent_products,
    ),
    "d": Work(
        "MLP 2312-512-10 on N-MNIST recordings at 1 ms",
        mlp,
        recordings,
        HandWritten,
        mlp_products,
        has_events=True,
    ),
}
"""Every work by its letter."""
