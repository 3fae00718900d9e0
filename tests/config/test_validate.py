"""Every wrong value is told, all at once, with its path, the value, what is legal and the nearest match."""

import dataclasses
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf
from runs import CONFIGS, composed

from snnlearn.config import Config, ConfigError, load, plain, validate
from snnlearn.config.compose import ComposeError
from snnlearn.config.knob import IllegalValue, Knob, convert, legal
from snnlearn.config.schema_rules import RuleConfig
from snnlearn.config.validate import choices, fields
from snnlearn.kernels import dispatch

FILES = sorted(CONFIGS.rglob("*.yaml"))
RULE_NAMES = ", ".join(get_args(kind.__annotations__["name"])[0] for kind in get_args(RuleConfig))


def test_defaults_are_legal_and_frozen() -> None:
    config = load(composed())
    assert (config.dataset.name, config.model.name, config.rule.name) == ("digits", "mlp", "ottt")
    assert config.model.hidden == (512,)  # type: ignore[union-attr]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 2  # type: ignore[misc]


def words_for(path: Path) -> list[str]:
    """The command-line words that take a shipped file into the configuration."""
    relative = path.relative_to(CONFIGS)
    return [] if len(relative.parts) == 1 else [f"{relative.parent}={path.stem}"]


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(CONFIGS)) for path in FILES])
def test_every_shipped_file_composes_and_is_legal(path: Path) -> None:
    words = words_for(path)
    if words == ["loss=squared_error"]:
        words.append("dataset=pattern_generation")  # the loss of numbers to follow
    if words and words[0].startswith("scheduler="):
        assert validate(composed(*words, "trainer.epochs=7")) == []
    assert validate(composed(*words)) == []


def test_no_file_was_passed_over() -> None:
    """As many files as on disk, and as many choices as the schema has."""
    on_disk = sum(name.endswith(".yaml") for _, _, names in os.walk(CONFIGS) for name in names)
    assert len(FILES) == on_disk > 25
    for group, kind, knob in fields(Config):
        if knob is None and "" not in choices(kind):
            assert sorted(path.stem for path in (CONFIGS / group).glob("*.yaml")) == sorted(choices(kind))


def test_file_and_schema_have_the_same_knobs() -> None:
    """Negative control: a knob too many or too few in a file is seen."""
    values = plain(load(composed()))
    assert validate(values) == []
    for group in ("neuron", "trainer", "logger", "dataset"):
        for knob in values[group]:
            missing = {**values, group: {key: value for key, value in values[group].items() if key != knob}}
            assert [problem.path for problem in validate(missing)] == [f"{group}.{knob}"]
        extra = {**values, group: {**values[group], "surplus": 1}}
        assert [problem.path for problem in validate(extra)] == [f"{group}.surplus"]


