"""Learning whose steps are captured once and replayed: on a GPU a CUDA graph, without Python between the operations.

Four graphs share the memory of the network: the first chunk of a sequence, a later one (forward, traces, backward), the
measure of the gradients, and the update. State, traces, gradients, input and target lie in buffers that stay where they
are; each graph reads them and leaves them as the next one needs them. The numbers are those of `OnlineLearner.learn`.

What the host has to see is looked at between the graphs: the input once per sequence, and once per update one small
tensor for gradients, loss and state together; then the figures at the end. Nothing else waits for the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from snnlearn.engine.capture import Capture, CaptureError, CudaCapture
from snnlearn.engine.checks import check_graph, refuse_non_finite, require_gradients
from snnlearn.engine.chunked import Piece, run_piece
from snnlearn.engine.graph_refusals import optimizer_reasons, why_not_captured
from snnlearn.engine.learner import OnlineLearner
from snnlearn.engine.losses import LossRun
from snnlearn.engine.sequence import Meter, NonFiniteError, SequenceResult, map_outputs
from snnlearn.engine.static_state import StaticState
from snnlearn.functional.precision import product_dtype
from snnlearn.nn.signal_hub import hubs_of
from snnlearn.nn.state import non_finite_state, reset


class GraphedLearner:
    """`learner.learn` for sequences shaped like `x`, captured and replayed.

    `x` [T, B, ...] and `y` an example of both, whose numbers do not matter; T may differ later, in multiples of the
    learner's chunk. `capture` a `CudaCapture` unless given. Capturing changes neither weights nor statistics nor random
    numbers; a sequence that was running ends. Learn in the mode and the precision of this call; a changed learning rate
    captures the update anew. Raises CaptureError for what cannot be captured, and without a CUDA device.

    >>> from snnlearn import ETBlock, ETLinear, LI, OTTT
    >>> from snnlearn.engine.capture import TapeCapture
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> learner = OnlineLearner(net, OTTT(), torch.nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), 0.1))
    >>> x, y = torch.ones(5, 4, 3), torch.tensor([0, 1, 0, 1])
    >>> GraphedLearner(learner, x, y, TapeCapture()).learn(x, y).updates
    1
    """

    def __init__(self, learner: OnlineLearner, x: Tensor, y: Tensor, capture: Capture | None = None) -> None:
        self.learner, self.capture = learner, CudaCapture() if capture is None else capture
        device = next(learner.net.parameters()).device
        self.capture.refuse(device)
        capturable = self.capture.needs_capturable(device)
        reasons = [*why_not_captured(learner, x, y), *optimizer_reasons(learner.optimizer, capturable)]
        if reasons:
            raise CaptureError("this cannot be captured:\n  " + "\n  ".join(reasons))
        require_gradients("GraphedLearner")
        self._x = x[: learner.chunk].flatten(0, 1).to(device, copy=True)
        self._y = y.detach().to(device, copy=True)
        self._run, self._hubs = LossRun(learner.loss, None, False), hubs_of(learner.net)
        self._state = StaticState(learner.net)
        self._sums: dict[str, Any] = {}
        self._chances: dict[str, int] = {}
        self._grads: list[tuple[Tensor, Tensor]] = []
        self._count = torch.ones((), device=device)
        self._figures = torch.zeros(3, dtype=torch.float64, device=device)
        learner._drop_pending()
        with unchanged(learner):
            self._warm_up()
            self._start, self._go_on = self.capture.capture(self._first), self.capture.capture(self._later)
            self._measure, self._update = self.capture.capture(self._weigh), self.capture.capture(self._step)
        self._captured, self._options = self._surroundings(), _options(learner.optimizer)
        self._leave()
        reset(learner.net)

    def learn(self, x: Tensor, y: Tensor, keep_state: bool = False) -> SequenceResult:
        """Learn from one batch of sequences and return its figures, as `OnlineLearner.learn`, norms of traces left out.

        `x` [T, B, ...] and `y` shaped as the example was, T a multiple of the chunk. Raises NonFiniteError as that
        does, CaptureError where the network, its optimizer, its mode or its precision are not what was captured.
        """
        require_gradients("learn")
        learner, chunk = self.learner, self.learner.chunk
        self._check(x, y)
        updates = pending = 0
        learner._run = None
        learner._drop_pending()
        try:
            refuse_non_finite(x)
            goes_on = keep_state and self._state.is_running()
            if goes_on:
                self._state.take()
            map_outputs(Tensor.zero_, self._sums)
            for weight, grad in self._grads:
                weight.grad = grad.zero_()
            self._y.copy_(y)
            for end in range(chunk, len(x) + 1, chunk):
                self._x.copy_(x[end - chunk : end].flatten(0, 1))
                (self._go_on if goes_on or end > chunk else self._start)()
                pending += chunk
                if pending == learner.update or end == len(x):
                    self._apply(pending)
                    updates, pending = updates + 1, 0
        except BaseException:
            learner._drop_pending()
            reset(learner.net)
            raise
        self._leave()
        return self._result(len(x), x.shape[1], updates)

    def _warm_up(self) -> None:
        """Run everything once: that makes the buffers, the optimizer's state and what is made once per device."""
        for run in (self._first, self._later):
            self.capture.warm_up(run)
        self._grads = [(p, torch.zeros_like(p)) for p in self.learner._parameters() if p.grad is not None]
        for weight, grad in self._grads:
            weight.grad = grad
        for run in (self._first, self._later, self._weigh, self._step):
            self.capture.warm_up(run)

    def _first(self) -> None:
        reset(self.learner.net)
        self._chunk()

    def _later(self) -> None:
        self._state.bind()
        self._chunk()

    def _chunk(self) -> None:
        """Run a chunk forward and backward; state and figures go into their buffers."""
        net, steps = self.learner.net, self.learner.chunk
        torch.clear_autocast_cache()  # what it holds was rounded outside this graph
        for hub in self._hubs:
            hub.learning, hub.target = [True] * steps, self._y
        total: Tensor | None = None
        with Meter(net) as meter:
            piece = Piece(self._x, [self._y] * steps, None)
            for output in run_piece(net, net, self._hubs, piece) if steps > 1 else [net(self._x)]:
                loss = self._run.step(output, self._y)
                assert loss is not None
                meter.add(output, self._y, loss)
                total = loss if total is None else total + loss
        assert total is not None
        check_graph(total)
        total.backward()
        torch.clear_autocast_cache()
        figures = {"loss": meter.loss, "total": meter.total, "last": meter.last, "spikes": meter.spikes}
        if not self._sums:
            self._sums, self._chances = map_outputs(torch.clone, figures), meter.chances
        map_outputs(Tensor.add_, self._sums, figures)
        map_outputs(Tensor.copy_, self._sums["last"], meter.last)
        self._state.take()

    def _weigh(self) -> None:
        """Make the gradients those of the mean loss, clip them, and note their norm, the loss and the state's sum."""
        grads = [grad for _, grad in self._grads]
        torch._foreach_div_(grads, self._count)
        norm = torch.nn.utils.get_total_norm(grads)
        state = [t.sum(dtype=torch.float64) for t in self._state.tensors() if t.is_floating_point()]
        for place, figure in enumerate((norm, self._sums["loss"], torch.stack(state).sum())):
            self._figures[place].copy_(figure)
        if self.learner.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_([p for p, _ in self._grads], self.learner.clip_norm, norm)

    def _step(self) -> None:
        """Step the optimizer, and begin the next sum of gradients."""
        self.learner.optimizer.step()
        torch._foreach_zero_([grad for _, grad in self._grads])

    def _apply(self, count: int) -> None:
        """Update by the mean of `count` steps, after one look at what must be finite."""
        self._count.fill_(count)
        self._measure()
        norm, loss, state = self._figures.tolist()
        self.learner.gradient_norm = norm
        if not (_is_finite(norm) and _is_finite(loss)):
            raise NonFiniteError(
                f"the losses of this sequence sum to {loss} and the gradient of this update has norm {norm}; it "
                f"changes no weight. Look for an infinite loss, lower the learning rate, or set clip_norm (which "
                f"cannot mend a NaN)"
            )
        if not _is_finite(state):
            self._state.bind()
            if non_finite_state(self.learner.net):  # else the sum overflowed
                self.learner._refuse_non_finite_state()
        if _options(self.learner.optimizer) != self._options:
            self._capture_update()
        self._update()

    def _capture_update(self) -> None:
        """Capture the update with the optimizer's present options."""
        grads = [grad for _, grad in self._grads]
        kept = [grad.clone() for grad in grads]
        with unchanged(self.learner):
            self._update = self.capture.capture(self._step)
        torch._foreach_copy_(grads, kept)
        self._options = _options(self.learner.optimizer)

    def _leave(self) -> None:
        """Give the network the state in the buffers, and no gradient."""
        self._state.bind()
        self.learner._drop_pending()

    def _result(self, steps: int, batch: int, updates: int) -> SequenceResult:
        meter, sums = Meter(self.learner.net), self._sums
        meter.steps = meter.counted = steps
        meter.batch_size, meter.target = batch, self._y
        meter.loss, meter.total, meter.last = sums["loss"], sums["total"], map_outputs(torch.clone, sums["last"])
        meter.spikes = sums["spikes"]
        meter.chances = {name: number * (steps // self.learner.chunk) for name, number in self._chances.items()}
        return meter.result(gradient_norm=self.learner.gradient_norm, updates=updates)

    def _surroundings(self) -> dict[str, Any]:
        """Return what the graphs took as it was: it has to be so whenever they are replayed."""
        net = self.learner.net
        return {
            "a parameter or a buffer lies elsewhere": [t.data_ptr() for t in (*net.parameters(), *net.buffers())],
            "another part of the network is in train() or eval()": [module.training for module in net.modules()],
            "a rule was attached or a module replaced": [id(module) for module in net.modules()],
            "which parameters learn has changed": [p.requires_grad for p in net.parameters()],
            "autocast is another": product_dtype(next(net.parameters())),
            "loss, update, chunk or clip_norm is another": (
                id(self.learner.loss),
                self.learner.update,
                self.learner.chunk,
                self.learner.clip_norm,
            ),
        }

    def _check(self, x: Tensor, y: Tensor) -> None:
        now = self._surroundings()
        changed = [what for what, value in self._captured.items() if now[what] != value]
        if changed:
            raise CaptureError(
                f"since the graph was captured, {'; '.join(changed)}: it would go on as before; put that back, or "
                f"build GraphedLearner(learner, x, y) anew"
            )
        reasons = why_not_captured(self.learner, x, y)
        one = (self._x.shape[0] // self.learner.chunk, *self._x.shape[1:])
        for name, got, kept in (("x", x, one), ("y", y, tuple(self._y.shape))):
            shape = tuple(got.shape[1:] if name == "x" else got.shape) if isinstance(got, Tensor) else None
            dtype = (self._x if name == "x" else self._y).dtype
            if isinstance(got, Tensor) and (shape != kept or got.dtype != dtype):
                reasons.append(f"{name} is {list(got.shape)} {got.dtype}, the example {list(kept)} {dtype} per step")
        if reasons:
            raise CaptureError("this is not what was captured:\n  " + "\n  ".join(reasons))


@contextmanager
def unchanged(learner: OnlineLearner) -> Iterator[None]:
    """Put weights, buffers, the optimizer's state and random numbers back as they were when the context ends.

    State that the optimizer makes within it is set to zero, where that of `graph_refusals.OPTIMIZERS` begins.

    >>> from snnlearn import ETBlock, ETLinear, LI, OTTT
    >>> net = ETBlock(ETLinear(1, 1), LI())
    >>> learner = OnlineLearner(net, OTTT(), torch.nn.functional.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1))
    >>> with unchanged(learner), torch.no_grad():
    ...     _ = net.connection.weight.fill_(7.0)
    >>> bool((net.connection.weight == 7.0).any())
    False
    """
    held = [*learner._parameters(), *learner.net.buffers()]
    before = [t.detach().clone() for t in held]
    state = {id(t): t.clone() for t in _optimizer_state(learner.optimizer)}
    devices = sorted({t.device.index or 0 for t in held if t.is_cuda})
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(held, before, strict=True):
                tensor.copy_(value)
            for tensor in _optimizer_state(learner.optimizer):
                _ = tensor.copy_(state[id(tensor)]) if id(tensor) in state else tensor.zero_()


def _optimizer_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of every group; a tensor counts as itself, since a graph reads what is in it."""
    return [
        {name: id(value) if isinstance(value, Tensor) else value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _is_finite(number: float) -> bool:
    return number - number == 0.0


__all__ = ["GraphedLearner", "unchanged"]
