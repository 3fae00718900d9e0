"""What `snnlearn.engine.graphed` cannot capture, and why: everything that Python decides anew at a step."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.parallel import DistributedDataParallel

from snnlearn.engine.chunked import refuse_unfoldable
from snnlearn.engine.layout import turn_gradient
from snnlearn.engine.learner import OnlineLearner
from snnlearn.engine.losses import NO_TARGET, SequenceLoss, taught
from snnlearn.functional.sparse_map import is_sparse
from snnlearn.nn.block import ETBlock
from snnlearn.nn.clocked_trace import ClockedTrace
from snnlearn.nn.signal import NoiseSignal
from snnlearn.nn.signal_hub import Signal, SignalHub

OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose state is known to begin at zero, so that it can be made before the first step."""


def why_not_captured(learner: OnlineLearner, x: object, y: object) -> list[str]:
    """Return every reason why `learner` cannot learn from x [T, B, ...] and y by a graph; none where it can.

    >>> from snnlearn import ETBlock, ETLinear, LI, OTTT
    >>> net = ETBlock(ETLinear(1, 1), LI())
    >>> learner = OnlineLearner(net, OTTT(), nn.functional.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1))
    >>> why_not_captured(learner, torch.ones(2, 1, 1), torch.ones(1, 1))
    []
    """
    reasons = [*_of_input(x, y, learner.chunk), *_of_rule(learner), *_of_network(learner.net)]
    loss = learner.loss
    if isinstance(loss, SequenceLoss) and (loss.readout != "step" or loss.last_steps is not None):
        reasons.append("a SequenceLoss that counts steps: write readout='step' and last_steps=None")
    if learner.chunk > 1:
        refuse_unfoldable(learner.net)
    return reasons


def _of_input(x: object, y: object, chunk: int) -> list[str]:
    reasons = []
    if not isinstance(x, Tensor):
        reasons.append(f"x is a {type(x).__name__}: a stream, or sparse events; pass a tensor [T, B, ...]")
    elif is_sparse(x):
        reasons.append("x is sparse: how many events there are differs from step to step; pass x.to_dense()")
    elif len(x) == 0 or len(x) % chunk:
        reasons.append(f"x has {len(x)} steps: graphs run {chunk} at once; pass a multiple, or choose another chunk")
    elif x.shape[1] == 0:
        reasons.append("x is an empty batch: there is nothing to learn from it")
    if not isinstance(y, Tensor):
        reasons.append(f"y is a {type(y).__name__}: a graph reads one tensor for all steps of the sequence")
    elif taught(y) is NO_TARGET:
        reasons.append("y has no label: which steps learn is decided in Python")
    return reasons


def _of_rule(learner: OnlineLearner) -> list[str]:
    rule, reasons = learner.rule, []
    if learner.chooses_chunk:
        reasons.append("chunk='auto' has not chosen yet: learn one sequence first, or give the number")
    if not rule.online:
        reasons.append(f"{rule.name} keeps its graph of autograd from step to step: choose an online rule")
    if rule.learn_on != "all":
        reasons.append(f"learn_on={rule.learn_on!r}: which steps learn is decided in Python at every sequence")
    for name, module in learner.net.named_modules():
        if isinstance(module, Signal) and (module.reads or isinstance(module, NoiseSignal)):
            kind = type(module).__name__
            reasons.append(f"{name} is a {kind}: it looks at numbers of its target, or draws noise on the host")
        if isinstance(module, ClockedTrace) and module.followed:
            reasons.append(f"{name} follows a learned leak, which Python reads after each update: attach DRTRL()")
    return reasons


def _of_network(net: nn.Module) -> list[str]:
    reasons = []
    if _has_any_global_hook():
        reasons.append("a hook on all modules: it would be called once, when capturing, and never again")
    for name, module in net.named_modules():
        if isinstance(module, DistributedDataParallel):
            reasons.append(f"{name or 'the network'} is DistributedDataParallel: its reductions are not captured here")
        if isinstance(module, ETBlock) and module.listener is not None:
            reasons.append(f"{name or 'the block'} has a listener (record_phases): it would hear nothing")
        if any(not _is_own(hook) for hook in _hooks(module)):
            reasons.append(f"{name or 'the network'} has a hook: it would be called once, when capturing, never again")
    reasons += [f"{name} has a hook, as above" for name, p in net.named_parameters() if _parameter_hooks(p)]
    return reasons


def _is_own(hook: Any) -> bool:
    """Whether a hook is the library's, which does what a replay does too."""
    return hook is turn_gradient or isinstance(getattr(hook, "__self__", None), SignalHub)


def _hooks(module: nn.Module) -> list[Any]:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return [hook for kind in kinds for hook in kind.values()]


def _parameter_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def optimizer_reasons(optimizer: torch.optim.Optimizer, capturable: bool) -> list[str]:
    """Return every reason why the optimizer's step cannot be captured; `capturable` whether it has to say it can.

    >>> optimizer_reasons(torch.optim.Adam([torch.zeros(1)]), capturable=True)
    ['Adam without capturable=True counts its steps on the host: write Adam(..., capturable=True)']
    """
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if type(optimizer) not in OPTIMIZERS:
        known = ", ".join(kind.__name__ for kind in OPTIMIZERS)
        return [f"{name} begins with a state that is not known here: choose one of {known}"]
    reasons = []
    if capturable and not all(group.get("capturable", True) for group in groups):
        reasons.append(
            f"{name} without capturable=True counts its steps on the host: write {name}(..., capturable=True)"
        )
    if not optimizer.state and any(group.get("momentum") and group.get("dampening") for group in groups):
        reasons.append(
            "SGD with dampening takes its first gradient undampened: learn one sequence first, or leave it 0"
        )
    return reasons


__all__ = ["OPTIMIZERS", "optimizer_reasons", "why_not_captured"]
