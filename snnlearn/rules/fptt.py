"""FPTT: forward propagation through time, as a wrapper around any optimizer.

Kag and Saligrama 2021, ICML (PMLR 139); for spiking networks Yin et al. 2023, doi:10.1038/s42256-023-00650-4. Not an
eligibility rule: it takes the gradient of the present step, of SLTT or any online rule, and steps the weights at every
step, pulled towards their own running average. Equations: `snnlearn.functional.proximal`. Memory: two more numbers per
weight. Published results need gated neurons; with plain leaky ones it is known to do little.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snnlearn.functional.arguments import is_number
from snnlearn.functional.proximal import advance_average_, proximal_gradient


class FPTT(torch.optim.Optimizer):
    """Step `optimizer` on the gradient of FPTT's objective.

    `optimizer` any of torch's, whose groups this one shares; `alpha` (above 0) the strength of the pull, `beta` in
    (0, 1] the share of the new weights in their average. Meant for an update at every step:
    `OnlineLearner(net, SLTT(), loss, FPTT(SGD(...)), update=1)`. `begin_epoch` restarts from the average. A parameter
    without a gradient is left alone, with its average. Gradients are as before after a step. Weight decay, momentum
    and the like are the inner optimizer's, and see the pull. Raises ValueError for a constant outside its range,
    TypeError for an optimizer that is none.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = FPTT(torch.optim.SGD([weight], lr=0.5), alpha=0.2, beta=0.5)
    >>> weight.grad = torch.ones(1)
    >>> optimizer.step(); weight.data
    tensor([0.5000])
    >>> optimizer.step(); weight.data  # gradient 1 + 0.2 (0.5 - 0.5) - 0.1
    tensor([0.0500])
    """

    def __init__(self, optimizer: torch.optim.Optimizer, alpha: float = 0.2, beta: float = 0.5) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"FPTT wraps an optimizer and got {_kind_of(optimizer)}: build one and pass it; write "
                f"FPTT(torch.optim.SGD(net.parameters(), lr=0.1))"
            )
        if not (is_number(alpha) and alpha > 0):
            raise ValueError(f"alpha={alpha!r}: the pull is above 0, since the average divides by it; write alpha=0.2")
        if not (is_number(beta) and 0 < beta <= 1):
            raise ValueError(f"beta={beta!r}: the share of the new weights lies in (0, 1]; write beta=0.5")
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.alpha, self.beta = optimizer, alpha, beta
        self._share()

    def _share(self) -> None:
        self.param_groups, self.defaults = self.optimizer.param_groups, self.optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as torch's optimizers do."""
        if "optimizer" in self.__dict__:
            self.optimizer.add_param_group(param_group)
        else:  # torch's own constructor is at work
            super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the inner optimizer on the pulled gradient, then advance the averages; return its result.

        `closure`, where the inner optimizer takes one, recomputes loss and gradients. Raises TypeError for a sparse
        gradient.
        """
        given: list[tuple[Tensor, Tensor]] = []

        def pull() -> None:
            given.clear()
            for weight, sign in self._learning():
                assert weight.grad is not None
                given.append((weight, weight.grad))
                weight.grad = self._pulled(weight, sign)

        def pulled() -> Any:
            assert closure is not None
            with torch.enable_grad():
                value = closure()
            pull()
            return value

        if closure is None:
            pull()
            result = self.optimizer.step()
        else:
            result = self.optimizer.step(pulled)
        for weight, gradient in given:
            weight.grad = gradient
            state = self.state[weight]
            advance_average_(state["average"], state["multiplier"], weight, self.alpha, self.beta)
        return result

    def begin_epoch(self) -> None:
        """Set every weight that has learned to its running average, as the paper does where an epoch begins."""
        with torch.no_grad():
            for weight, state in self.state.items():
                weight.copy_(state["average"])

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and, under "fptt", the averages and multipliers by parameter number."""
        return {**self.optimizer.state_dict(), "fptt": super().state_dict()["state"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` returned; raise ValueError for the state of a bare optimizer."""
        if "fptt" not in state_dict:
            raise ValueError(
                "this state holds no 'fptt' entry, so another optimizer saved it and FPTT's averages are unknown; load "
                "it into fptt.optimizer to go on from there with fresh averages"
            )
        self.optimizer.load_state_dict({key: value for key, value in state_dict.items() if key != "fptt"})
        self._share()
        groups = super().state_dict()["param_groups"]
        super().load_state_dict({"state": state_dict["fptt"], "param_groups": groups})
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        """Return attributes for copies and pickles."""
        own = {"optimizer": self.optimizer, "alpha": self.alpha, "beta": self.beta}
        return {**super().__getstate__(), **own}

    def _learning(self) -> list[tuple[Tensor, float]]:
        """Return the parameters with a gradient, each with the sign in which its group follows gradients."""
        found = []
        for group in self.param_groups:
            sign = -1.0 if group.get("maximize", False) else 1.0
            found += [(weight, sign) for weight in group["params"] if weight.grad is not None]
        sparse = [tuple(weight.shape) for weight, _ in found if weight.grad.is_sparse]
        if sparse:
            raise TypeError(
                f"FPTT pulls every weight at every step, and parameters of shape {sparse} have sparse gradients; "
                f"make them dense, for example torch.nn.Embedding(..., sparse=False)"
            )
        return found

    def _pulled(self, weight: Tensor, sign: float) -> Tensor:
        """Return the gradient of FPTT's objective at `weight`, whose average starts at the weight itself."""
        state, value = self.state[weight], weight.detach()
        if not state:
            state["average"], state["multiplier"] = value.clone(), torch.zeros_like(value)
        assert weight.grad is not None
        return sign * proximal_gradient(sign * weight.grad, value, state["average"], state["multiplier"], self.alpha)


def _kind_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


__all__ = ["FPTT"]
