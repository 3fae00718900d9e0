"""An embedding: integer indices in, rows of a learned table out; equations in `snnlearn.functional.lookup`."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.lookup import Lookup, et_embedding
from snnlearn.nn.connection import Connection
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer


class ETEmbedding(Connection, nn.Embedding):
    """`torch.nn.Embedding` with an eligibility trace: indices [B] or [B, N] -> [B, O] or [B, N, O].

    Arguments, initialisation and `state_dict` of `torch.nn.Embedding`; the table `weight` is [V, O]. The trace is that
    of the one-hot input, V numbers per index. The row `padding_idx` gets no gradient. Raises ValueError for `max_norm`,
    `scale_grad_by_freq` and `sparse`, TypeError for an input that is not made of integers,
    IndexError for an index without a row.

    >>> ETEmbedding(10, 4)(torch.tensor([[1, 2, 1]])).shape
    torch.Size([1, 3, 4])
    """

    input_dims = (1, 2)
    bias: None = None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        refusals = {
            "max_norm": (max_norm is not None, "it rescales rows in place within a forward, under the trace's feet"),
            "scale_grad_by_freq": (scale_grad_by_freq, "it counts the indices of one step, and a trace has many"),
            "sparse": (sparse, "a trace soon holds every row that ever occurred, so its gradient is dense"),
        }
        for name, (given, why) in refusals.items():
            if given:
                raise ValueError(f"ETEmbedding({name}=...) is not possible with a trace: {why}; leave {name} out")
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            norm_type=norm_type,
            _weight=_weight,
            _freeze=_freeze,
            device=device,
            dtype=dtype,
        )

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """One number per column of the table."""
        return (self.embedding_dim,)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of the table for indices x; their gradient is the trace's when there is one."""
        self._refuse_what_is_no_row(x)
        return super().forward(x)

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return the rows of the table with a gradient read from `trace`."""
        return et_embedding(x, trace, self.weight, self.padding_idx)

    def traced_input(self, x: Tensor) -> Tensor:
        """Return the one-hot rows [B, ..., V] of indices x, in the table's dtype."""
        self._refuse_what_is_no_row(x)
        return F.one_hot(x.long(), self.num_embeddings).to(self.weight.dtype)

    def effective_weight(self) -> Tensor:
        """Return the table transposed [O, V], without a gradient in the row of `padding_idx`."""
        table: Tensor = self.weight
        if self.padding_idx is not None:
            fixed = torch.arange(self.num_embeddings, device=table.device) == self.padding_idx
            table = torch.where(fixed[:, None], table.detach(), table)
        return table.T

    def weighted_map(self) -> Lookup:
        """Return the matrix product of one-hot rows, by lookup."""
        return Lookup()

    def _refuse_what_is_no_row(self, x: Tensor) -> None:
        if x.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"ETEmbedding got an input of {x.dtype}: it looks up whole numbers from 0 to "
                f"{self.num_embeddings - 1}; write x.long(), or ETLinear for an input that is multiplied"
            )
        # On a GPU the comparison would wait for the device at every step; the lookup's own kernel asserts the range.
        if x.device.type != "cpu" or x.numel() == 0:
            return
        low, high = map(int, x.aminmax())
        if low < 0 or high >= self.num_embeddings:
            raise IndexError(
                f"ETEmbedding got indices from {low} to {high} and its table has {self.num_embeddings} rows, so they "
                f"run from 0 to {self.num_embeddings - 1}; write ETEmbedding({max(high, 0) + 1}, "
                f"{self.embedding_dim}), or map unknown indices to a row of their own"
            )


__all__ = ["ETEmbedding"]
