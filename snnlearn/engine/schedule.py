"""Which steps of a sequence learn: all, the last few, a random few, or each with some probability."""

import functools
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import torch

from snnlearn.engine.sequence import sequence_length
from snnlearn.rules.axes import LearningRule
from snnlearn.rules.legality import RuleChoiceError

log = logging.getLogger("snnlearn.engine")


def chosen_steps(rule: LearningRule, x: Any) -> Iterator[bool]:
    """Yield, step by step, whether the rule learns at this one; x the sequence [T, B, ...], None for a stream.

    Drawn from torch's global generator, or one that it seeds. Raises RuleChoiceError where the
    rule has to know the number of steps and x does not tell.

    >>> from snnlearn.rules import LearningRule
    >>> list(chosen_steps(LearningRule(learn_on="last", learn_steps=1), [0, 0, 0]))
    [False, False, True]
    """
    if rule.learn_on == "all":
        return itertools.repeat(True)
    assert rule.learn_steps is not None
    if rule.learn_on == "poisson":
        return _poisson(1 / rule.learn_steps)
    length = None if x is None else sequence_length(x)
    if length is None:
        raise RuleChoiceError(
            f"{rule.name} learns at {rule.learn_steps} {rule.learn_on} steps of a sequence and this one has no known "
            f"length; call learn(x, y) with x [T, B, ...], or choose learn_on='all' or 'poisson'"
        )
    if rule.learn_steps > length:
        _tell_short(rule.name, rule.learn_steps, length)
    if rule.learn_on == "last":
        return iter([step >= length - rule.learn_steps for step in range(length)])
    drawn = set(torch.randperm(length)[: rule.learn_steps].tolist())
    return iter([step in drawn for step in range(length)])


@functools.cache  # told once
def _tell_short(name: str, learn_steps: int, length: int) -> None:
    log.warning(
        "%s is to learn at %d steps of each sequence, and this one has %d: it learns at all of them; give it fewer, or "
        "longer sequences",
        name,
        learn_steps,
        length,
    )


def _poisson(probability: float) -> Iterator[bool]:
    """Draw from a generator of its own, seeded before the first step, so that chunks draw what single steps do."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    while True:
        yield bool(torch.rand((), generator=generator) < probability)


__all__ = ["chosen_steps"]
