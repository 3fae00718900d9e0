"""The text of `--help`: every knob with its meaning, its range and its default."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from snnlearn.config.knob import Knob, legal
from snnlearn.config.schema import Config
from snnlearn.config.validate import choices, fields

__all__ = ["help_text"]

_WIDTH = 110
_HEADER = """\
Train a spiking network online.

  python scripts/train.py                                    the embedded digits, OTTT
  python scripts/train.py dataset=nmnist dataset.root=PATH   real N-MNIST recordings
  python scripts/train.py rule=sltt neuron.tau=4             another choice, another value
  python scripts/train.py -m rule=ottt,sltt seed=1,2,3       a sweep: six jobs and a summary.csv
  python scripts/train.py trainer.resume=RUN_FOLDER          go on with an interrupted run
  python scripts/train.py --cfg job                          print the configuration, run nothing

A knob is written group.knob=VALUE, a choice group=NAME; `*` marks the default choice.
Hydra's own options: --hydra-help.
"""


def help_text(defaults: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]], recipes: str = "") -> str:
    """Return the help of every knob.

    `defaults` is the composed default configuration, `values` the YAML values of each choice by
    `group/name` (such as `neuron/alif`), `recipes` a text about experiments to put at the end.
    """
    lines = [_HEADER, "Whole run"]
    for name, kind, knob in fields(Config):
        if knob is not None:
            lines += _knob_lines(name, kind, knob, defaults.get(name))
    for group, kind, knob in fields(Config):
        if knob is None:
            lines += ["", *_group_lines(group, kind, defaults, values)]
    return "\n".join([*lines, "", recipes]).rstrip() + "\n"


def _group_lines(
    group: str, kind: Any, defaults: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    named = choices(kind)
    chosen = (defaults.get(group) or {}).get("name", "")
    files = sorted(path.partition("/")[2] for path in values if path.startswith(f"{group}/"))
    yield f"{group}={'|'.join(files)}"
    for name, member in named.items():
        for field, _, knob in fields(member):
            if field == "name" and knob is not None:
                yield f"  {'*' if name == chosen else ' '} {name:<16} {knob.help}"
    owners: dict[tuple[str, str, str], list[str]] = {}  # choices that mean the same by a knob share its lines
    for name, member in named.items():
        for field, hint, knob in fields(member):
            if field != "name" and knob is not None:
                owners.setdefault((field, knob.help, legal(hint, knob)), []).append(name)
    for (field, _, _), names in owners.items():
        owner = chosen if chosen in names else names[0]
        hint, knob = next((hint, knob) for name, hint, knob in fields(named[owner]) if name == field)
        source = defaults[group] if owner == chosen else values.get(f"{group}/{owner}", {})
        only = "" if len(names) == len(named) else f" [{', '.join(names)}]"
        if knob is not None:
            yield from _knob_lines(f"{group}.{field}", hint, knob, source.get(field), only)


def _knob_lines(path: str, kind: Any, knob: Knob, default: Any, only: str = "") -> Iterator[str]:
    yield f"  {path} = {_yaml(default)}"
    text = f"{knob.help}{only}. Legal: {legal(kind, knob)}."
    yield from textwrap.wrap(text, _WIDTH, initial_indent="      ", subsequent_indent="      ")


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
