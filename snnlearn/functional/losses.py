"""The loss of one step, the only kind online learning knows: nothing here looks at another step.

A sequence's loss is the mean of its steps' losses, so memory does not grow with its length.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

MISSING_LABEL = -100
"""The label of a sequence that has none at this step: it is left out of the mean over the batch."""


def is_labelled(target: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return where `target` is a label and not `MISSING_LABEL`.

    >>> import torch
    >>> is_labelled(torch.tensor([2, -100]))
    tensor([ True, False])
    """
    return target != MISSING_LABEL


def mean_squared_error(output: Float[Tensor, "batch outputs"], target: Tensor) -> Float[Tensor, ""]:
    """Return the mean of (output - target)^2 over batch and outputs: regression.

    `output` [B, D]; `target` [B, D], floating point. Raises ValueError for a target of another shape, which would
    broadcast, or of whole numbers, which are labels.

    >>> import torch
    >>> mean_squared_error(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(5.)
    """
    if target.shape != output.shape or not target.is_floating_point():
        raise ValueError(
            f"squared_error of outputs {list(output.shape)} and targets {list(target.shape)} {target.dtype}: it takes "
            f"a floating-point number for every output; for labels write criterion='mse', which makes them one-hot"
        )
    return F.mse_loss(output, target)


def one_hot_mean_squared_error(
    output: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]
) -> Float[Tensor, ""]:
    """Return the mean squared distance between outputs [B, C] and one-hot labels of `target` [B].

    A sequence with `MISSING_LABEL` does not count.

    >>> import torch
    >>> one_hot_mean_squared_error(torch.eye(2), torch.tensor([0, 1]))
    tensor(0.)
    """
    known = is_labelled(target)
    if not bool(known.all()):
        output, target = output[known], target[known]
    return F.mse_loss(output, F.one_hot(target, output.shape[-1]).to(output.dtype))


def step_loss(
    output: Float[Tensor, "batch classes"],
    target: Int[Tensor, " batch"],
    mse_weight: float = 0.0,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return (1 - mse_weight) * cross entropy + mse_weight * one-hot squared error, averaged over the batch.

    `output` [B, C] logits; `target` [B] labels, or `MISSING_LABEL` where a sequence has none, which then does not
    count; `mse_weight` and `label_smoothing` in [0, 1]. The mix is OTTT's, Xiao et al. 2022,
    doi:10.48550/arXiv.2210.04195.

    >>> import torch
    >>> step_loss(torch.zeros(1, 10), torch.tensor([3]))
    tensor(2.3026)
    """
    _check_labels(output, target)
    if mse_weight == 1.0:
        return one_hot_mean_squared_error(output, target)
    entropy = F.cross_entropy(output, target, label_smoothing=label_smoothing)
    if mse_weight == 0.0:
        return entropy
    return (1 - mse_weight) * entropy + mse_weight * one_hot_mean_squared_error(output, target)


def _check_labels(output: Tensor, target: Tensor) -> None:
    # On a GPU the comparison would wait for the device at every step, and the loss's own kernel asserts the range.
    if target.device.type != "cpu" or target.numel() == 0:
        return
    low, high = int(target.min()), int(target.max())
    if low == MISSING_LABEL:
        known = target[is_labelled(target)]
        low = int(known.min()) if len(known) else 0
    if low < 0 or high >= output.shape[-1]:
        raise ValueError(
            f"labels run from {low} to {high} and the network has {output.shape[-1]} outputs: labels are 0 to "
            f"{output.shape[-1] - 1}; give the readout {high + 1} outputs, or renumber the labels"
        )


def advance_running_mean(
    mean: Float[Tensor, "..."] | None, output: Float[Tensor, "..."], count: Float[Tensor, "..."] | int
) -> Float[Tensor, "..."]:
    """Return the mean of `count` outputs from the mean of the first count - 1 and the latest one.

    `mean`, `output` [B, ...]; `count` one number or one per row, shaped to broadcast.

    >>> import torch
    >>> advance_running_mean(torch.tensor([1.0]), torch.tensor([3.0]), 2)
    tensor([2.])
    """
    return output if mean is None else mean + (output - mean) / count


__all__ = [
    "MISSING_LABEL",
    "advance_running_mean",
    "is_labelled",
    "mean_squared_error",
    "one_hot_mean_squared_error",
    "step_loss",
]
