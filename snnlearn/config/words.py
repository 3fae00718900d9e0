"""Check the words of the command line before Hydra sees them: grammar, groups, choices, names of knobs."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from snnlearn.config.compose import ComposeError, compose_paths, options
from snnlearn.config.problem import Problem, nearest
from snnlearn.config.schema import Config
from snnlearn.config.validate import choices, fields

__all__ = ["Command", "Word", "inspect", "unknown_options"]

_RECIPES = ("experiment", "debug", "local")  # these may be given as a list, or left out


@dataclass(frozen=True)
class Word:
    """One override: its `key`, the override of each job that it makes (one, unless it is a sweep), bad ones apart."""

    key: str
    good: list[str]
    bad: dict[str, Problem]
    group: bool

    @property
    def text(self) -> str:
        """The override as Hydra is to see it: its good values alone."""
        head, sign, _ = self.good[0].partition("=")
        values = ",".join(word.partition("=")[2] for word in self.good)
        return f"{head}{sign}{values}"


@dataclass(frozen=True)
class Command:
    """A command line, checked; `problems` concern every job, and each job of `lost` has one of its own."""

    words: list[Word]
    problems: list[Problem]

    @property
    def overrides(self) -> list[str]:
        """What to hand to Hydra."""
        return [word.text for word in self.words]

    def jobs(self) -> list[list[str]]:
        """Return the overrides of every job that can be composed."""
        return [list(job) for job in product(*(word.good for word in self.words))]

    def lost(self) -> list[tuple[list[str], Problem]]:
        """Return the overrides of every job with a choice that does not exist, and what is wrong."""
        bad = {text: problem for word in self.words for text, problem in word.bad.items()}
        every = product(*([*word.good, *word.bad] for word in self.words))
        return [(list(job), next(bad[w] for w in job if w in bad)) for job in every if not bad.keys().isdisjoint(job)]


def inspect(configs: Path, texts: Sequence[str], multirun: bool, extra: Path | None = None) -> Command:
    """Check the overrides `texts`; `multirun` says whether commas mean a sweep.

    A choice that does not exist costs a sweep only its own jobs, unless it has no other value. `configs` and
    `extra` are folders of YAML files.
    """
    groups = options(configs, extra)
    problems: list[Problem] = []
    words: list[Word] = []
    for text in texts:
        word = _word(text, multirun, groups, problems)
        if word is not None and word.good:
            words.append(word)
        elif word is not None:
            problems.extend(word.bad.values())
    known = _known(configs, words, extra, problems)
    unknown = [word for word in words if not _is_known(word, known)]
    problems.extend(_unknown(word, known, groups) for word in unknown)
    return Command([word for word in words if word not in unknown], problems)


def _word(text: str, multirun: bool, groups: Mapping[str, list[str]], problems: list[Problem]) -> Word | None:
    try:
        (item,) = OverridesParser.create().parse_overrides([text])
    except HydraException as error:
        reason = str(error).splitlines()[0]
        problems.append(
            Problem(
                text, "words that do not parse", "key=value", f"quote odd characters, as in \"key='a=b'\" ({reason})"
            )
        )
        return None
    key = item.key_or_group
    values = list(_values(item))
    if item.is_sweep_override() and not multirun:
        hint = f"for a sweep put -m before it; for a list write {key}=[{','.join(values)}]"
        problems.append(Problem(key, text.partition("=")[2], "one value", hint))
        return None
    if item.is_sweep_override() and not item.is_discrete_sweep():
        problems.append(Problem(key, text.partition("=")[2], "values that can be counted, such as 1,2,3"))
        return None
    if item.is_delete():
        return Word(key, [text], {}, key in groups)
    bad = {}
    if key in groups:
        bad = {v: p for v in values if (p := _choice(key, v, groups[key])) is not None}
    head = key if key in groups else item.get_key_element()  # `+experiment=x` means `experiment=x`
    good = [f"{head}={value}" for value in values if value not in bad]
    return Word(key, good, {f"{head}={value}": p for value, p in bad.items()}, key in groups)


def _values(item: Override) -> Iterator[str]:
    if item.is_discrete_sweep():
        yield from map(str, item.sweep_string_iterator())
    elif not item.is_sweep_override():
        yield item.get_value_element_as_str()


def _choice(group: str, value: str, known: list[str]) -> Problem | None:
    """Say what is wrong with `group=value`, where something is; a list of choices is checked one by one."""
    recipe = group in _RECIPES
    names = [name.strip() for name in value.strip("[]").split(",")] if recipe else [value]
    if all(name in known for name in names):
        return None
    hint = f"leave {group} out for none" if recipe and value == "null" else nearest(value, known)
    return Problem(group, value, f"one of: {', '.join(known)}", hint)


def _known(configs: Path, words: Sequence[Word], extra: Path | None, problems: list[Problem]) -> set[str]:
    """Return every dotted path that exists under the chosen groups (the union, in a sweep over groups)."""
    chosen = [word.good for word in words if word.group]
    known: set[str] = set()
    for job in product(*chosen):
        try:
            known |= compose_paths(configs, job, extra)
        except ComposeError as error:
            problems.append(
                Problem(" ".join(job) or "configs", "files that do not compose", "a set that does", str(error))
            )
            return known
    return known


def _is_known(word: Word, known: set[str]) -> bool:
    adds = word.good[0].startswith("+")  # the check of the whole configuration names what is added wrongly
    return word.group or adds or not known or word.key.startswith("hydra/") or word.key in known


def _unknown(word: Word, known: set[str], groups: Mapping[str, list[str]]) -> Problem:
    ours = sorted(path for path in known if not path.startswith("hydra"))
    group = word.key.partition(".")[0]
    inside = [path for path in ours if path.startswith(f"{group}.") and "." in word.key]
    if not inside:
        inside = sorted({*groups, *(path for path in ours if "." not in path)})
    owners = [f"{group}={name}" for name in _owners(word.key)]
    hint = f"it belongs to {' and '.join(owners)}" if owners else nearest(word.key, ours)
    got = ", ".join(text.partition("=")[2] for text in word.good)
    return Problem(word.key, f"{got}, but there is no such knob", ", ".join(inside), hint)


def unknown_options(others: Sequence[str], argv: Sequence[str]) -> list[Problem]:
    """Say for each word of `argv` that the parser of options left over (`others`) which knob it may mean.

    >>> unknown_options(["--epochs"], ["--epochs", "3"])[0].hint
    'did you mean trainer.epochs=3?'
    """
    return [_unknown_option(word, argv) for word in others if word.startswith("-")] or [
        Problem(word, "a word out of place", "all key=value words side by side") for word in others
    ]


def _unknown_option(word: str, argv: Sequence[str]) -> Problem:
    option, sign, value = word.partition("=")
    after = [*argv, ""][list(argv).index(word) + 1] if not sign and word in argv else value
    value = "VALUE" if not after or after.startswith("--") or "=" in after else after
    knobs: dict[str, str] = {}  # by its dotted path, and by its last word alone
    for group, kind, knob in fields(Config):
        knobs[group] = group
        for member in choices(kind).values() if knob is None else []:
            paths = {f"{group}.{name}": name for name, _, _ in fields(member) if name != "name"}
            for path, leaf in paths.items():
                knobs[path] = path
                knobs.setdefault(leaf, path)
    name = option.lstrip("-").replace("-", "_")
    found = difflib.get_close_matches(name, knobs, n=1, cutoff=0.6)
    hint = f"did you mean {knobs[found[0]]}={value}?" if found else "--help lists every knob"
    return Problem(option, "no option of this script", "key=value", hint)


def _owners(path: str) -> list[str]:
    """Return the choices of a group that do have the knob `path`."""
    group, _, leaf = path.partition(".")
    for name, kind, knob in fields(Config):
        if name == group and knob is None:
            return [choice for choice, member in choices(kind).items() if leaf in {f for f, _, _ in fields(member)}]
    return []
