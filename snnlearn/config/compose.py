"""Compose the YAML files and the command line with Hydra."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from snnlearn.config.folders import register_resolvers
from snnlearn.config.schema import Config
from snnlearn.config.validate import fields

__all__ = [
    "ComposeError",
    "choice_values",
    "compose_paths",
    "compose_values",
    "leaf_paths",
    "options",
    "output_folder",
    "sweep_words",
]


class ComposeError(ValueError):
    """Raised with Hydra's message, on one line, where a configuration cannot be composed."""


def compose_values(configs: Path, overrides: Sequence[str], extra: Path | None = None) -> dict[str, Any]:
    """Compose `configs`/train.yaml with `overrides` into plain values, interpolations resolved.

    `extra` is a further folder of YAML files. Raises `ComposeError` with Hydra's message.
    """
    with _composed(configs, overrides, extra) as composed:
        for key in list(composed):
            if key == "hydra":
                del composed[key]
        values: Any = OmegaConf.to_container(composed, resolve=True)
    return dict(values)


def compose_paths(configs: Path, overrides: Sequence[str], extra: Path | None = None) -> set[str]:
    """Return the dotted path of every knob and group of a composition, Hydra's own among them; else as above."""
    with _composed(configs, overrides, extra) as composed:
        values: Any = OmegaConf.to_container(composed, resolve=False)
    return set(leaf_paths(values))


def output_folder(configs: Path, overrides: Sequence[str], knob: str, extra: Path | None = None) -> Path | None:
    """Return the folder that `knob`, such as `hydra.run.dir`, names; None where only a running job knows it.

    Other arguments and errors as for `compose_values`.
    """
    with _composed(configs, overrides, extra) as composed:
        try:
            return Path.cwd() / str(OmegaConf.select(composed, knob, throw_on_missing=True))
        except InterpolationResolutionError:  # such as ${hydra:runtime.choices.rule}
            return None


def sweep_words(configs: Path, overrides: Sequence[str], extra: Path | None = None) -> list[str]:
    """Return the axes of a sweep that a recipe brings, `hydra.sweeper.params`, as words of the command line.

    Another sweeper than Hydra's own reads that in its own way, so it gets none here. Other arguments and errors as for
    `compose_values`.
    """
    with _composed(configs, overrides, extra) as composed:
        sweeper: Any = OmegaConf.to_container(composed.hydra.sweeper, resolve=True)
    if not sweeper["_target_"].endswith(".BasicSweeper"):
        return []
    return [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]


@contextmanager
def _composed(configs: Path, overrides: Sequence[str], extra: Path | None) -> Iterator[Any]:
    register_resolvers()
    search = [f"hydra.searchpath=['file://{extra.resolve()}']"] if extra is not None else []
    try:
        with initialize_config_dir(str(configs), job_name="train", version_base="1.3"):
            composed = compose("train", overrides=[*overrides, *search], return_hydra_config=True)
        with open_dict(composed):
            yield composed
    except (HydraException, OmegaConfBaseException) as error:
        raise ComposeError(" ".join(str(error).split())) from error


def options(configs: Path, extra: Path | None = None) -> dict[str, list[str]]:
    """Return every group and its choices, as the YAML files on disk say."""
    found: dict[str, set[str]] = {}
    for folder in (configs, *([extra] if extra is not None else [])):
        for path in folder.glob("*/*.yaml"):
            found.setdefault(path.parent.name, set()).add(path.stem)
    return {group: sorted(names) for group, names in sorted(found.items())}


def choice_values(configs: Path) -> dict[str, dict[str, Any]]:
    """Return the values in every choice's YAML file, by `group/name`."""
    groups = {name for name, _, knob in fields(Config) if knob is None}
    values: dict[str, dict[str, Any]] = {}
    for path in sorted(configs.glob("*/*.yaml")):
        if path.parent.name in groups:
            content: Any = OmegaConf.to_container(OmegaConf.load(path))
            values[f"{path.parent.name}/{path.stem}"] = content
    return values


def leaf_paths(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every knob and of every group in a nested mapping.

    >>> list(leaf_paths({"seed": 1, "rule": {"name": "ottt"}}))
    ['seed', 'rule', 'rule.name']
    """
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaf_paths(value, f"{prefix}{key}.")
