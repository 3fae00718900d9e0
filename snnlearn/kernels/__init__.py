"""Fast twins of functions in `snnlearn.functional`, and nothing else.

A twin has the name, the signature and, to rounding, the numbers of its reference. It is reached through
`snnlearn.kernels.dispatch`, which says which of the two ran and why, and every file here but that one can be deleted.
The twins are written in Triton: they run on CUDA devices, and on the CPU under Triton's interpreter, for tests. They
read float32, bfloat16 and float16 and keep states and traces in float32. `compiled` has torch compile the references
for the CPU, where that is chosen.
"""

from snnlearn.kernels.dispatch import KernelUnavailableError, path_in_use, use, why_not

__all__ = ["KernelUnavailableError", "path_in_use", "use", "why_not"]