ILLEGAL: list[tuple[str, str]] = [
    ("trainer.epochs=-1", "trainer.epochs: got -1; legal: a whole number >= 1"),
    ("trainer.epochs=1.5", "trainer.epochs: got 1.5; legal: a whole number >= 1"),
    ("trainer.epochs=true", "trainer.epochs: got True"),
    ("trainer.epochs=null", "trainer.epochs: got None"),
    ("trainer.update=sequenc", "did you mean sequence?"),
    ("model.hidden=[0]", "model.hidden: got [0]; legal: a list of whole numbers >= 1"),
    ("model.hidden=[]", "model.hidden: got []"),
    ("model.dropout=1", "model.dropout: got 1; legal: a number >= 0, < 1"),
    ("model.readout=leeky", "legal: one of: leaky, static; did you mean leaky?"),
    ("neuron.threshold=-1", "neuron.threshold: got -1; legal: a number > 0"),
    ("neuron.threshold=0", "neuron.threshold: got 0"),
    ("neuron.threshold=nan", "neuron.threshold: got nan"),
    ("neuron.threshold=inf", "neuron.threshold: got inf"),
    ("neuron.tau=0.5", "neuron.tau: got 0.5; legal: a number > 1 (steps) while neuron.dt is null"),
    ("neuron.dt=0", "neuron.dt: got 0; legal: a number > 0, or null"),
    ("neuron.detach_reset=yes_please", "neuron.detach_reset: got 'yes_please'; legal: true or false"),
    ("neuron.learn=[tau]", "neuron.learn: got ['tau']; legal: a list, empty or of any of: decay, threshold, initial"),
    ("neuron.learn=decy", "did you mean decay?"),
    ("neuron.learn=null", "neuron.learn: got None"),
    ("optimizer.lr=fast", "optimizer.lr: got 'fast'; legal: a number > 0"),
    ("optimizer.betas=[0.9]", "optimizer.betas: got [0.9]; legal: 2 numbers >= 0, < 1"),
    ("seed=-1", "seed: got -1"),
    ("dataset.steps=null", "dataset.steps: got null; legal: a whole number >= 1 while dataset.by is number"),
    ("dataset.validation=1", "dataset.validation: got 1"),
    ("loss.last_steps=21", "loss.last_steps: got 21; legal: at most dataset.steps, which is 20"),
    ("trainer.update=21", "trainer.update: got 21; legal: at most dataset.steps, which is 20"),
    ("device=tpu", "device: got 'tpu'; legal: one of: auto, cpu, cuda"),
    ("+trainer.epoch=1", "trainer.epoch: got 1, but there is no such knob"),
    ("+trainr=1", "did you mean trainer?"),
    ("~trainer.epochs", "trainer.epochs: got nothing; legal: a whole number >= 1"),
    ("~rule", f"rule: got null; legal: one of: {RULE_NAMES}"),
    ("rule.name=sltd", f"rule.name: got 'sltd'; legal: one of: {RULE_NAMES}; did you mean sltt?"),
]


@pytest.mark.parametrize(("word", "told"), ILLEGAL)
def test_illegal_values_are_told(word: str, told: str) -> None:
    problems = validate(composed(word))
    assert len(problems) == 1
    assert told in str(problems[0])


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["rule=bptt", "trainer.update=2"], "trainer.update"),
        (["rule=drtrl", "model=convolutional"], "trainer.chunk"),
        (["rule=eprop", "model=convolutional", "trainer.chunk=auto"], "rule.broadcast"),
        (["rule=eprop", "model.hidden=[8,8]"], "rule.broadcast"),
        (["rule=sltt_k", "rule.steps=21"], "rule.steps"),
        (["rule=s_tllr", "rule.last_steps=21"], "rule.last_steps"),
        (["rule=ndot", "model.dropout=0.1"], "model.dropout"),
        (["rule=ndot", "model=convolutional", "model.readout=static"], "model.pool"),
        (["rule=ndot", "model=convolutional", "model.pool=1"], "model.readout"),
        (["rule=tbptt", "rule.window=3", "trainer.update=4"], "trainer.update"),
        (["optimizer.fptt_alpha=0.2"], "trainer.update"),
        (["optimizer=sgd", "optimizer.nesterov=true", "optimizer.momentum=0"], "optimizer.nesterov"),
        (["model=convolutional", "model.kernel_size=[3,4]"], "model.kernel_size"),
        (["model=convolutional", "model.channels=[4,4,4,4,4,4]"], "model.pool"),
        (["neuron=alif", "neuron.tau_adaptation=1"], "neuron.tau_adaptation"),
        (["dataset=copy", "model=convolutional"], "model"),
        (["dataset=pattern_generation", "loss=mse"], "loss"),
        (["loss=squared_error"], "loss"),
        (["dataset=qtdb", "loss.readout=running_mean"], "loss.readout"),
        (["dataset=copy", "dataset.symbols=2"], "dataset.train"),
        (["dataset=delayed_xor", "dataset.noise=0.9"], "dataset.noise"),
        (["dataset=delayed_xor", "loss.last_steps=36"], "loss.last_steps"),
        (["dataset=delayed_xor", "trainer.update=36"], "trainer.update"),
        (["dataset=evidence_accumulation", "dataset.cues=4"], "dataset.cues"),
        (["dataset=evidence_accumulation", "neuron.tau=0.02", "neuron.dt=0.002"], "neuron.dt"),
        (["dataset=store_recall", "dataset.store=0.9"], "dataset.recall"),
        (["dataset=pattern_generation", "dataset.length=10"], "dataset.length"),
        (["dataset=smnist", "dataset.chunk=5"], "dataset.chunk"),
        (["neuron=cuba_lif", "neuron.tau_synapse=0.9"], "neuron.tau_synapse"),
        (["neuron=if", "neuron.learn=[decay]"], "neuron.learn"),
        (["neuron=alif", "neuron.adaptation=0", "neuron.learn=[adaptation]"], "neuron.adaptation"),
    ],
)
def test_knobs_that_do_not_go_together(words: list[str], path: str) -> None:
    assert [problem.path for problem in validate(composed(*words))] == [path]


