"""A two-layer LIF network written out in bare tensors: no module, rule or helper of the package is used.

It holds the package's oracle itself to account: autograd over these lines is BPTT, with cuts where asked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NAMES = ["0.connection.weight", "0.connection.bias", "1.connection.weight", "1.connection.bias"]
NAMES += ["2.connection.weight", "2.connection.bias"]
"""What the package calls these weights in a network of two blocks and a readout."""


class HandSpike(torch.autograd.Function):
    """Step forward; 1 / (1 + (pi u)^2) backward."""

    @staticmethod
    def forward(ctx, u):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        (u,) = ctx.saved_tensors
        return g / (1 + (torch.pi * u) ** 2)


@dataclass
class Weights:
    """Two hidden layers and a readout, each (weight, bias)."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    wo: Tensor
    bo: Tensor

    def all(self) -> list[Tensor]:
        return [self.w1, self.b1, self.w2, self.b2, self.wo, self.bo]


def weights_of(net: nn.Module) -> Weights:
    """Return the weights of such a network."""
    parameters = dict(net.named_parameters())
    return Weights(*[parameters[name].detach() for name in NAMES])


def bptt(
    p: Weights, x: Tensor, y: Tensor, decay: float, cut: tuple[int, ...] = (), reset: str = "soft"
) -> list[Tensor]:
    """Gradients of the mean step loss; `cut` numbers the layers (1, 2) whose state is detached each step."""
    leaves = Weights(*[t.detach().clone().requires_grad_() for t in p.all()])
    v1 = torch.zeros(x.shape[1], p.w1.shape[0], dtype=x.dtype)
    v2 = torch.zeros(x.shape[1], p.w2.shape[0], dtype=x.dtype)
    loss = torch.zeros((), dtype=x.dtype)
    for x_t in x:
        v1 = v1.detach() if 1 in cut else v1
        v2 = v2.detach() if 2 in cut else v2
        v1 = decay * v1 + x_t @ leaves.w1.T + leaves.b1
        s1 = HandSpike.apply(v1 - 1)
        v1 = v1 - s1.detach() if reset == "soft" else v1 * (1 - s1.detach())
        v2 = decay * v2 + s1 @ leaves.w2.T + leaves.b2
        s2 = HandSpike.apply(v2 - 1)
        v2 = v2 - s2.detach() if reset == "soft" else v2 * (1 - s2.detach())
        loss = loss + F.cross_entropy(s2 @ leaves.wo.T + leaves.bo, y) / len(x)
    return list(torch.autograd.grad(loss, leaves.all()))


def ottt(p: Weights, x: Tensor, y: Tensor, decay: float, wrong_sign: bool = False) -> list[Tensor]:
    """The rule's equations written out, with no autograd at all."""
    batch, steps = x.shape[1], len(x)
    a0 = torch.zeros_like(x[0])
    a1 = torch.zeros(batch, p.w1.shape[0], dtype=x.dtype)
    c = 0.0
    v1, v2 = torch.zeros_like(a1), torch.zeros(batch, p.w2.shape[0], dtype=x.dtype)
    g = [torch.zeros_like(t) for t in p.all()]
    one_hot = F.one_hot(y, p.wo.shape[0]).to(x)
    for x_t in x:
        v1 = decay * v1 + x_t @ p.w1.T + p.b1
        psi1, s1 = 1 / (1 + (torch.pi * (v1 - 1)) ** 2), (v1 >= 1).to(x)
        v1 = v1 - s1
        v2 = decay * v2 + s1 @ p.w2.T + p.b2
        psi2, s2 = 1 / (1 + (torch.pi * (v2 - 1)) ** 2), (v2 >= 1).to(x)
        v2 = v2 - s2
        a0, a1, c = decay * a0 + x_t, (-decay if wrong_sign else decay) * a1 + s1, decay * c + 1
        e = (torch.softmax(s2 @ p.wo.T + p.bo, -1) - one_hot) / (batch * steps)
        d2 = (e @ p.wo) * psi2
        d1 = (d2 @ p.w2) * psi1
        for i, term in enumerate((d1.T @ a0, c * d1.sum(0), d2.T @ a1, c * d2.sum(0), e.T @ s2, e.sum(0))):
            g[i] += term
    return g
