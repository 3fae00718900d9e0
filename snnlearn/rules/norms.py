"""What the report says about a normalisation between a block's weights and its neuron."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from snnlearn.nn.block import ETBlock

AFFINE_WHY = "gain and bias of a normalisation, followed like weights of the normalised value and of a constant one"
FOLLOWED_WHY = "gain and bias of a normalisation, followed per unit like parameters of the neuron behind it"
NORMED_WHY = "the neuron's own Jacobian and that of the batch normalisation are followed, reset included"
FROZEN_WHY = "the statistics of the normalisation are frozen, for as long as it stays in eval()"


def is_frozen(block: ETBlock) -> bool:
    """Say whether the block learns while the statistics of its batch normalisation stand still.

    >>> from snnlearn.nn import LIF, ETLinear
    >>> block = ETBlock(ETLinear(2, 3), LIF(), nn.BatchNorm1d(3))
    >>> before = is_frozen(block); _ = block.norm.eval(); before, is_frozen(block)
    (False, True)
    """
    norm = block.norm
    if not isinstance(norm, _BatchNorm) or norm.running_mean is None or norm.running_var is None:
        return False
    return block.training and not norm.training


def norm_caveats(block: ETBlock) -> list[str]:
    """Return why the normalisation of `block` keeps a trace of the input from being exact for its weights.

    >>> from snnlearn.nn import LIF, ETLinear
    >>> norm_caveats(ETBlock(ETLinear(2, 3), LIF()))
    []
    """
    norm = block.norm
    if norm is None or isinstance(norm, nn.Identity) or is_frozen(block):
        return []
    if isinstance(norm, _BatchNorm):
        return ["batch statistics tie the samples of a step together (exact only while the norm stays in eval())"]
    return [f"{type(norm).__name__} between weights and neuron changes with the step, the trace does not"]


__all__ = ["AFFINE_WHY", "FOLLOWED_WHY", "FROZEN_WHY", "NORMED_WHY", "is_frozen", "norm_caveats"]