@pytest.mark.parametrize(
    "words",
    [
        ["neuron.tau=0.02", "neuron.dt=0.001"],
        ["dataset.by=duration", "dataset.steps=null", "trainer.update=50"],
        ["rule=tbptt", "rule.window=3", "trainer.update=6"],
        ["trainer.update=20", "loss.last_steps=20"],
        ["model=convolutional", "model.kernel_size=[3,5]"],
        ["optimizer.lr=1e-3"],
        ["optimizer.fptt_alpha=0.2", "trainer.update=1"],
        ["trainer.resume=auto"],
        ["dataset=delayed_xor", "loss.last_steps=35", "trainer.update=35"],
        ["dataset=evidence_accumulation", "dataset.dt_ms=5", "neuron.tau=0.02", "neuron.dt=0.005"],
        ["dataset=smnist", "dataset.chunk=1", "model=recurrent", "rule=drtrl"],
        ["dataset=qtdb", "trainer.update=2000"],
        ["dataset=delayed_xor", "debug=fast"],
    ],
)
def test_legal_combinations(words: list[str]) -> None:
    assert validate(composed(*words)) == []


@pytest.mark.parametrize(("path", "told"), [("refrence", "did you mean reference?"), ("triton", "on the CPU")])
def test_kernels_of_the_environment_are_checked(monkeypatch: pytest.MonkeyPatch, path: str, told: str) -> None:
    monkeypatch.setattr(dispatch, "_interpreting", lambda: False)
    monkeypatch.setattr(dispatch, "_chosen", [dispatch.Choice(path, True, dispatch.ENVIRONMENT)])
    (problem,) = validate(composed("device=cpu"))
    assert str(problem).startswith(f"SNNLEARN_KERNELS: got {path}; legal: ")
    assert told in problem.hint


def test_a_broken_interpolation_is_told() -> None:
    (problem,) = validate(OmegaConf.create({"seed": "${oc.env:NO_SUCH_VARIABLE}"}))
    assert "NO_SUCH_VARIABLE" in problem.got
    with pytest.raises(ComposeError, match="NO_SUCH_VARIABLE"):
        composed("neuron.tau=${oc.env:NO_SUCH_VARIABLE}")


def test_everything_wrong_is_told_at_once() -> None:
    words = ["trainer.epochs=-1", "model.hidden=[0]", "neuron.threshold=-1", "neuron.tau=0.5", "seed=x", "+typo=1"]
    problems = validate(composed(*words))
    told = {problem.path for problem in problems}
    assert told == {"trainer.epochs", "model.hidden", "neuron.threshold", "neuron.tau", "seed", "typo"}
    with pytest.raises(ConfigError, match="6 problems; nothing was built") as caught:
        load(composed(*words))
    assert all(path in str(caught.value) for path in told)


