"""The command line of `scripts/train.py`: check everything, then let Hydra run the job or the sweep.

Exit codes: 0 done, 1 training failed (or a job of a sweep did), 2 wrong usage or data, 130 interrupted.
"""

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from snnlearn.config.comparison import write_comparison
from snnlearn.config.compose import (
    ComposeError,
    choice_values,
    compose_values,
    options,
    output_folder,
    sweep_words,
)
from snnlearn.config.folders import FolderError, check_folder, register_resolvers
from snnlearn.config.help import help_text
from snnlearn.config.problem import ConfigError, Problem
from snnlearn.config.resumed import resumed_words
from snnlearn.config.run import finished_before, finished_resumed, run, summary_line
from snnlearn.config.sweep import USER_ERRORS, Job, SweepTable
from snnlearn.config.validate import load, validate
from snnlearn.config.words import Command, inspect, unknown_options
from snnlearn.training import CheckpointError, Interrupted, TrainingError

__all__ = ["exit_code", "train"]

log = logging.getLogger(__name__)


def train(configs: Path) -> None:
    """Run the command line of `scripts/train.py`; `configs` is the folder of YAML files. Ends the process."""
    try:
        sys.exit(_train(configs))
    except KeyboardInterrupt:
        print("stopped at once; the last checkpoint, if there is one, is whole", file=sys.stderr)
        sys.exit(130)


def exit_code(error: BaseException) -> int:
    """Return the exit code that an error means.

    >>> exit_code(ConfigError([])), exit_code(TrainingError("disk full"))
    (2, 1)
    """
    if isinstance(error, Interrupted):
        return 130
    return 1 if isinstance(error, TrainingError) else 2


def _train(configs: Path) -> int:
    args, others = get_args_parser().parse_known_args()
    if others:
        lines = "\n  ".join(map(str, unknown_options(others, sys.argv[1:])))
        print(f"error: knobs are written key=value, without dashes:\n  {lines}", file=sys.stderr)
        return 2
    if args.help:
        _show(_help(configs))
        return 0
    command = Command([], [])
    hydra_only = args.hydra_help or args.info is not None or args.shell_completion
    if not (hydra_only or args.config_name or args.config_path or args.experimental_rerun):
        try:
            command = check(configs, args)
            summary = None if args.cfg else _finished(configs, args, command)
        except (ConfigError, CheckpointError, FolderError) as error:
            print(f"error: {error}", file=sys.stderr)
            return exit_code(error)
        if summary is not None:
            more = f"for more, give trainer.epochs a number above {summary['epochs']}"
            print(f"the run is finished already, and nothing was changed; {more}", file=sys.stderr)
            print(summary_line(summary))
            return 0
        flags = [word for word in sys.argv[1:] if word not in args.overrides]
        sys.argv[1:] = [*flags, *command.overrides]
    register_resolvers()
    task = _Task(command)
    hydra.main(version_base="1.3", config_path=str(configs), config_name="train")(task.__call__)()
    if task.table is not None:
        task.compare()
    if task.table is not None and task.table.failed:
        names = "\n  ".join(task.table.failed)
        print(f"{len(task.table.failed)} failed, see {task.table.path}:\n  {names}", file=sys.stderr)
        return 1
    return 0


def check(configs: Path, args: argparse.Namespace) -> Command:
    """Check words and values of a command line, and return what to hand to Hydra.

    Raises ConfigError with everything that is wrong; in a sweep, with what is wrong in every job.
    """
    extra = Path(args.config_dir) if args.config_dir else None
    multirun = _is_sweep(args)
    axes = _axes(configs, args.overrides, extra) if multirun else []
    command = inspect(configs, [*axes, *args.overrides], multirun, extra)
    jobs = command.jobs()
    found = [_job_problems(configs, job, extra) for job in (jobs if not command.problems else jobs[:1])]
    if command.problems or all(found):
        every = [*command.problems, *(problem for problems in found for problem in problems)]
        raise ConfigError(dict.fromkeys(every))
    if multirun:
        return command
    config = load(compose_values(configs, command.overrides, extra))
    words = resumed_words(config, args.overrides)
    if words == args.overrides:
        return command
    args = argparse.Namespace(**{**vars(args), "overrides": words})
    return check_resumed(configs, args, extra)


def check_resumed(configs: Path, args: argparse.Namespace, extra: Path | None) -> Command:
    """Check again the words of a resumed run, which has taken over those of the run that it continues."""
    command = inspect(configs, args.overrides, False, extra)
    problems = [*command.problems, *_job_problems(configs, command.overrides, extra)]
    if problems:
        raise ConfigError(problems)
    return command


