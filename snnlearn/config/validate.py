"""Check a composed configuration against the schema, all of it at once, and turn it into dataclasses."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from snnlearn.config.cross import cross_checks
from snnlearn.config.knob import IllegalValue, Knob, convert, legal
from snnlearn.config.problem import ConfigError, Problem, nearest
from snnlearn.config.schema import Config

__all__ = ["choices", "fields", "load", "plain", "validate"]


def fields(kind: type) -> Iterator[tuple[str, Any, Knob | None]]:
    """Yield name, type and knob of every field of a schema class; groups have no knob of their own."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield field.name, hints[field.name], field.metadata.get("knob")


def choices(group: Any) -> dict[str, type]:
    """Return the classes of a group by name; a group with one class only has the empty name.

    >>> from snnlearn.config.schema import SchedulerConfig
    >>> list(choices(SchedulerConfig))
    ['none', 'cosine', 'step']
    """
    if get_origin(group) not in (Union, types.UnionType):
        return {"": group}
    named = {}
    for member in get_args(group):
        (name,) = get_args(typing.get_type_hints(member)["name"])
        named[name] = member
    return named


def validate(cfg: Mapping[str, Any], base: Path | None = None) -> list[Problem]:
    """List everything that is wrong with a composed configuration; an empty list means it can be run.

    `cfg` is what Hydra composed (or a plain mapping); relative paths count from `base` (here, by default).

    >>> [problem.path for problem in validate({"seed": -1})][:2]
    ['seed', 'device']
    """
    return _examine(cfg, base)[1]


def load(cfg: Mapping[str, Any], base: Path | None = None) -> Config:
    """Return the configuration as frozen dataclasses, free of any OmegaConf object.

    Arguments as for `validate`. Raises `ConfigError` with all problems at once.
    """
    config, problems = _examine(cfg, base)
    if config is None:
        raise ConfigError(problems)
    return config


def plain(config: Any) -> Any:
    """Return a configuration as dicts, lists, numbers, strings and None only, for YAML and checkpoints.

    >>> plain((1, Path("/data")))
    [1, '/data']
    """
    if dataclasses.is_dataclass(config):
        return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, tuple | list):
        return [plain(item) for item in config]
    return str(config) if isinstance(config, Path) else config


def _examine(cfg: Mapping[str, Any], base: Path | None) -> tuple[Config | None, list[Problem]]:
    try:
        values: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else dict(cfg)
    except OmegaConfBaseException as error:
        return None, [Problem("${...}", str(error).splitlines()[0], "an interpolation that resolves")]
    check = _Check(base or Path.cwd())
    built = check.build(Config, values, "")
    check.problems.extend(cross_checks(check.values))
    return (None if check.problems else built), check.problems


class _Check:
    """Turn plain values into schema classes, noting every problem and every legal value by its dotted path."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.problems: list[Problem] = []
        self.values: dict[str, Any] = {}

    def build(self, kind: type, values: Mapping[Any, Any], prefix: str) -> Any:
        """Fill `kind`; the result is None where anything in it was wrong."""
        before = len(self.problems)
        declared = {name: (hint, knob) for name, hint, knob in fields(kind)}
        known = [prefix + name for name in declared]
        for key in values:
            if key not in declared:
                got, path = f"{values[key]!r}, but there is no such knob", f"{prefix}{key}"
                self.problems.append(Problem(path, got, ", ".join(known), nearest(path, known)))
        filled = {}
        for name, (hint, knob) in declared.items():
            if knob is None:
                filled[name] = self.group(hint, values.get(name), prefix + name)
            else:
                filled[name] = self.value(hint, knob, values.get(name, "???"), prefix + name)
        return kind(**filled) if len(self.problems) == before else None

    def value(self, hint: Any, knob: Knob, value: Any, path: str) -> Any:
        """Convert one value."""
        if value == "???":
            self.problems.append(Problem(path, "nothing", legal(hint, knob)))
            return None
        try:
            self.values[path] = convert(value, hint, knob, self.base)
        except IllegalValue:
            self.problems.append(_illegal(path, value, hint, knob))
            return None
        return self.values[path]

    def group(self, hint: Any, values: Any, path: str) -> Any:
        """Fill the class of a group that its `name` chooses."""
        named = choices(hint)
        single = "" in named
        if not isinstance(values, Mapping):
            got = "null" if values is None else repr(values)
            allowed = f"a choice, written {path}=NAME" if single else f"one of: {', '.join(named)}"
            self.problems.append(Problem(path, got, allowed, nearest(values, named) if isinstance(values, str) else ""))
            return None
        name = "" if single else values.get("name")
        if name not in named:
            meant = nearest(name, named) if isinstance(name, str) else ""
            self.problems.append(Problem(f"{path}.name", repr(name), f"one of: {', '.join(named)}", meant))
            return None
        built = self.build(named[name], values, f"{path}.")
        if path == "dataset":
            self.values |= {"dataset.kind": named[name], "dataset.built": built}
        return built


def _illegal(path: str, value: Any, hint: Any, knob: Knob) -> Problem:
    names = [name for part in (hint, *get_args(hint)) for name in get_args(part) if isinstance(name, str)]
    meant = nearest(value, names) if isinstance(value, str) else ""
    return Problem(path, repr(value), legal(hint, knob), meant)
