"""Every example in the package's docstrings runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import snnlearn

MODULES = ["snnlearn", *(m.name for m in pkgutil.walk_packages(snnlearn.__path__, "snnlearn."))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_the_module(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples failed, shown above"


def test_there_are_examples() -> None:
    """Guards against a finder that no longer finds anything."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) > 30


def test_a_wrong_example_fails(capsys: pytest.CaptureFixture[str]) -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "planted", None, None)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test).failed == 1
    assert "Expected" in capsys.readouterr().out