def _axes(configs: Path, overrides: Sequence[str], extra: Path | None) -> list[str]:
    """Return the axes that the recipe of a sweep brings, as words, without those that the command line gives anew."""
    first = inspect(configs, overrides, True, extra)
    if first.problems:
        return []
    given = {word.key for word in first.words}
    try:
        axes = sweep_words(configs, first.jobs()[0], extra)
    except ComposeError:  # told by the check of the jobs
        return []
    return [word for word in axes if word.partition("=")[0] not in given]


def _is_sweep(args: argparse.Namespace) -> bool:
    return args.multirun or any(word.upper() == "HYDRA.MODE=MULTIRUN" for word in args.overrides)


def _finished(configs: Path, args: argparse.Namespace, command: Command) -> dict[str, Any] | None:
    """Return the summary of the finished run that a command resumes, before Hydra writes to its folder.

    Raises FolderError where the output folder cannot be made.
    """
    extra = Path(args.config_dir) if args.config_dir else None
    knob = "hydra.sweep.dir" if _is_sweep(args) else "hydra.run.dir"
    sound = next(job for job in command.jobs() if not _job_problems(configs, job, extra))
    folder = output_folder(configs, sound, knob, extra)
    if folder is None:
        return None
    if not _is_sweep(args):
        summary = finished_resumed(load(compose_values(configs, command.overrides, extra)), folder)
        if summary is not None:
            return summary
    check_folder(knob, folder)
    return None


def _job_problems(configs: Path, overrides: Sequence[str], extra: Path | None) -> list[Problem]:
    try:
        return validate(compose_values(configs, overrides, extra))
    except ComposeError as error:
        return [Problem(" ".join(overrides) or "configs", "words that do not go together", "others", str(error))]


def _show(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help(configs: Path) -> str:
    groups = options(configs)
    recipes = [f"{group}={'|'.join(groups[group])}  (recipes over all groups)" for group in ("experiment", "debug")]
    return help_text(compose_values(configs, []), choice_values(configs), "\n".join(recipes))


class _Task:
    """What Hydra calls for a run, and for every job of a sweep; `table` is the sweep's, once it has begun."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.table: SweepTable | None = None

    def __call__(self, cfg: Mapping[str, Any]) -> float | None:
        context = HydraConfig.get()
        if context.mode == RunMode.MULTIRUN:
            return self._job(cfg, Path(context.runtime.output_dir), Path(context.runtime.cwd))
        try:
            summary = run(load(cfg, Path(context.runtime.cwd)), Path(context.runtime.output_dir))
        except USER_ERRORS as error:
            log.error("%s%s", error, _hint(error, f"trainer.resume={context.runtime.output_dir}"))
            raise SystemExit(exit_code(error)) from error
        print(summary_line(summary))
        return _objective(summary)

    def _job(self, cfg: Mapping[str, Any], folder: Path, cwd: Path) -> float | None:
        context = HydraConfig.get()
        if self.table is None:
            self.table = SweepTable((cwd / context.sweep.dir).resolve())
            self.table.put_lost(self.command.lost())
        summary = None
        try:
            with Job(self.table, folder.name, list(context.overrides.task)) as job:
                job.row["seed"] = cfg.get("seed")
                job.row |= {group: (cfg.get(group) or {}).get("name") for group in ("dataset", "model", "rule")}
                config = load(cfg, cwd)
                summary = finished_before(config, folder)
                if summary is not None:
                    log.info("job %s is finished already; delete its folder to run it again", folder.name)
                else:
                    summary = run(config, folder, in_sweep=True)
                    print(summary_line(summary))
                job.finish(summary)
        except Interrupted as error:
            same = f"-m {' '.join(self.command.overrides)} hydra.sweep.dir={self.table.path.parent}"
            self.compare()
            log.error("%s%s", error, _hint(error, same))
            raise SystemExit(130) from error
        return None if summary is None else _objective(summary)

    def compare(self) -> None:
        """Write and print the comparison of rules, where the sweep has more than one."""
        assert self.table is not None
        text = write_comparison(self.table.path.parent, self.table.rows().values())
        if text is not None:
            print(f"\n{text}\nsummary.csv, comparison.csv and comparison.md are in {self.table.path.parent}")


def _objective(summary: Mapping[str, Any]) -> float:
    """Return what a search over knobs maximises: accuracy, or minus the loss where the targets are numbers."""
    accuracy, loss = summary["test_accuracy"], summary["test_loss"]
    return float(accuracy) if accuracy is not None else -float("inf" if loss is None else loss)


def _hint(error: BaseException, words: str) -> str:
    return f"\ngo on with: python {sys.argv[0]} {words}" if isinstance(error, Interrupted) else ""
