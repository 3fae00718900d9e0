"""Fast twins of functions in `snnlearn.functional`, and nothing else.

A twin has the name, the signature and, to rounding, the numbers of its reference. It is reached through
`snnlearn.kernels.dispatch`, which says which of the two ran and why, and every file here but that one can be deleted.
The twins are written in Triton: they run on CUDA devices, and on the CPU under Triton's interpreter, for tests. They
read float32, bfloat16 and float16 and keep states and traces in float32.
"""

from snnlearn.kernels.dispatch import KernelUnavailableError, use, why_not

__all__ = ["KernelUnavailableError", "use", "why_not"]
