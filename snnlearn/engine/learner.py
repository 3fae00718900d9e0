"""Learning on sequences and on streams: forward, trace, neuron backward, ET backward, step by step."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.engine.arguments import check_loss, check_optimizer
from snnlearn.engine.auto_chunk import chosen_on_batch
from snnlearn.engine.checks import (
    add_signal_parameters,
    check_graph,
    check_reward,
    check_sequence,
    check_update,
    frozen_norms,
    other_dtype,
    refuse_non_finite,
    require_gradients,
    thawed_norms,
)
from snnlearn.engine.chunked import (
    Piece,
    check_chunk,
    covered,
    pieces_of,
    refuse_other_than_tensors,
    refuse_unfoldable,
    run_piece,
)
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
)
from snnlearn.engine.trace_norms import TraceNorms
from snnlearn.engine.window import Window
from snnlearn.functional.arguments import is_number
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
    `chunk` K steps run at once, with the same numbers (`snnlearn.functional.chunk`): k is a multiple of it, torch's
    layers that mix rows are refused, yours may not; "auto" chooses K on the first batch (`snnlearn.engine.auto_chunk`).
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
        chunk: int | str = 1,
    ) -> None:
        check_types(net, rule)
        check_update(update, rule)
        if clip_norm is not None and not (is_number(clip_norm) and clip_norm > 0):
            raise ValueError(f"clip_norm={clip_norm!r}: the bound on the gradient's norm is above 0; or leave it None")
        check_loss(loss)
        check_optimizer(net, optimizer)
        self.net, self.rule, self.loss, self.optimizer = net, rule, loss, optimizer
        self.update, self.clip_norm = update, clip_norm
        self.is_auto = self.chooses_chunk = chunk == "auto"
        self.chunk = 1 if self.chooses_chunk else check_chunk(chunk, update, rule)
        self.report = rule.attach(net, None if self.chooses_chunk else self.chunk)
        self._frozen = frozen_norms(net)
        add_signal_parameters(net, optimizer)
        self._pending, self._learned = 0, False
        self._pending_loss: Tensor | None = None
        self._gathering, self._hubs = Gathering(net), hubs_of(net)
        self._run: LossRun | None = None
        self._window: Window | None = None
        self._warned: set[str] = set()
        self.gradient_norm = 0.0

    def learn(
        self,
        x: Iterable[Tensor],
        y: Any,
        per_step_target: bool = False,
        keep_state: bool = False,
        restarts: Tensor | None = None,
    ) -> SequenceResult:
        """Learn from one batch of sequences and return its figures.

        `x` [T, B, ...], or any iterable of [B, ...], which is streamed; `y` the target of every step, or with
        `per_step_target` one target per step, None for a step that teaches nothing, as does one whose labels are all
        `MISSING_LABEL` (-100). State starts afresh unless `keep_state`, which continues a longer sequence (under BPTT
        the gradient is cut at the seam). `restarts` [T, B] is true where a row begins another sequence before a step,
        as where sequences are packed. An empty batch changes nothing. Raises NonFiniteError, with state reset and no
        weight changed by the update it stops, when an input, loss, state or gradient is not finite.
        """
        require_gradients("learn")
        check_sequence(x, per_step_target)
        for message in thawed_norms(self.net, self._frozen):
            self._warn_once(message)
        if self.chooses_chunk:
            with self._failing_clean():
                self.chunk, self.chooses_chunk, x, y = chosen_on_batch(self, x, y, per_step_target)
        x = covered(self.net, x, self.chunk)
        if not keep_state:
            self._run = None
            reset(self.net)
        self._drop_pending()
        self._gathering, self._hubs = Gathering(self.net), hubs_of(self.net)
        run, updates, chosen = self._run_for(sequence_length(x)), 0, chosen_steps(self.rule, x)
        with self._failing_clean(), Meter(self.net, per_step_target) as meter:
            if isinstance(x, Tensor):
                refuse_non_finite(x)
            for piece in self._pieces(x, y, per_step_target, restarts):
                if not isinstance(x, Tensor):
                    refuse_non_finite(piece.x)
                loss = self._learn_piece(piece, run, meter, chosen)
                if self._may_update(loss) and isinstance(self.update, int) and self._pending >= self.update:
                    updates += self._apply()
            if self._window is not None:
                self._window.close()
            if self._pending:
                updates += self._apply()
            else:
                self._refuse_non_finite_state()
            if meter.loss is None and meter.batch_size:
                self._warn_once("a sequence without a single target was met; it changes no weight")
        return meter.result(gradient_norm=self.gradient_norm, updates=updates, trace_norms=TraceNorms(self.net))

    def _pieces(self, x: Iterable[Tensor], y: Any, per_step_target: bool, restarts: Tensor | None) -> Iterator[Piece]:
        if self.chunk > 1:
            refuse_unfoldable(self.net)
        due = self.update if isinstance(self.update, int) else None
        left = (lambda: None) if due is None else (lambda: due - self._pending)
        return pieces_of(x, y, per_step_target, restarts, self.chunk, left)

    def _learn_piece(self, piece: Piece, run: LossRun, meter: Meter, chosen: Iterator[bool]) -> Tensor | None:
        """Run a piece forward, and backward from the losses of those of its steps that learn; return their sum."""
        loss: Tensor | None = None
        teaching: Tensor | None = None
        learning, learned = [next(chosen) for _ in range(piece.steps)], [False] * piece.steps
        for t, (output, target, loss_t) in enumerate(self._steps_of_piece(piece, run)):
            meter.batch_size = piece.x.shape[0] // piece.steps
            meter.add(output, target, loss_t)
            if loss_t is None:
                continue
            loss = loss_t if loss is None else loss + loss_t
            self._pending, self._pending_loss = self._pending + 1, meter.loss
            if learning[t]:
                self._learned = True
                teaching = loss_t if teaching is None else teaching + loss_t
                learned[t] = True
        if teaching is not None and self._window is None:
            check_graph(teaching)
            for hub in self._hubs:
                hub.learning = learned
            with self._gathering:
                teaching.backward()
        return loss

    def _steps_of_piece(self, piece: Piece, run: LossRun) -> Iterator[tuple[Any, Any, Tensor | None]]:
        """Yield output, target and loss of every step of a piece."""
        if piece.steps == 1:
            if piece.restarts is not None:
                reset(self.net, piece.restarts[0])
                run.reset(piece.restarts[0])
            output, loss = self._forward(piece.x, piece.targets[0], run)
            yield output, piece.targets[0], loss
            return
        for t, output in enumerate(run_piece(self._output, self.net, self._hubs, piece)):
            if piece.restarts is not None and bool(piece.restarts[t].any()):
                run.reset(piece.restarts[t])
            yield output, piece.targets[t], self._loss(output, piece.targets[t], run, piece.x.shape[0] == 0)

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
        require_gradients("step")
        if reward is not None:
            check_reward(self.net, self.rule, y_t)
        learns = next(chosen_steps(self.rule, None))
        run = self._run_for(None)
        with self._failing_clean():
            refuse_non_finite(x_t)
            for hub in self._hubs:
                hub.reward = None if reward is None else as_reward(reward)
            output, loss = self._forward(x_t, NO_TARGET if y_t is None else taught(y_t), run)
            if loss is not None:
                self._learned = self._learned or learns
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
        check_sequence(x, False)
        with self._apart(), Meter(self.net) as meter:
            run = LossRun(self.loss, None, False)
            for piece in self._pieces(x, NO_TARGET, False, None):
                for output, _, _ in self._steps_of_piece(piece, run):
                    meter.add(output, None, None)
        result = meter.result()
        return Prediction(result.output, result.last_output, result.steps)

    def evaluate(self, x: Iterable[Tensor], y: Any, per_step_target: bool = False) -> SequenceResult:
        """Return `learn`'s figures without learning, in eval() and from fresh state; a running stream goes on."""
        check_sequence(x, per_step_target)
        with self._apart(), Meter(self.net, per_step_target) as meter:
            run = LossRun(self.loss, sequence_length(x), False)
            for piece in self._pieces(x, y, per_step_target, None):
                refuse_non_finite(piece.x)
                meter.batch_size = piece.x.shape[0] // piece.steps
                for output, target, loss in self._steps_of_piece(piece, run):
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
        refuse_other_than_tensors([x_t])
        for hub in self._hubs:
            hub.target = target if isinstance(target, Tensor) else None
        output = self._output(x_t)
        return output, self._loss(output, target, run, x_t.shape[0] == 0)

    def _loss(self, output: Any, target: Any, run: LossRun, empty: bool) -> Tensor | None:
        if empty:
            self._warn_once("an empty batch (B = 0) was met; it changes no weight")
            return None
        try:
            return run.step(output, target)
        except (RuntimeError, ValueError, IndexError) as error:
            note_target(error, output, target)
            raise

    def _output(self, x_t: Tensor) -> Any:
        try:
            return self.net(x_t)
        except RuntimeError as error:
            explained = other_dtype(self.net, x_t, error)
            if explained is None:
                raise
            raise explained from error

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
        torch.clear_autocast_cache()  # of the weights as they were, rounded

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
            torch.clear_autocast_cache()  # of weights without a graph
            for module, training in modes.items():
                module.training = training


__all__ = ["OnlineLearner"]
