"""DFA: direct feedback alignment (Nokland 2016, doi:10.48550/arXiv.1609.01596), with a trace in time.

Every hidden block l gets the output's error of the step through a fixed random matrix of its own, in place of dL/ds:

    u^l_t = B^l e_t      e_t = dL_t/do_t      dL/dW^l = sum_t (u^l_t * ds_t/dy_t)^T a^l_t

with OTTT's trace a of the input (`snnlearn.rules.ottt`); the readout learns from e_t itself. Nothing travels down
through weights, so no block waits for the one above. Thrown away: the spatial gradient of every hidden block, of which
the broadcast is right only as far as the weights above have aligned with B. Memory: that of OTTT, and one number per
unit and output. The paper has no time and no spikes; signal="random" goes with every other trace too.
"""

from snnlearn.rules.axes import LearningRule


def DFA(seed: int = 0) -> LearningRule:
    """Return DFA: leak transition, one trace per input, fixed random broadcast of the error drawn from `seed`.

    >>> DFA().signal
    'random'
    """
    return LearningRule(transition="leak", storage="pre", signal="random", seed=seed, title="DFA")


__all__ = ["DFA"]
