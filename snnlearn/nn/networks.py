"""Networks for frames [B, polarities, rows, columns] and vectors [B, channels]: ordinary single-step modules, ready
for any rule."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torch import nn

from snnlearn.functional.arguments import is_whole
from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.connection import Connection, ETLinear
from snnlearn.nn.convolution import ETConv2d
from snnlearn.nn.dropout import TimeConstantDropout
from snnlearn.nn.factory import check_factory
from snnlearn.nn.leaky_integrator import LI
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.weight_standardization import WeightStandardizedETConv2d

__all__ = ["ReadoutKind", "convolutional", "mlp", "recurrent"]

ReadoutKind = Literal["leaky", "static"]


def mlp(
    inputs: int,
    hidden: Sequence[int],
    classes: int,
    neuron: Callable[[], Neuron],
    *,
    readout: ReadoutKind = "leaky",
    readout_tau: float = 2.0,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build a fully connected network: flatten, hidden layers of spiking neurons, readout.

    `inputs` values per step (polarities x rows x columns, or channels), units of each `hidden` layer, outputs
    [B, `classes`]. `neuron()` makes the neurons of one layer. The `readout` is a leaky integrator (its weights are
    traced, its time constant is `readout_tau` steps) or a static linear layer. `dropout` is the share of units
    silenced after each hidden layer, the same for a whole sequence. Blocks are called `hidden_1`, `hidden_2`, ...

    Raises ValueError where a size is below one.

    >>> from snnlearn.nn import LIF
    >>> [name for name, _ in mlp(6, [4, 3], 2, LIF).named_children()]
    ['flatten', 'hidden_1', 'hidden_2', 'readout']
    """
    return _layered(ETLinear, inputs, hidden, classes, neuron, readout, readout_tau, dropout)


def recurrent(
    inputs: int,
    hidden: Sequence[int],
    classes: int,
    neuron: Callable[[], Neuron],
    *,
    self_connections: bool = False,
    readout: ReadoutKind = "leaky",
    readout_tau: float = 2.0,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build a recurrent network: as `mlp`, but the spikes of each hidden layer are its input again a step later.

    `self_connections` says whether a unit's spikes come back to itself too; the rest is as in `mlp`.

    Raises ValueError where a size is below one.

    >>> from snnlearn.nn import LIF
    >>> type(recurrent(6, [4], 2, LIF).hidden_1.connection).__name__
    'ETRecurrent'
    """
    connection = functools.partial(ETRecurrent, self_connections=self_connections)
    return _layered(connection, inputs, hidden, classes, neuron, readout, readout_tau, dropout)


def _layered(
    connection: Callable[[int, int], Connection],
    inputs: int,
    hidden: Sequence[int],
    classes: int,
    neuron: Callable[[], Neuron],
    readout: ReadoutKind,
    readout_tau: float,
    dropout: float,
) -> nn.Sequential:
    _require_sizes(inputs=[inputs], hidden=hidden, classes=[classes])
    check_factory("neuron", neuron, "LIF")
    layers: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
    for number, units in enumerate(hidden, start=1):
        layers.append((f"hidden_{number}", ETBlock(connection(inputs, units), neuron())))
        if dropout != 0:
            layers.append((f"dropout_{number}", TimeConstantDropout(dropout)))
        inputs = units
    layers.append(("readout", _readout(inputs, classes, readout, readout_tau)))
    return nn.Sequential(OrderedDict(layers))


def convolutional(
    sensor: tuple[int, int, int],
    channels: Sequence[int],
    classes: int,
    neuron: Callable[[], Neuron],
    *,
    kernel_size: tuple[int, int] = (3, 3),
    pool: int = 2,
    weight_standardized: bool = False,
    readout: ReadoutKind = "leaky",
    readout_tau: float = 2.0,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build a convolutional network: convolutions, each with average pooling, then flatten and readout.

    `sensor` is (polarities, rows, columns) of the frames; `channels` the outputs of each convolution, whose
    odd `kernel_size` (rows, columns) keeps the size; `pool` the side of the pooling window (1: none). The rest
    is as in `mlp`. Blocks are called `convolution_1`, ...

    Raises ValueError for an even kernel, a size below one, or pooling that leaves no pixel.

    >>> from snnlearn.nn import LIF
    >>> net = convolutional((2, 8, 8), [4], 10, LIF)
    >>> net.convolution_1.connection.kernel_size, net.readout.connection.in_features
    ((3, 3), 64)
    """
    _require_sizes(sensor=sensor, channels=channels, classes=[classes], kernel_size=kernel_size, pool=[pool])
    check_factory("neuron", neuron, "LIF")
    if any(side % 2 == 0 for side in kernel_size):
        raise ValueError(f"kernel_size {kernel_size}: give odd numbers, so that padding keeps the size")
    rows, columns = (side // pool ** len(channels) for side in sensor[1:])
    if min(rows, columns) < 1:
        raise ValueError(f"pool {pool}: {len(channels)} poolings leave no pixel of {sensor[1:]}; take fewer or less")
    convolution = WeightStandardizedETConv2d if weight_standardized else ETConv2d
    padding = (kernel_size[0] // 2, kernel_size[1] // 2)
    layers: list[tuple[str, nn.Module]] = []
    inputs = sensor[0]
    for number, outputs in enumerate(channels, start=1):
        connection = convolution(inputs, outputs, kernel_size, padding=padding)
        layers.append((f"convolution_{number}", ETBlock(connection, neuron())))
        if pool > 1:
            layers.append((f"pool_{number}", nn.AvgPool2d(pool)))
        if dropout != 0:
            layers.append((f"dropout_{number}", TimeConstantDropout(dropout)))
        inputs = outputs
    layers.append(("flatten", nn.Flatten()))
    layers.append(("readout", _readout(inputs * rows * columns, classes, readout, readout_tau)))
    return nn.Sequential(OrderedDict(layers))


def _readout(inputs: int, classes: int, kind: ReadoutKind, tau: float) -> nn.Module:
    if kind not in get_args(ReadoutKind):
        raise ValueError(f"readout={kind!r}: choose one of {', '.join(get_args(ReadoutKind))}; write readout='leaky'")
    if kind == "static":
        return Readout(nn.Linear(inputs, classes))
    return ETBlock(ETLinear(inputs, classes), LI(tau=tau))


def _require_sizes(**sizes: object) -> None:
    for name, values in sizes.items():
        listed = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else None
        if listed is None or not all(is_whole(value, 1) for value in listed):
            raise ValueError(f"{name}: got {values!r}; every size is a whole number >= 1, in a list; write e.g. [64]")
