"""SpikingJelly 2: OTTT, SLTT and BPTT, multi-step and single-step.

    python benchmarks/peers/spikingjelly_peer.py [--work a b c] [--threads 1] > peers.jsonl

A run is one sequence and one Adam update. Its OTTT containers do not trace the input of the first layer, so they are
handed a traced one, except in front of a convolution, as in its examples. It has no OTTT for recurrent layers.
"""

import json
import sys

from measuring import (
    ROUNDING,
    batch_of,
    hand_written,
    missing,
    options_for,
    relative_errors,
    report,
    size_of,
    weights_of,
)

OPTIONS = options_for(__doc__, ["a", "b", "c"])
if missing("SpikingJelly", "torch", "spikingjelly"):
    sys.exit(1)

import torch  # noqa: E402
from spikingjelly.activation_based import functional, layer, neuron, surrogate  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(OPTIONS.threads)
LIF_OPTIONS = {"tau": 2.0, "decay_input": False, "v_reset": None, "detach_reset": True}
CHECKED = (8, 4)


def fires(kind=neuron.LIFNode, **options):
    """Return a layer of neurons with the arctan surrogate of alpha 2."""
    return kind(**{**LIF_OPTIONS, **options}, surrogate_function=surrogate.ATan(alpha=2.0))


def network(work, kind=neuron.LIFNode, container=nn.Sequential):
    """Return the network of a work with its weights."""
    if work == "a":
        net = container(layer.Linear(2312, 512), fires(kind), layer.Linear(512, 10))
    elif work == "b":
        net = container(
            layer.Conv2d(2, 32, 3, padding=1),
            fires(kind),
            layer.AvgPool2d(2),
            layer.Conv2d(32, 64, 3, padding=1),
            fires(kind),
            layer.AvgPool2d(2),
            layer.Flatten(),
            layer.Linear(4096, 10),
        )
    else:
        inner = layer.LinearRecurrentContainer(fires(kind, tau=8.0), 256, 256, bias=False)
        torch.nn.init.normal_(inner.rc.weight, std=0.02)
        return container(layer.Linear(700, 256), inner, layer.Linear(256, 20))
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights_of(work), strict=True):
            parameter.copy_(weight)
    return net


def step_by_step(work, kind, container, traced, x, labels, optimizer_of=torch.optim.Adam):
    """Return a training step that goes backward at every timestep, and its network."""
    net = network(work, kind, container)
    optimizer = optimizer_of(net.parameters())

    def learn():
        functional.reset_net(net)
        optimizer.zero_grad()
        trace = torch.zeros_like(x[0])
        for x_t in x:
            if traced:
                trace = net[1].track_trace(x_t, trace, net[1].tau)
            (F.cross_entropy(net([x_t, trace] if traced else x_t), labels) / len(x)).backward()
        optimizer.step()

    return learn, net


def integrated(y):
    """Return a leaky readout's membrane at every step; the library's own takes whole sequences and decays its input."""
    outputs = [y[0]]
    for y_t in y[1:]:
        outputs.append(0.875 * outputs[-1] + y_t)
    return torch.stack(outputs)


def through_time(work, step_mode, x, labels):
    """Return a training step by BPTT."""
    net = network(work)
    functional.set_step_mode(net, step_mode)
    optimizer = torch.optim.Adam(net.parameters())

    def learn():
        functional.reset_net(net)
        optimizer.zero_grad()
        outputs = net(x) if step_mode == "m" else torch.stack([net(x_t) for x_t in x])
        if work == "c":
            outputs = integrated(outputs)
        F.cross_entropy(outputs.flatten(0, 1), labels.repeat(len(x))).backward()
        optimizer.step()

    return learn


def check(work):
    """Assert that the last hidden weight's gradient is that of the hand-written loop; print how far the others are.

    Its biases and its first convolution have no trace, its readout has one.
    """
    x, labels = batch_of(work, *CHECKED)
    learn, net = step_by_step(work, neuron.OTTTLIFNode, layer.OTTTSequential, work == "a", x, labels)
    learn()
    errors = relative_errors([parameter.grad for parameter in net.parameters()], hand_written(work, x, labels))
    print(json.dumps({"peer": "SpikingJelly OTTT", "work": work, "check": errors}), file=sys.stderr)
    assert errors[0 if work == "a" else 2] < ROUNDING, f"not the gradient of the hand-written loop: {errors}"


def main() -> None:
    """Check and time."""
    for work in OPTIONS.work:
        steps, batch = size_of(work, OPTIONS)
        x, labels = batch_of(work, steps, batch)
        runs = {}
        if work != "c":
            check(work)
            ottt, traced = (neuron.OTTTLIFNode, layer.OTTTSequential), work == "a"
            runs["SpikingJelly OTTT"], _ = step_by_step(work, *ottt, traced, x, labels)
            runs["SpikingJelly SLTT"], _ = step_by_step(work, neuron.SLTTLIFNode, nn.Sequential, False, x, labels)
        runs["SpikingJelly BPTT, multi-step"] = through_time(work, "m", x, labels)
        runs["SpikingJelly BPTT, single-step"] = through_time(work, "s", x, labels)
        for name, run in runs.items():
            report(name, work, steps, batch, OPTIONS, run, steps)


if __name__ == "__main__":
    main()
