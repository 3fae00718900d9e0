"""The block of online learning: a connection with weights and the neuron it drives.

The trace lives here, at the consumer, keyed by the leak of the neuron behind the weights: never on the
spiking neuron and never on the wire between layers. That alone gives right gradients to the first layer,
after pooling and dropout, across residual sums and on fan-out.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from snnlearn.functional.cut_step import ConvCutStep, LinearCutStep, spike_gate
from snnlearn.functional.traced_step import CarryDown, GatedStep, Step, TracedStep
from snnlearn.kernels import dispatch
from snnlearn.nn.chunk import Chunk
from snnlearn.nn.chunked_block import run_chunk
from snnlearn.nn.connection import Connection, ETLinear
from snnlearn.nn.convolution import ConvConnection, ETConv1d, ETConv2d, ETConv3d
from snnlearn.nn.eager import EagerModule, run_eagerly
from snnlearn.nn.factored_trace import RatioTrace
from snnlearn.nn.lif import FiringNeuron
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.norm_trace import NormTrace
from snnlearn.nn.normed_step import advance_behind, affine_parameters, norm_of_step
from snnlearn.nn.phases import Listener, Phase, announce_backward
from snnlearn.nn.rate import RateRegulariser
from snnlearn.nn.signal_hub import Signal
from snnlearn.nn.sparse_entry import enter_events
from snnlearn.nn.state import StateShapeError
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer

ONE_NODE = (ETLinear, ETConv1d, ETConv2d, ETConv3d)
"""Connections, these very classes, that become one node together with a neuron whose past is cut."""


class ETBlock(EagerModule):
    """One timestep of a connection and its neuron: x [B, ...] -> spikes [B, ...].

    `connection` an `ETLinear`, `ETConv1d`, `ETConv2d` or other `Connection`; `neuron` any `Neuron`; `norm` a
    module between them, such as batch normalisation. An ordinary single-step module: compose it in sequences,
    residual sums and branches. Until a rule is attached its gradient is autograd's through time: one backward for
    the whole sequence, since a second one would walk into a graph that is gone. Raises TypeError for a plain torch
    layer, StateShapeError for an input without a batch dimension.

    >>> import torch
    >>> from snnlearn.nn import ETLinear, LIF
    >>> ETBlock(ETLinear(4, 2), LIF())(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(self, connection: Connection, neuron: Neuron, norm: nn.Module | None = None) -> None:
        super().__init__()
        if not isinstance(connection, Connection):
            raise TypeError(
                f"ETBlock got {type(connection).__name__} as connection: it needs a layer that can hold a trace; "
                f"write ETLinear, ETConv1d or ETConv2d with the same arguments, and load the same state_dict"
            )
        empty = [name for name, parameter in connection.named_parameters() if parameter.numel() == 0]
        if empty:
            raise ValueError(
                f"ETBlock got a {type(connection).__name__} whose {', '.join(empty)} holds no number: a layer has "
                f"at least one input and one output; give it sizes of 1 or more"
            )
        if not isinstance(neuron, Neuron):
            raise TypeError(
                f"ETBlock got {type(neuron).__name__} as neuron: it needs a Neuron, such as LIF(tau=2.0); for a "
                f"readout without dynamics write Readout(connection)"
            )
        if not isinstance(norm, nn.Module | None):
            raise TypeError(
                f"ETBlock got {norm!r} as norm: it takes a module between connection and neuron; write e.g. "
                f"norm=nn.LayerNorm(units)"
            )
        self.connection, self.neuron, self.norm = connection, neuron, norm
        self.signal: Signal | None = None
        self.rate: RateRegulariser | None = None
        self.feedback: Tensor | None = None
        self.shows_membrane = False
        self.chunk: Chunk | None = None
        self.entries: frozenset[str] = frozenset()
        self.listener: Listener | None = None
        self.observer: Callable[[Tensor], None] | None = None

    @run_eagerly("a block writes its trace in place between forward and backward")
    def forward(self, x: Tensor) -> Tensor:
        """Run phase 1 (connection, then neuron) and phase 2 (the trace takes in x) for input x [B, ...]."""
        x = enter_events(self, x)
        self._check_input(x)
        if self.chunk is not None:
            output = run_chunk(self, x, self.chunk)
        elif self.is_traced_step():
            output = self._as_traced_step(x)
        elif self.listener is None and self.is_one_node():
            output = self._as_one_node(x)
        else:
            output = self._phase_by_phase(x)
        if self.observer is not None:
            self.observer(output)
        if self.chunk is None:
            self._modules["connection"].take_output(output, self.neuron.carry_graph)  # type: ignore[union-attr, operator]
        return self._sent(output) if self.has_signals else output

    @property
    def has_signals(self) -> bool:
        """Whether a rule gave this block more than the gradient that comes from above."""
        modules = self._modules
        return self.shows_membrane or modules.get("signal") is not None or modules.get("rate") is not None

    def _sent(self, output: Tensor) -> Tensor:
        """Return what goes on to the next layer, with the block's own signal, rate term and membrane joined to it."""
        learning = self.training and torch.is_grad_enabled()
        if self.rate is not None and learning:
            output = self.rate(output) if self.chunk is None else self.rate.through_chunk(output, self.chunk)
        if self.signal is not None and learning:
            output = self.signal.emit(output)
        if self.shows_membrane and self.neuron.state is not None and self.chunk is None:
            output.membrane = self.neuron.state[0]  # type: ignore[attr-defined]
        return output

    def _phase_by_phase(self, x: Tensor) -> Tensor:
        connection, listener = self.connection, self.listener
        y = connection(x)
        if listener is not None:
            listener(Phase.FORWARD)
            announce_backward(y, listener)
        output: Tensor = self.neuron(y if self.norm is None else self._normalised(self.norm, y))
        if connection.advance_trace(x) and listener is not None:
            listener(Phase.TRACE_UPDATE)
        return output

    def hold_norm_trace(self, trace: NormTrace | None) -> None:
        """Keep the trace of the norm's gain and bias as a child; None drops it."""
        self._modules["norm_trace"] = None if trace is None else trace.train(self.training)

    def _normalised(self, norm: nn.Module, y: Tensor) -> Tensor:
        trace = self._modules.get("norm_trace")
        if isinstance(trace, NormTrace) and self.connection.trace is not None:
            return trace.through(norm, y)
        normalised: Tensor = norm(y)
        return normalised

    def is_traced_step(self) -> bool:
        """Whether the coming step learns from a trace of whole steps: such a block always runs as one node."""
        trace = self._modules["connection"]._modules.get("trace")  # type: ignore[union-attr]
        return isinstance(trace, StepTrace) and trace.training and torch.is_grad_enabled()

    def _as_traced_step(self, x: Tensor) -> Tensor:
        connection, neuron, trace = self.connection, self.neuron, self.connection.trace
        neuron.refuse_replicas()
        norm = norm_of_step(self.norm)
        for part in (connection, neuron, *(() if norm is None else (norm,))):
            if not _is_plain(part) or (part is neuron and type(neuron).forward is not Neuron.forward):
                raise RuntimeError(
                    f"{type(part).__name__} has a hook or a forward of its own, and with this trace the block runs as "
                    f"one step that would not call it; hook the ETBlock instead, or write the change into neuron.step"
                )
        if isinstance(trace, RatioTrace):
            trace.take_membrane(getattr(x, "membrane", None))
        assert isinstance(trace, StepTrace)
        x = connection.traced_input(x)
        parameters = [*neuron.parameters(), *(() if norm is None else affine_parameters(norm, x.dim()))]
        advance = neuron.advance_linearised if trace.needs_jacobian or parameters else self._advance_gated
        return TracedStep.apply(  # type: ignore[no-any-return]
            x,
            connection.effective_weight(),
            connection.bias,
            connection.weighted_map(),
            trace,
            advance if norm is None else partial(advance_behind, norm, advance),
            self._tell if self.listener is not None else _nobody_listens,
            None if self.feedback is None else self.feedback.to(x.device),
            *parameters,
        )

    def _advance_gated(self, y: Tensor) -> Step:
        neuron = self.neuron
        if isinstance(neuron, FiringNeuron) and neuron.cuts_its_past:
            spike, u = neuron.advance_cut(y)
            return GatedStep(spike, dispatch.run(spike_gate, u, neuron.surrogate))
        return neuron.advance_linearised(y)

    def _tell(self, phase: str) -> None:
        if self.listener is not None:
            self.listener(Phase[phase])

    def is_one_node(self) -> bool:
        """Whether the coming step runs as one autograd node: same numbers, half the Python.

        It does for an `ETLinear` or a convolution with a trace in train() and a built-in spiking neuron whose past is
        cut, with nothing between them and nobody hooked onto either.
        """
        modules = self._modules
        connection, neuron = modules["connection"], modules["neuron"]
        return (
            isinstance(connection, ETLinear | ConvConnection)
            and type(connection) in ONE_NODE
            and isinstance(neuron, FiringNeuron)
            and neuron.cuts_its_past
            and modules.get("norm") is None
            and isinstance(trace := connection.trace, TraceBuffer)
            and trace.training
            and torch.is_grad_enabled()
            and _is_plain(connection)
            and _is_plain(neuron)
            and not _has_any_global_hook()
        )

    def _as_one_node(self, x: Tensor) -> Tensor:
        connection, neuron = self._modules["connection"], self._modules["neuron"]
        assert isinstance(connection, ETLinear | ConvConnection)
        assert isinstance(neuron, FiringNeuron)
        neuron.refuse_replicas()
        if isinstance(connection, ETLinear):
            return LinearCutStep.apply(  # type: ignore[no-any-return]
                x, connection.weight, connection.bias, connection.trace, neuron.advance_over, neuron.surrogate
            )
        return ConvCutStep.apply(  # type: ignore[no-any-return]
            connection.traced_input(x),
            connection.weight,
            connection.bias,
            connection.trace,
            connection.weighted_map(),
            neuron.advance_over,
            neuron.surrogate,
        )

    def _check_input(self, x: Tensor) -> None:
        allowed = self.connection.input_dims
        if x.dim() not in allowed if allowed else x.dim() < 2:
            wanted = " or ".join(f"{n} dimension{'s'[: n - 1]}" for n in allowed) or "at least 2 dimensions"
            raise StateShapeError(
                f"ETBlock({type(self.connection).__name__}) got an input of shape {list(x.shape)}: one step of a "
                f"batch has {wanted}, the batch first; write x[None] for a single sample, and pass a sequence "
                f"[T, B, ...] step by step"
            )

        size = self.connection.input_size
        if size is not None and x.shape[size[0]] != size[1]:
            raise StateShapeError(
                f"ETBlock({type(self.connection).__name__}) got an input of shape {list(x.shape)}: dimension {size[0]} "
                f"has {x.shape[size[0]]} values and the layer takes {size[1]}; give the layer that many inputs, or "
                f"reshape what comes before it"
            )

    def __getstate__(self) -> dict[str, object]:
        """Return attributes for copies and pickles, without those who listen to this block alone."""
        return {**self.__dict__, "listener": None, "observer": None}


def _nobody_listens(_phase: str) -> None:
    """Take the name of a phase and do nothing."""


def _is_plain(module: nn.Module) -> bool:
    """Whether calling `module` does what its class says: nobody hooked onto it, no forward of the instance's own."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


class Readout(nn.Module):
    """A readout without dynamics: the connection's output is the network's, and no trace is kept.

    `connection` any module with weights, such as `torch.nn.Linear`. Its gradient is exact under every rule, since
    it remembers nothing. A trace here would be wrong, so there is none. Input and output as the connection's.

    >>> import torch
    >>> Readout(nn.Linear(4, 2))(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(self, connection: nn.Module) -> None:
        super().__init__()
        if not isinstance(connection, nn.Module):
            raise TypeError(
                f"Readout got {connection!r} as connection: it takes a module with weights; write "
                f"Readout(nn.Linear(inputs, classes))"
            )
        self.connection = connection
        self.feedback: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the connection's output for x [B, ...]."""
        if self.feedback is not None and self.training and torch.is_grad_enabled():
            own: Tensor = self.connection(x.detach())
            return own + CarryDown.apply(x, self.feedback.to(x.device), own.shape)  # type: ignore[no-any-return]
        output: Tensor = self.connection(x)
        return output


__all__ = ["ETBlock", "Readout"]
