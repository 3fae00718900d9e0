"""A fixture of the contract tests, which run every rule many times over."""

import sys

import pytest


@pytest.fixture
def quick(unchecked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes most of the time of a small network and is tested elsewhere.

    That is the run-time shape checks, and the search of `attach` for units that mix, which no built-in neuron has.
    """
    monkeypatch.setattr(sys.modules["snnlearn.rules.attach"], "refuse_mixing", lambda *_: None)
