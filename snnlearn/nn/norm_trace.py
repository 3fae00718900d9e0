"""The trace of a normalisation's gain and bias inside a block; equations in `snnlearn.functional.affine`."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from snnlearn.functional.affine import et_affine
from snnlearn.functional.chunk import scan_leak
from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.eligibility import BiasTrace
from snnlearn.nn.trace_buffer import TraceBuffer

if TYPE_CHECKING:
    from snnlearn.nn.chunk import Chunk

PER_CHANNEL = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
"""Normalisations with one gain per channel, dimension 1."""
PER_PLACE = (nn.LayerNorm, nn.RMSNorm)
"""Normalisations with one gain per unit of the last dimensions."""


class NormTrace(TraceBuffer):
    """The trace of a normalisation's value, as large as its output, for the gain and bias of the module behind it.

    `leak` the constant transition of the neuron behind the normalisation. Advances within the forward. Errors as
    `TraceBuffer`, RuntimeError for a hook on the normalisation, which would not be called.

    >>> from snnlearn.functional import lif_leak_transition
    >>> trace, norm = NormTrace(lif_leak_transition(0.5)), nn.LayerNorm(2)
    >>> for _ in range(2):
    ...     y = trace.through(norm, torch.tensor([[1.0, 3.0]]))
    >>> y.sum().backward(); norm.bias.grad
    tensor([1.5000, 1.5000])
    """

    def __init__(self, leak: LeakTransition, name: str = "this block") -> None:
        super().__init__(leak, name)
        self.chunk: Chunk | None = None

    def through(self, norm: nn.Module, y: Tensor) -> Tensor:
        """Return norm(y) for y [B, ...], with gain and bias gradients of the trace, and take this step into it.

        In a chunk y is [K B, ...], and its steps are taken in at once: each row is normalised by itself.
        Running statistics are updated once, as by `norm` itself, and those of the step or frozen ones are used as its
        train() and eval() say.
        """
        if not torch.is_grad_enabled():
            self.skip()
            return norm(y)  # type: ignore[no-any-return]
        if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks:
            raise RuntimeError(
                f"{self.name}: the {type(norm).__name__} has a hook, and with a trace of its gain and bias the block "
                f"runs it in two parts that would not call it; hook the ETBlock or the neuron instead"
            )
        z = _without_affine(norm)(y)
        places = (1,) * (y.dim() - 2) if isinstance(norm, PER_CHANNEL) else ()
        gain, bias = norm.get_parameter("weight"), norm._parameters.get("bias")
        placed = None if bias is None else bias.view(*bias.shape, *places)
        met = None if self.chunk is None else self._met_in_chunk
        output = et_affine(z, self, gain.view(*gain.shape, *places), placed, met)
        if not self.training:
            self.skip()
        elif self.chunk is None:
            self.advance_(z.detach())
        else:
            gate, (steps, restarts) = z.new_ones(()).expand(z.shape), self.chunk
            self.advance_chunk_(z.detach(), ChunkSteps(z.detach(), gate, None, (), steps, restarts))
        return output

    def _met_in_chunk(self, tick: int, d: Tensor) -> Iterator[tuple[Tensor, Tensor, BiasTrace]]:
        """Yield what is summed to the gradients of a chunk: with z of its steps, then with the traces before it."""
        self.check(tick)
        assert self.kept is not None
        (z,), steps, before, before_one = self.kept.inputs.parts, *self.kept[2:]
        received, entering = scan_leak(steps.unfolded(d), self.leak, steps.restarts)
        yield received.flatten(0, 1), z, None
        if before is not None and before_one is not None:
            yield from zip(entering, before, before_one, strict=True)


def has_traceable_affine(norm: nn.Module | None) -> bool:
    """Say whether `norm` ends in a gain per channel or per unit that `NormTrace` knows; subclasses it cannot know.

    >>> has_traceable_affine(nn.BatchNorm1d(2)), has_traceable_affine(nn.BatchNorm1d(2, affine=False))
    (True, False)
    """
    if norm is None or type(norm) not in (*PER_CHANNEL, *PER_PLACE):
        return False
    return norm._parameters.get("weight") is not None and "forward" not in vars(norm)


def norm_trace_for(norm: nn.Module | None, trace: object) -> NormTrace | None:
    """Return a trace for the gain and bias of `norm` beside the `trace` of the weights before it, or None.

    None for a trace of the weights that is not a `TraceBuffer`, and for a normalisation that is unknown or not affine.

    >>> norm_trace_for(nn.Identity(), None) is None
    True
    """
    if not isinstance(trace, TraceBuffer) or not has_traceable_affine(norm):
        return None
    return NormTrace(trace.leak, trace.name)


def _without_affine(norm: nn.Module) -> nn.Module:
    """Return a twin of `norm` that shares its buffers and has neither gain nor bias."""
    twin = copy.copy(norm)
    twin._parameters = dict.fromkeys(norm._parameters)
    return twin


__all__ = ["NormTrace", "has_traceable_affine", "norm_trace_for"]
