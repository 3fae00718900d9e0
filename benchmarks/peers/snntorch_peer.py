"""snnTorch: BPTT, its training loop step by step. It has no online rule.

    python benchmarks/peers/snntorch_peer.py [--work a b c] [--threads 1] > peers.jsonl

A run is one sequence and one Adam update. Its reset takes the threshold off one step later, which is the same work.
"""

import sys

from measuring import batch_of, missing, options_for, report, size_of, weights_of

OPTIONS = options_for(__doc__, ["a", "b", "c"])
if missing("snnTorch", "torch", "snntorch"):
    sys.exit(1)

import snntorch  # noqa: E402
import torch  # noqa: E402
from snntorch import surrogate, utils  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(OPTIONS.threads)


def leaky(beta):
    """Return a layer of leaky neurons that keep their own state."""
    return snntorch.Leaky(beta=beta, spike_grad=surrogate.atan(alpha=2.0), init_hidden=True)


class Recurrent(nn.Module):
    """Work (c), its state handed on from step to step."""

    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(700, 256), nn.Linear(256, 20)
        self.hidden = snntorch.RLeaky(beta=0.875, linear_features=256, spike_grad=surrogate.atan(alpha=2.0))
        self.readout = snntorch.Leaky(beta=0.875, reset_mechanism="none")

    def forward(self, x):
        (spikes, membrane), potential = self.hidden.init_rleaky(), self.readout.init_leaky()
        outputs = []
        for x_t in x:
            spikes, membrane = self.hidden(self.inward(x_t), spikes, membrane)
            _, potential = self.readout(self.outward(spikes), potential)
            outputs.append(potential)
        return torch.stack(outputs)


def network(work):
    """Return the network of a work."""
    if work == "a":
        net = nn.Sequential(nn.Linear(2312, 512), leaky(0.5), nn.Linear(512, 10))
    elif work == "b":
        net = nn.Sequential(
            nn.Conv2d(2, 32, 3, padding=1),
            leaky(0.5),
            nn.AvgPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            leaky(0.5),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(4096, 10),
        )
    else:
        return Recurrent()
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights_of(work), strict=True):
            parameter.copy_(weight)
    return net


def through_time(work, x, labels):
    """Return a training step by BPTT, as its tutorials write it."""
    net = network(work)
    optimizer = torch.optim.Adam(net.parameters())

    def learn():
        utils.reset(net)
        optimizer.zero_grad()
        outputs = net(x) if isinstance(net, Recurrent) else torch.stack([net(x_t) for x_t in x])
        F.cross_entropy(outputs.flatten(0, 1), labels.repeat(len(x))).backward()
        optimizer.step()

    return learn


def main() -> None:
    """Time."""
    for work in OPTIONS.work:
        steps, batch = size_of(work, OPTIONS)
        x, labels = batch_of(work, steps, batch)
        report("snnTorch BPTT", work, steps, batch, OPTIONS, through_time(work, x, labels), steps)


if __name__ == "__main__":
    main()
