"""Learning on sequences and on streams: forward, trace, neuron backward, ET backward, step by step."""

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.engine.arguments import check_loss, check_optimizer
from snnlearn.engine.gathering import Gathering
from snnlearn.engine.losses import NO_TARGET, LossRun, StepLoss, taught
from snnlearn.engine.schedule import chosen_steps
from snnlearn.engine.sequence import (
    Meter,
    NonFiniteError,
    Prediction,
    SequenceResult,
    map_outputs,
    note_target,
    sequence_length,
    steps_of,
)
from snnlearn.engine.window import Window
from snnlearn.functional.arguments import is_number
from snnlearn.nn.block import ETBlock
from snnlearn.nn.signal import RewardSignal
from snnlearn.nn.signal_hub import as_reward, hubs_of
from snnlearn.nn.state import non_finite_state, reset, stashed_state
from snnlearn.rules.attach import check_types
from snnlearn.rules.axes import LearningRule, RuleChoiceError

log = logging.getLogger("snnlearn.engine")


class OnlineLearner:
    """Train `net` by `rule`, forward in time.

    `loss` a function of (step output, target) or a `SequenceLoss`; `optimizer` over the net's parameters.
    `update` "sequence" steps the optimizer at the end of each sequence, k after every k steps that had a loss;
    either way the gradient of an update is the mean over its steps' losses. On a stream, which has no end,
    "sequence" means every such step. A rule with a window updates where a window ends, so k is a multiple of it.
    `clip_norm` bounds the gradient's norm once per update. `report` says how each parameter learns. Raises
    RuleChoiceError for BPTT with update=k, TypeError for a loss or an optimizer that is none, ValueError for the rest.

    >>> from snnlearn import ETBlock, ETLinear, LI, OTTT
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> learner = OnlineLearner(net, OTTT(), nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    >>> learner.learn(torch.ones(5, 4, 3), torch.tensor([0, 1, 0, 1])).updates
    1
    """

    def __init__(
        self,
        net: nn.Module,
        rule: LearningRule,
        loss: StepLoss,
        optimizer: torch.optim.Optimizer,
        update: str | int = "sequence",
        clip_norm: float | None = None,
    ) -> None:
        check_types(net, rule)
        _check_update(update, rule)
        if clip_norm is not None and not (is_number(clip_norm) and clip_norm > 0):
            raise ValueError(f"clip_norm={clip_norm!r}: the bound on the gradient's norm is above 0; or leave it None")
        check_loss(loss)
        check_optimizer(net, optimizer)
        self.net, self.rule, self.loss, self.optimizer = net, rule, loss, optimizer
        self.update, self.clip_norm = update, clip_norm
        self.report = rule.attach(net)
        _add_signal_parameters(net, optimizer)
        self._pending = 0
        self._pending_loss: Tensor | None = None
        self._learned = False
        self._gathering, self._hubs = Gathering(net), hubs_of(net)
        self._run: LossRun | None = None
        self._window: Window | None = None
        self._warned: set[str] = set()
        self.gradient_norm = 0.0

    def learn(
        self, x: Iterable[Tensor], y: Any, per_step_target: bool = False, keep_state: bool = False
    ) -> SequenceResult:
        """Learn from one batch of sequences and return its figures.

        `x` [T, B, ...], or any iterable of [B, ...], which is streamed; `y` the target of every step, or with
        `per_step_target` one target per step, None for a step that teaches nothing, as does one whose labels are all
        `MISSING_LABEL` (-100). State starts afresh unless
        `keep_state`, which continues a longer sequence (under BPTT the gradient is cut at the seam). An empty batch
        changes nothing. Raises NonFiniteError, with state reset and no weight changed by the update it stops, when
        an input, loss, state or gradient is not finite.
        """
        _require_gradients("learn")
        if not keep_state:
            self._run = None
            reset(self.net)
        self._drop_pending()
        run, updates = self._run_for(sequence_length(x)), 0
        chosen = chosen_steps(self.rule, x)
        self._gathering, self._hubs = Gathering(self.net), hubs_of(self.net)
        with self._failing_clean(), Meter(self.net, per_step_target) as meter:
            if isinstance(x, Tensor):
                _refuse_non_finite(x)
            for x_t, target in steps_of(x, y, per_step_target):
                if not isinstance(x, Tensor):
                    _refuse_non_finite(x_t)
                learns = next(chosen)
                output, loss = self._forward(x_t, target, run)
                meter.batch_size = x_t.shape[0]
                meter.add(output, target, loss)
                if loss is not None:
                    self._pending, self._pending_loss = self._pending + 1, meter.loss
                    if learns:
                        self._learned = True
                        if self._window is None:
                            with self._gathering:
                                loss.backward()
                if self._may_update(loss) and isinstance(self.update, int) and self._pending >= self.update:
                    updates += self._apply()
            if self._window is not None:
                self._window.close()
            if self._pending:
                updates += self._apply()
            else:
                self._refuse_non_finite_state()
        return meter.result(gradient_norm=self.gradient_norm, updates=updates, trace_norms=self._trace_norms())

    def step(self, x_t: Tensor, y_t: Any = None, reward: Tensor | float | None = None) -> Any:
        """Take one step of a stream and return the output [B, ...]; learn where a target `y_t` is given.

        `x_t` [B, ...]; `reward` one number per sample [B], or one for all, for a rule that learns from it. State runs
        on until `reset`. Raises RuleChoiceError under BPTT, which has to see the end (truncated BPTT learns where a
        window ends), for a rule that learns from the last or from random steps of a sequence, and for a reward where no
        block learns from one; ValueError for a reward without a target.
        """
        if not self.rule.online and self.rule.window is None:
            raise RuleChoiceError(
                f"step() under {self.rule.name}: a stream has no end to backpropagate from; attach OTTT() or SLTT(), "
                f"or TruncatedBPTT() to learn window by window, or call learn(x, y) on whole sequences"
            )
        _require_gradients("step")
        if reward is not None:
            _check_reward(self.net, self.rule, y_t)
        learns = next(chosen_steps(self.rule, None))
        run = self._run_for(None)
        with self._failing_clean():
            _refuse_non_finite(x_t)
            for hub in self._hubs:
                hub.reward = None if reward is None else as_reward(reward)
            output, loss = self._forward(x_t, NO_TARGET if y_t is None else taught(y_t), run)
            if loss is not None:
                if learns:
                    self._learned = True
                if learns and self._window is None:
                    loss.backward()
                self._pending += 1
                self._pending_loss = loss.detach() if self._pending_loss is None else self._pending_loss + loss.detach()
            if self._may_update(loss) and self._pending >= (self.update if isinstance(self.update, int) else 1):
                self._apply()
        return map_outputs(lambda t: t.detach(), output)

    def update_now(self) -> bool:
        """Apply the gradient gathered since the last update; return whether there was any."""
        with self._failing_clean():
            if self._window is not None:
                self._window.close()
            return bool(self._apply()) if self._pending else False

    def predict(self, x: Iterable[Tensor]) -> Prediction:
        """Return outputs for sequences x [T, B, ...], in eval() and from fresh state; a running stream goes on."""
        with self._apart(), Meter(self.net) as meter:
            for x_t, _ in steps_of(x, None, False):
                meter.add(self.net(x_t), None, None)
        result = meter.result()
        return Prediction(result.output, result.last_output, result.steps)

    def evaluate(self, x: Iterable[Tensor], y: Any, per_step_target: bool = False) -> SequenceResult:
        """Return `learn`'s figures without learning, in eval() and from fresh state; a running stream goes on."""
        with self._apart(), Meter(self.net, per_step_target) as meter:
            run = LossRun(self.loss, sequence_length(x), False)
            for x_t, target in steps_of(x, y, per_step_target):
                _refuse_non_finite(x_t)
                output, loss = self._forward(x_t, target, run)
                meter.batch_size = x_t.shape[0]
                meter.add(output, target, loss)
        return meter.result()

    def reset(self, rows: Tensor | None = None) -> None:
        """Start afresh: the whole batch, or in mid-stream the rows where `rows` [B] is true."""
        if self._window is not None and rows is None:
            self._window.close()
        reset(self.net, rows)
        if self._run is not None:
            self._run.reset(rows)

    def _run_for(self, steps: int | None) -> LossRun:
        if self._run is None:
            self._run = LossRun(self.loss, steps, not self.rule.online)
            self._window = None if self.rule.online else Window(self.net, self._run, self.rule.window)
        else:
            self._run.extend(steps)
        return self._run

    def _may_update(self, loss: Tensor | None) -> bool:
        """Whether weights may change after this step: always, or only where a window of steps ends with it."""
        return self._window is None or self._window.add(loss)

    def _forward(self, x_t: Tensor, target: Any, run: LossRun) -> tuple[Any, Tensor | None]:
        if not isinstance(x_t, Tensor):
            raise TypeError(
                f"one step of the input is a {type(x_t).__name__}: pass tensors; write "
                f"torch.as_tensor(x, dtype=torch.float32)"
            )
        for hub in self._hubs:
            hub.target = target if isinstance(target, Tensor) else None
        output = self._output(x_t)
        if x_t.shape[0] == 0:
            self._warn_once("an empty batch (B = 0) was met; it changes no weight")
            return output, None
        try:
            return output, run.step(output, target)
        except (RuntimeError, ValueError, IndexError) as error:
            note_target(error, output, target)
            raise

    def _output(self, x_t: Tensor) -> Any:
        try:
            return self.net(x_t)
        except RuntimeError as error:
            own = next((p.dtype for p in self.net.parameters()), x_t.dtype)
            if x_t.dtype == own or "dtype" not in str(error):
                raise
            other = f", or net.to({x_t.dtype})" if x_t.is_floating_point() else ""
            raise TypeError(
                f"the input is {x_t.dtype} and the network's parameters are {own}: both must be one dtype; write "
                f"x.to({own}){other}"
            ) from error

    def _apply(self) -> int:
        """Scale to the mean, check, clip, step: the one place where weights change; return the number of updates."""
        if not self._learned:
            self._drop_pending()
            return 0
        self._gathering.hand_over()
        parameters = self._parameters()
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self._pending > 1 and gradients:
            torch._foreach_div_(gradients, float(self._pending))
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        self.gradient_norm = float(norm)
        loss = torch.zeros_like(norm) if self._pending_loss is None else self._pending_loss.to(norm.device)
        if not bool(torch.isfinite(norm) & torch.isfinite(loss)):
            raise NonFiniteError(
                f"this update has a summed loss of {float(loss)} and a gradient of norm {self.gradient_norm}; it "
                f"changes no weight. Look for an infinite loss, lower the learning rate, or set clip_norm (which "
                f"cannot mend a NaN)"
            )
        self._refuse_non_finite_state()
        if self.clip_norm is not None and gradients:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, norm)
        self._check_coverage()
        self.optimizer.step()
        self._drop_pending()
        return 1

    def _refuse_non_finite_state(self) -> None:
        """Raise when a NaN or an infinity, from the input or from an overflow, sits in a state or a trace."""
        names = non_finite_state(self.net)
        if names:
            raise NonFiniteError(
                f"the state of {', '.join(name or 'the network' for name in names)} holds a non-finite value, which a "
                f"membrane or a trace would keep for ever; this update changes no weight. Clean the input, for example "
                f"with torch.nan_to_num, or lower the learning rate if the weights have grown"
            )

    def _parameters(self) -> list[Tensor]:
        """Return the parameters of the network and of the optimizer (a loss may have its own), each once."""
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        return list({id(p): p for p in (*self.net.parameters(), *held)}.values())

    def _drop_pending(self) -> None:
        self._pending, self._pending_loss, self._learned = 0, None, False
        self._gathering.drop()
        if self._window is not None:
            self._window.drop()
        self.optimizer.zero_grad(set_to_none=True)
        self.net.zero_grad(set_to_none=True)

    def _check_coverage(self) -> None:
        known = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missed = [name for name, p in self.net.named_parameters() if p.grad is not None and id(p) not in known]
        if missed:
            self._warn_once(
                f"the optimizer does not hold {missed}, which got a gradient (replaced after it was built?); build the "
                f"optimizer anew, or freeze them with requires_grad_(False)"
            )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message)

    def _trace_norms(self) -> dict[str, float]:
        return {
            name or "block": module.connection.trace.norm()
            for name, module in self.net.named_modules()
            if isinstance(module, ETBlock) and module.connection.trace is not None
        }

    @contextmanager
    def _failing_clean(self) -> Iterator[None]:
        """Leave no half-made gradient and no poisoned state behind a failed step."""
        try:
            yield
        except BaseException:
            self._drop_pending()
            self.reset()
            raise

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Run in eval() without gradients on fresh state; put modes and state back."""
        modes = {module: module.training for module in self.net.modules()}
        try:
            with stashed_state(self.net), torch.no_grad():
                self.net.eval()
                yield
        finally:
            for module, training in modes.items():
                module.training = training


def _add_signal_parameters(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer the parameters that the rule itself brought: a learned broadcast, the readouts of blocks."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    signals = [m.signal for m in net.modules() if isinstance(m, ETBlock) and m.signal is not None]
    brought = [p for signal in signals for p in signal.parameters() if id(p) not in held]
    if brought:
        optimizer.add_param_group({"params": brought})


def _check_reward(net: nn.Module, rule: LearningRule, y_t: Any) -> None:
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


def _require_gradients(method: str) -> None:
    if not torch.is_grad_enabled():
        raise RuntimeError(
            f"{method}() was called inside no_grad() or inference_mode(), where nothing can be learned; leave that "
            f"context, or call predict(x) or evaluate(x, y)"
        )


def _refuse_non_finite(x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or math.isfinite(x.sum()):
        return
    wrong = ~torch.isfinite(x)
    if bool(wrong.any()):  # else the sum overflowed
        raise NonFiniteError(
            f"the input has {int(wrong.sum())} non-finite value(s); a trace would keep them for ever, so nothing is "
            f"learned from it. Clean the data, for example with torch.nan_to_num"
        )


def _check_update(update: Any, rule: LearningRule) -> None:
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


__all__ = ["OnlineLearner"]