def test_everything_wrong_with_a_task_is_told_at_once() -> None:
    """Together with what is wrong elsewhere, also where a knob of the task is not legal by itself."""
    words = ["dataset=evidence_accumulation", "dataset.cues=4", "dataset.dt_ms=7", "loss=squared_error"]
    told = {problem.path for problem in validate(composed(*words, "model=convolutional", "trainer.epochs=0"))}
    lengths = {"dataset.cue_ms", "dataset.spacing_ms", "dataset.recall_ms"}
    assert told == {"dataset.cues", *lengths, "loss", "model", "trainer.epochs"}
    alone = validate(composed(*words, "dataset.group=0", "model=convolutional"))
    assert {problem.path for problem in alone} == {"dataset.group", "loss", "model"}


def test_messages_name_the_value_that_was_given() -> None:
    (problem,) = validate(composed("optimizer.lr=-1e-3"))
    assert "-0.001" in str(problem)


def contents(thing: Any) -> list[Any]:
    """The thing and everything reachable in it."""
    if dataclasses.is_dataclass(thing):
        return [thing, *(part for field in dataclasses.fields(thing) for part in contents(getattr(thing, field.name)))]
    if isinstance(thing, dict):
        return [thing, *(part for value in thing.values() for part in contents(value))]
    if isinstance(thing, list | tuple):
        return [thing, *(part for value in thing for part in contents(value))]
    return [thing]


def test_no_omegaconf_leaves_the_configuration() -> None:
    """H07: lists are tuples, and no container of OmegaConf is reachable; also not from the plain form."""
    config = load(composed("model=convolutional", "model.kernel_size=[3,5]"))
    assert config.model.kernel_size == (3, 5)  # type: ignore[union-attr]
    assert isinstance(config.optimizer.betas, tuple)  # type: ignore[union-attr]
    for form in (config, plain(config)):
        assert not [part for part in contents(form) if isinstance(part, DictConfig | ListConfig)]
    assert {type(part) for part in contents(plain(config))} <= {dict, list, int, float, str, bool, type(None)}
    assert load(plain(config)) == config


def test_a_number_stands_for_a_list() -> None:
    """H04: `-m model.hidden=8,16` gives one number to each job."""
    assert load(composed("model.hidden=8")).model.hidden == (8,)  # type: ignore[union-attr]
    assert load(composed("model=convolutional", "model.kernel_size=3")).model.kernel_size == (3, 3)  # type: ignore[union-attr]


def test_relative_paths_count_from_the_given_folder(tmp_path: Path) -> None:
    """H01: absolute in the checked configuration, whatever the working folder is later."""
    config = load(composed("dataset=nmnist", "dataset.root=./data"), base=tmp_path)
    assert config.dataset.root == tmp_path.resolve() / "data"  # type: ignore[union-attr]
    absolute = load(composed("dataset=nmnist", "dataset.root=/data/n"), base=tmp_path)
    assert absolute.dataset.root == Path("/data/n")  # type: ignore[union-attr]


def test_numbers_keep_their_type() -> None:
    config = load(composed("optimizer.lr=1", "optimizer.weight_decay=1e-3"))
    assert isinstance(config.optimizer.lr, float)
    assert config.optimizer.weight_decay == 0.001
    with pytest.raises(IllegalValue):
        convert(1.0, int, Knob(help=""), Path())
    with pytest.raises(IllegalValue):
        convert("1", float, Knob(help=""), Path())


def test_every_knob_is_documented() -> None:
    for _, kind, knob in fields(Config):
        groups = [knob] if knob is not None else [k for member in choices(kind).values() for _, _, k in fields(member)]
        assert all(entry is not None and entry.help for entry in groups)


def test_ranges_in_words() -> None:
    assert legal(float, Knob(help="", above=1, unit="steps")) == "a number > 1 (steps)"
    assert legal(tuple[float, float], Knob(help="", at_least=0, below=1)) == "2 numbers >= 0, < 1"
