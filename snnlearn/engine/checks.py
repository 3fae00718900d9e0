"""What an `OnlineLearner` refuses, and what it looks at before it learns."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.engine.sequence import NonFiniteError
from snnlearn.nn.block import ETBlock
from snnlearn.nn.signal import RewardSignal
from snnlearn.rules.axes import LearningRule, RuleChoiceError
from snnlearn.rules.norms import is_frozen


def add_signal_parameters(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer the parameters that the rule itself brought: a learned broadcast, the readouts of blocks."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    signals = [m.signal for m in net.modules() if isinstance(m, ETBlock) and m.signal is not None]
    brought = [p for signal in signals for p in signal.parameters() if id(p) not in held]
    if brought:
        optimizer.add_param_group({"params": brought})


def check_sequence(x: object, per_step_target: object) -> None:
    """Raise TypeError unless x can be walked step by step and `per_step_target` is True or False.

    >>> check_sequence([torch.zeros(1, 1)], False)
    """
    if not isinstance(x, Iterable):
        raise TypeError(
            f"the sequence x is a {type(x).__name__}: it takes a tensor [T, B, ...], or any iterable of steps [B, ...]"
        )
    if not isinstance(per_step_target, bool):
        raise TypeError(
            f"per_step_target={per_step_target!r}: True where y has a target for every step, False where y is the "
            f"target of the whole sequence"
        )


def check_graph(loss: Tensor) -> None:
    """Raise RuntimeError for a loss without a graph, from which nothing can be learned.

    >>> check_graph(torch.ones(1, requires_grad=True).sum())
    """
    if not loss.requires_grad:
        raise RuntimeError(
            "the loss has no graph, so nothing can be learned from it: it was detached or computed outside torch, or "
            "every parameter is frozen; return what torch computed from the output, or call evaluate(x, y)"
        )


def frozen_norms(net: nn.Module) -> list[nn.Module]:
    """Return the normalisations inside blocks of `net` whose statistics stand still while the block learns.

    >>> frozen_norms(nn.Linear(1, 1))
    []
    """
    return [m.norm for m in net.modules() if isinstance(m, ETBlock) and m.norm is not None and is_frozen(m)]


def other_dtype(net: nn.Module, x: Tensor, error: RuntimeError) -> TypeError | None:
    """Return what to raise for an input of another dtype than the parameters, None where `error` means something else.

    >>> other_dtype(nn.Linear(1, 1), torch.ones(1), RuntimeError("dtype")) is None
    True
    """
    own = next((p.dtype for p in net.parameters()), x.dtype)
    if x.dtype == own or "dtype" not in str(error):
        return None
    other = f", or net.to({x.dtype})" if x.is_floating_point() else ""
    return TypeError(
        f"the input is {x.dtype} and the network's parameters are {own}: both must be one dtype; write "
        f"x.to({own}){other}"
    )


def thawed_norms(net: nn.Module, frozen: Sequence[nn.Module]) -> list[str]:
    """Return what to say of each normalisation among `frozen` that learns by the statistics of the step by now.

    >>> norm = nn.BatchNorm1d(2)
    >>> len(thawed_norms(nn.Sequential(norm), [norm])), len(thawed_norms(nn.Sequential(norm.eval()), [norm]))
    (1, 0)
    """
    return [
        f"{name} was frozen when the rule was attached, so the report calls its block exact, and is in train() now: "
        f"freeze it after net.train(), or attach the rule again for a report that holds"
        for name, module in net.named_modules()
        if module.training and any(module is norm for norm in frozen)
    ]


def check_reward(net: nn.Module, rule: LearningRule, y_t: Any) -> None:
    """Refuse a reward that nobody learns from, and one without a target."""
    if not any(isinstance(module, RewardSignal) for module in net.modules()):
        raise RuleChoiceError(
            f"a reward was given and no block under {rule.name} learns from one, so it would be lost; leave it out, or "
            f"attach RewardModulated() or another rule with signal='reward'"
        )
    if y_t is None:
        raise ValueError(
            "a reward was given without a target: a step learns where it has a loss, whose readout y_t is for; pass "
            "y_t too, for example the action that was taken"
        )


def require_gradients(method: str) -> None:
    """Raise RuntimeError inside no_grad() or inference_mode()."""
    if not torch.is_grad_enabled():
        raise RuntimeError(
            f"{method}() was called inside no_grad() or inference_mode(), where nothing can be learned; leave that "
            f"context, or call predict(x) or evaluate(x, y)"
        )


def refuse_non_finite(x: Tensor) -> None:
    """Raise NonFiniteError for an input with a NaN or an infinity."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return
    x = x.values() if x.layout is torch.sparse_csr else x
    if math.isfinite(x.sum()):
        return
    wrong = ~torch.isfinite(x)
    if bool(wrong.any()):  # else the sum overflowed
        raise NonFiniteError(
            f"the input has {int(wrong.sum())} non-finite value(s); a trace would keep them for ever, so nothing is "
            f"learned from it. Clean the data, for example with torch.nan_to_num"
        )


def check_update(update: Any, rule: LearningRule) -> None:
    """Raise ValueError or RuleChoiceError for an interval between updates that there is not, or not under `rule`."""
    whole = isinstance(update, int) and not isinstance(update, bool) and update >= 1
    if not (update == "sequence" or whole):
        raise ValueError(f"update={update!r}: write 'sequence', or the number of steps between updates, such as 1")
    if whole and rule.window is not None:
        if update % rule.window:
            raise RuleChoiceError(
                f"update={update} with {rule.name} and window={rule.window}: weights may change only where a window "
                f"ends; write a multiple of it, such as update={rule.window}, or update='sequence'"
            )
    elif whole and not rule.online:
        raise RuleChoiceError(
            f"update={update} with {rule.name}: its gradient is known only at the end of the sequence; write "
            f"update='sequence', or choose an online rule such as OTTT()"
        )


__all__ = [
    "add_signal_parameters",
    "check_graph",
    "check_reward",
    "check_sequence",
    "check_update",
    "frozen_norms",
    "other_dtype",
    "refuse_non_finite",
    "require_gradients",
    "thawed_norms",
]
