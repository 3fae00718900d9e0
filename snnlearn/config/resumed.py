"""The words of a resumed run: those of the run it continues, with the present ones over them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from snnlearn.config.resume import find_latest, run_folder
from snnlearn.config.schema import Config
from snnlearn.config.validate import plain
from snnlearn.training import find_checkpoint

__all__ = ["resumed_words"]

log = logging.getLogger(__name__)


def resumed_words(config: Config, words: Sequence[str]) -> list[str]:
    """Return the words of the command line with what `trainer.resume` implies.

    The earlier run's own words come first, so `trainer.resume=FOLDER` alone continues it, and the folder of
    that run is used again unless `hydra.run.dir` is given. Raises CheckpointError where there is nothing to
    resume.
    """
    keys = {_key(word) for word in words}
    resume = config.trainer.resume
    if resume is None or (resume == "auto" and "hydra.run.dir" in keys):
        return list(words)
    if isinstance(resume, Path):
        checkpoint = find_checkpoint(resume)
    else:
        latest = find_latest(Path.cwd() / "outputs", plain(config))
        if latest is None:
            return list(words)
        checkpoint = latest
    folder = run_folder(checkpoint)
    earlier = [word for word in _stored_words(folder) if _key(word) not in keys | {"trainer.resume"}]
    here = [] if "hydra.run.dir" in keys else [f"hydra.run.dir={_quoted(folder)}"]
    return [*earlier, *words, *here]


def _key(word: str) -> str:
    key: str = OverridesParser.create().parse_override(word).key_or_group
    return key


def _stored_words(folder: Path) -> list[str]:
    path = folder / ".hydra" / "overrides.yaml"
    return [str(word) for word in OmegaConf.load(path)] if path.is_file() else []


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
