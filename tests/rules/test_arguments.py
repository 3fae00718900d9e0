"""A rule's own arguments are refused by the names that the caller wrote."""

from collections.abc import Callable
from typing import Any

import pytest

from snnlearn import DECOLLE, ELL, ESDRTRL, ETLP, SLTTK, STLLR, TESS, EProp, LearningRule, RateTarget, RuleChoiceError
from snnlearn.nn import PostTrace

NAN = float("nan")


@pytest.mark.parametrize(
    ("rule", "arguments", "words"),
    [
        (STLLR, {"pre_decay": 3.0}, "pre_decay=3.0: it lies in 0 .. 1; write pre_decay"),
        (STLLR, {"causal": NAN}, "causal=nan: a finite number"),
        (STLLR, {"causal": "a"}, "causal='a'"),
        (STLLR, {"last_steps": 0}, "last_steps=0: a whole number"),
        (TESS, {"causal_decay": 2.0}, "causal_decay=2.0"),
        (TESS, {"loss": "ce"}, "loss='ce': choose one of cross_entropy"),
        (EProp, {"kappa": 1.0}, "kappa=1.0: it lies in 0 .. 1, below 1"),
        (EProp, {"rate": -1.0}, "rate=-1.0"),
        (EProp, {"rate": 0.1, "rate_weight": -1.0}, "weight=-1.0"),
        (ETLP, {"steps": 0}, "steps=0"),
        (SLTTK, {"steps": 0}, "steps=0"),
        (DECOLLE, {"loss": "ce"}, "loss='ce'"),
        (ELL, {"loss": "ce"}, "loss='ce'"),
        (ESDRTRL, {"forgetting": 1.0}, "forgetting=1.0"),
        (RateTarget, {"rate": 3.0, "weight": 1.0}, "rate=3.0"),
        (RateTarget, {"rate": NAN, "weight": 1.0}, "rate=nan"),
        (LearningRule, {"trace_decay": "x"}, "trace_decay='x'"),
        (LearningRule, {"seed": None}, "seed=None: a whole number from 0"),
        (LearningRule, {"post": PostTrace(0.5, NAN)}, "post.acausal=nan"),
        (LearningRule, {"storage": "synaptic", "trace_filter": "double", "filter_decay": (0.9,)}, "two decays"),
    ],
)
def test_the_message_names_what_was_written(
    rule: Callable[..., Any], arguments: dict[str, Any], words: str, unchecked: None
) -> None:
    with pytest.raises(RuleChoiceError) as caught:
        rule(**arguments)
    assert words in str(caught.value)


def test_what_is_at_the_edge_is_legal() -> None:
    assert STLLR(pre_decay=None).trace_decay is None
    assert STLLR(pre_decay=1.0).trace_decay == 1.0
    assert EProp(rate=0.0, rate_weight=0.0, kappa=0.0).rate == RateTarget(rate=0.0, weight=0.0)
