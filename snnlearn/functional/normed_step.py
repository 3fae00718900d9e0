"""The step of a neuron behind a batch normalisation, as its connection sees it.

With z = (y - mean) / sqrt(var + eps), y' = gain * z + bias, and the neuron's own derivatives by y', p = dh/dy' and
r = ds/dy',

    dh/dy = p m        ds/dy = r m        m = gain / sqrt(var + eps), one number per channel
    by the gain: p z and r z              by the bias: p and r

Where mean and var are frozen that is all. Where they are those of the step, y of one sample moves z of the others too:
`snnlearn.functional.batch_ties`. z depends on neither gain nor bias, so theirs hold in both cases.
"""

from collections.abc import Sequence

from torch import Tensor

from snnlearn.functional.batch_ties import BatchTies
from snnlearn.functional.traced_step import DirectDerivative, GatedStep, LinearisedStep, Step


def step_behind_norm(
    step: Step, scale: Tensor, affine: Sequence[Tensor | float] = (), ties: BatchTies | None = None
) -> Step:
    """Return `step`, whose derivatives are by y', with derivatives by y: see the module's equations.

    `scale` m, which broadcasts over the units [B, C, *places]; `affine` dy'/dp for each parameter p of the
    normalisation, z [B, C, *places] for a gain and 1.0 for a bias, whose direct derivatives go behind the neuron's;
    `ties` those of batch statistics, None for frozen ones. Raises TypeError for `affine` at a step without a Jacobian.

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> step_behind_norm(GatedStep(one, one), torch.tensor([0.5])).spike_input
    tensor([[0.5000]])
    """
    if isinstance(step, GatedStep):
        if affine:
            raise TypeError(
                "a gated step has no Jacobian for the gain and bias of a normalisation to follow; pass a LinearisedStep"
            )
        return GatedStep(step.spike, step.spike_input * scale, ties)
    drive, spike_input = step.jacobian.drive, step.jacobian.spike_input
    jacobian = step.jacobian._replace(drive=drive * scale, spike_input=spike_input * scale)
    own = tuple(DirectDerivative(spike_input * by, drive * by) for by in affine)
    return LinearisedStep(step.spike, jacobian, (*step.parameters, *own), ties)


__all__ = ["step_behind_norm"]
