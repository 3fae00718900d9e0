"""Folders of runs and jobs: their names, and whether they can be made; what the YAML files may ask for by `${...}`."""

import errno
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from snnlearn.config.problem import Problem

__all__ = ["FolderError", "check_folder", "job_folder", "pick", "register_resolvers"]

_LONGEST = 100


def job_folder(overrides: str) -> str:
    """Return a folder name for a job's overrides: the same for the same job, and safe on every file system.

    Unusual characters become `-` and long names are cut; both then end in a short hash of the whole.

    >>> job_folder("rule=ottt,seed=1")
    'rule=ottt,seed=1'
    >>> job_folder("model.hidden=[8,16]")
    'model.hidden=-8,16-_eb48ca'
    >>> job_folder("")
    'default'
    """
    name = re.sub(r"[^\w.,=+-]", "-", overrides)[:_LONGEST]
    if name == overrides:
        return name or "default"
    return f"{name}_{hashlib.sha256(overrides.encode()).hexdigest()[:6]}"


def pick(name: str, values: Mapping[str, Any], otherwise: Any) -> Any:
    """Return the value for `name`, else `otherwise`: `${pick:${dataset.name},{copy:20},8}` in a recipe.

    >>> pick("copy", {"copy": 20}, 8), pick("digits", {"copy": 20}, 8)
    (20, 8)
    """
    return values.get(name, otherwise)


def register_resolvers() -> None:
    """Make `${job_folder:...}` and `${pick:...}` known to the YAML files; safe to call again."""
    OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)
    OmegaConf.register_new_resolver("pick", pick, replace=True)


class FolderError(ValueError):
    """Raised where nothing can be written to the output folder."""


def check_folder(knob: str, folder: Path) -> None:
    """Raise FolderError where nothing can be written to `folder`, which `knob` names.

    The folders above it are made for that, `folder` itself is not left behind.

    >>> try:
    ...     check_folder("hydra.run.dir", Path("/dev/null/a"))
    ... except FolderError as error:
    ...     print(str(error).partition(";")[0])
    hydra.run.dir: got /dev/null/a
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            folder.mkdir()
            folder.rmdir()
        elif not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        reason = f"{error.strerror}: {error.filename!r}"
        problem = Problem(knob, str(folder), "a folder that can be made and written to", reason)
        raise FolderError(str(problem)) from error
