"""Reward-modulated learning: the plainest three-factor rule, one number for all units.

A trace of the input, the unit's own readiness to fire, and a reward r shown from outside (for example a reward minus
its expectation; reviewed by Fremaux and Gerstner 2016, doi:10.3389/fncir.2015.00085):

    u_t = -r_t / n      dL/dW = sum_t (u_t * ds_t/dy_t)^T a_t      n samples

so descent makes what was active fire more after r > 0 and less after r < 0. It is the gradient of no loss: all units
get the same number, and which of them earned it shows only over many trials. The readout learns from the loss. Memory:
that of OTTT. The reward has to be shown: `OnlineLearner.step(x, y, reward=r)`, or `show_reward(net, r)` before
backward.
"""

from snnlearn.rules.axes import LearningRule


def RewardModulated() -> LearningRule:
    """Return the reward-modulated rule: leak transition, one trace per input, the reward as the signal of all units.

    >>> RewardModulated().signal
    'reward'
    """
    return LearningRule(transition="leak", storage="pre", signal="reward", title="reward-modulated")


__all__ = ["RewardModulated"]
