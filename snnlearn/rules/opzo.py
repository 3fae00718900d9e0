"""OPZO: online pseudo-zeroth-order training (Xiao et al. 2024, doi:10.48550/arXiv.2407.12516).

Noise z is added to the spikes of every hidden block, and what it does to the output of the same step tells how the
output depends on them; no weight is transported and no error goes down layer by layer:

    M <- m M + (1 - m) sum (o - mean o) z^T / ((n - 1) sigma^2)      u_t = M^T e_t      e_t = dL_t/do_t
    dL/dW = sum_t (u_t * ds_t/dy_t)^T a_t

over n samples, with OTTT's trace a of the input (`snnlearn.rules.ottt`). Thrown away: what differs between samples in
do/ds, which M averages, and what the past spikes do to this output. M grows from zero, takes 1 / (1 - m) steps to know
anything, and is noisier the more units there are; it is kept in the checkpoint. Memory: that of OTTT, and one number
per unit and output. With a batch of one the output is not centred and M is noisier still. The authors published no
code; `scale` and `momentum` are ours.
"""

from snnlearn.rules.axes import LearningRule, NoiseEstimate


def OPZO(scale: float = 0.1, momentum: float = 0.99, seed: int = 0) -> LearningRule:
    """Return OPZO: leak transition, one trace per input, dL/ds estimated from noise drawn from `seed`.

    `scale` standard deviation of the noise, in spikes; `momentum` m of the running mean, in [0, 1).

    >>> OPZO(scale=0.2).noise
    NoiseEstimate(scale=0.2, momentum=0.99)
    """
    noise = NoiseEstimate(scale=scale, momentum=momentum)
    return LearningRule(transition="leak", storage="pre", signal="noise", noise=noise, seed=seed, title="OPZO")


__all__ = ["OPZO"]
