"""Rules beyond the trace, and parts of a rule, that are given an object of another kind or what is no number."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from snnlearn import (
    ESDRTRL,
    FPTT,
    HLOP,
    LIF,
    OPZO,
    SLTTK,
    STDP,
    STLLR,
    TESS,
    ETBlock,
    ETLinear,
    LearningRule,
    NoiseEstimate,
    Readout,
    RewardSTDP,
    RuleChoiceError,
    SuperSpike,
    TruncatedBPTT,
)

pytestmark = pytest.mark.usefixtures("unchecked")


def block() -> ETBlock:
    made = ETBlock(ETLinear(3, 2), LIF())
    nn.init.uniform_(made.connection.weight)
    return made


@pytest.mark.parametrize("kind", [STDP, RewardSTDP])
@pytest.mark.parametrize("wrong", [nn.Linear(3, 2), ETLinear(3, 2), nn.Sequential(block()), None, ETBlock])
def test_stdp_of_something_else_than_a_block(kind: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"STDP got .*{'type' if isinstance(wrong, type) else type(wrong).__name__}.*"):
        kind(wrong)


def test_hlop_of_something_else_than_a_network() -> None:
    for wrong in (None, [block()], ETBlock):
        with pytest.raises(TypeError, match=r"HLOP\(net\) got a .* as net"):
            HLOP(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no ETBlock and no Readout.*Readout\(nn\.Linear"):
        HLOP(nn.Linear(3, 2))
    for components in (None, True, 0, 1.5, "2", {"": "2"}, {"": 0}):
        with pytest.raises(ValueError, match=r"components=.*a whole number of rows from 1"):
            HLOP(block(), components)  # type: ignore[arg-type]
    with (
        pytest.raises(TypeError, match=r"guard\(optimizer\) got a Sequential"),
        HLOP(block(), 2).guard(nn.Sequential()),
    ):  # type: ignore[arg-type]
        pass
    assert HLOP(Readout(nn.Linear(3, 2)), 2).components == {"": 2}


def test_fptt_of_something_else_than_an_optimizer() -> None:
    for wrong, got in ((torch.optim.SGD, "the class SGD"), (block(), "a ETBlock"), (None, "a NoneType")):
        with pytest.raises(TypeError, match=f"FPTT wraps an optimizer and got {got}"):
            FPTT(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["1", float("nan"), True, object(), None])
def test_numbers_of_rules(value: Any) -> None:
    parameter = nn.Parameter(torch.ones(1))
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("decay_pre=", lambda: STDP(block(), decay_pre=value)),
        ("decay_eligibility=", lambda: RewardSTDP(block(), decay_eligibility=value)),
        ("a_plus=", lambda: STDP(block(), a_plus=value)),
        ("bounds=", lambda: STDP(block(), bounds=value)),
        ("bounds=", lambda: STDP(block(), bounds=(0.0, value))),
        ("alpha=", lambda: FPTT(torch.optim.SGD([parameter], lr=0.1), alpha=value)),
        ("beta=", lambda: FPTT(torch.optim.SGD([parameter], lr=0.1), beta=value if value is not True else "1")),
        ("rate=", lambda: HLOP(block(), 2, rate=value)),
        ("scale=", lambda: OPZO(scale=value)),
        ("momentum=", lambda: NoiseEstimate(momentum=value)),
        ("tau_rise=", lambda: SuperSpike(tau_rise=value)),
        ("tau_fall=", lambda: SuperSpike(tau_fall=value)),
        ("post_decay=", lambda: STLLR(post_decay=value)),
        ("acausal=", lambda: TESS(acausal=value)),
        ("forgetting=", lambda: ESDRTRL(forgetting=value)),
        *((f"{n}=", lambda n=n: LearningRule(**{n: value})) for n in ("forgetting", "seed")),
    ]
    if value is not None:
        cases += [
            ("window=", lambda: TruncatedBPTT(window=value)),
            ("steps=", lambda: SLTTK(steps=value)),
            *((f"{n}=", lambda n=n: LearningRule(**{n: value})) for n in ("trace_decay", "filter_decay", "post")),
            *((f"{n}=", lambda n=n: LearningRule(**{n: value})) for n in ("head", "noise", "rate")),
        ]
    for words, make in cases:
        with pytest.raises((RuleChoiceError, ValueError)) as caught:
            make()
        assert words in str(caught.value)
