"""The shape of the code: who may import whom, how long things may be, what every public name must say.

Each check is a function of source text or of a module, so that the negative controls at the end can plant a
fault and see it found.
"""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "snnlearn"
FILES = sorted(PACKAGE.rglob("*.py"))
CODE = [*FILES, *sorted((ROOT / "scripts").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
PUBLIC_PACKAGES = ["snnlearn", *(f"snnlearn.{p.parent.name}" for p in sorted(PACKAGE.glob("*/__init__.py")))]

# Lowest first: a file may import from its own layer and from those before it in this list.
LAYERS = ["kernels", "functional", "nn", "rules", "engine", "training", "config"]
# `import snnlearn` alone must do without these, and may import from no layer above the engine.
NOT_NEEDED = ["hydra", "omegaconf", "tensorboard", "sklearn", "torchvision", "matplotlib", "rich", "h5py"]
FILE_LINES, FUNCTION_LINES = 400, 50
BROAD = {"Exception", "BaseException", "everything"}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve"}
# Folders of which every file belongs into the repository, but for those in a folder that a tool keeps for itself.
KEPT = ["snnlearn", "tests", "configs", "scripts", "notebooks", "benchmarks", "docs"]
CACHES = {"__pycache__", ".ipynb_checkpoints", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
# Environment variables read in the package and the scripts; docs/environment.md lists the same ones.
ENVIRONMENT_HOME = ROOT / "docs" / "environment.md"
# Public names whose docstring needs no example: containers that functions with an example return or take,
# and autograd Functions behind one.
NO_EXAMPLE = {
    *("ConvConnection", "ConvEligibility", "Flush", "Jacobian", "LeakTransition", "LinearEligibility", "Spike"),
    *("TraceSource", "Config", "load", "Position"),
}


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def imported_modules(tree: ast.AST, package: str) -> set[str]:
    """Every module of snnlearn that this source imports, in any scope, relative imports made absolute."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return {name for name in found if name == "snnlearn" or name.startswith("snnlearn.")}


def direction_faults(source: str, layer: str, package: str) -> list[str]:
    """Imports of `source`, a file of `layer`, that do not point down."""
    below = {
        "": ["engine", "rules", "nn", "functional"],
        "data": [],
        **{name: LAYERS[:position] for position, name in enumerate(LAYERS)},
    }
    allowed = {layer or "the top level", *below[layer]}
    if layer in ("training", "config"):
        allowed |= {"data", "the top level"}
    folders = {"data", *LAYERS}
    modules = {name: [*name.split("."), ""][1] for name in imported_modules(ast.parse(source), package)}
    targets = {name: part if part in folders else "the top level" for name, part in modules.items()}
    return sorted(f"{layer or 'the top level'} imports {n}" for n, t in targets.items() if t not in allowed)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from its `def` to its end, its docstring not counted."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def size_faults(source: str) -> list[str]:
    """A file of more than 400 lines, and each function of more than 50."""
    count = len(source.splitlines())
    faults = [f"{count} lines, {FILE_LINES} allowed"] if count > FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > FUNCTION_LINES:
            faults.append(f"{node.name}: {body_lines(node)} lines, {FUNCTION_LINES} allowed")
    return faults


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether the handler only cleans up: its last statement is a bare `raise`, so nothing is swallowed."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def habit_faults(source: str) -> list[str]:
    """Broad excepts and pickles."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and not raises_again(node):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = [ast.unparse(one) if one is not None else "everything" for one in caught]
            faults += [f"line {node.lineno}: except {n}" for n in names if n in BROAD]
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            faults += [f"line {node.lineno}: imports {m}" for m in modules if m.split(".")[0] in PICKLES]
    return faults


def leftovers(text: str) -> list[str]:
    """Notes to self, and names of other libraries that came along with a copied line."""
    pattern = r"\b(TODO|FIXME|XXX|HACK)\b|(?i:snntorch|spikingjelly|braintrace|bindsnet|norse|sinabs)"
    return [match.group() for match in re.finditer(pattern, text)]


def environment_reads(source: str) -> set[str]:
    """Names of environment variables read; an expression that is no literal is returned as its source."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            found.add(node.slice)
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
            found.add(node.left)
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            if called.endswith("getenv") or re.search(r"environ\.(get|pop|setdefault)$", called):
                found.add(node.args[0])
    return {str(n.value) if isinstance(n, ast.Constant) else ast.unparse(n) for n in found}


def public_objects(package: str) -> Iterator[tuple[str, object]]:
    """Functions and classes in the package's `__all__`."""
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"{package}.{name}", thing


def has_example(thing: object) -> bool:
    """Whether the docstring, or for a class that of one of its own methods, has a doctest; errors need none."""
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return True
    texts = [inspect.getdoc(thing) or ""]
    if inspect.isclass(thing):
        own = [member for member in vars(thing).values() if isinstance(member, types.FunctionType | property)]
        texts += [member.__doc__ or "" for member in own]
    return any(">>> " in text for text in texts)


def layer_of(path: Path) -> str:
    """The folder of a file; a kernel is a twin of functions in `functional` and may import what they may."""
    parts = path.relative_to(PACKAGE).parts
    if parts[0] == "kernels" and path.name not in ("__init__.py", "dispatch.py"):
        return "functional"
    return parts[0] if len(parts) > 1 else ""


def git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(["git", *words], cwd=root, env=environment, capture_output=True, text=True, timeout=60)


def ignored_files(root: Path) -> list[str]:
    """Files in the source folders under `root` that git leaves out of commits, or would if they were new; no caches.

    What a user ignores everywhere does not count, only the repository's own rules.
    """
    words = ["-c", "core.excludesFile=/dev/null", "ls-files", "-z", "--ignored", "--exclude-standard"]
    listed = [git(root, *words, kind, "--", *KEPT) for kind in ("--others", "--cached")]
    assert [done.stderr for done in listed if done.returncode] == []
    names = {name for done in listed for name in done.stdout.split("\0") if name}
    return sorted(name for name in names if not CACHES & {*Path(name).parts})


def test_there_is_a_package_to_look_at() -> None:
    """A pattern that matches no file would let every test below pass."""
    assert len(FILES) > 20
    assert {layer_of(path) for path in FILES} == {"", "data", *LAYERS}


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_imports_point_down(path: Path) -> None:
    package = ".".join(path.relative_to(ROOT).parts[:-1])
    assert direction_faults(path.read_text(), layer_of(path), package) == []


@pytest.mark.parametrize("path", CODE, ids=ids(CODE))
def test_sizes(path: Path) -> None:
    assert size_faults(path.read_text()) == []


@pytest.mark.parametrize("path", CODE, ids=ids(CODE))
def test_no_broad_except_and_no_pickle(path: Path) -> None:
    assert habit_faults(path.read_text()) == []


@pytest.mark.parametrize("path", [*FILES, *CONFIGS], ids=ids([*FILES, *CONFIGS]))
def test_no_leftovers(path: Path) -> None:
    assert leftovers(path.read_text()) == []


def test_environment_variables_are_documented() -> None:
    """Everything read is in docs/environment.md, and everything that page lists is read."""
    sources = [path.read_text() for path in [*CODE, *sorted((ROOT / "tests").rglob("*.py"))]]
    read = set().union(*map(environment_reads, sources))
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", ENVIRONMENT_HOME.read_text(), flags=re.MULTILINE))
    assert read == documented


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_public_names_are_documented_with_an_example(package: str) -> None:
    objects = dict(public_objects(package))
    undocumented = [name for name, thing in objects.items() if not inspect.getdoc(thing)]
    bare = {name.split(".")[-1] for name, thing in objects.items() if not has_example(thing)}
    assert undocumented == []
    assert sorted(bare - NO_EXAMPLE) == []


def test_the_exemptions_are_needed() -> None:
    """A name is struck from NO_EXAMPLE once it has an example, or once it is gone."""
    objects = [pair for package in PUBLIC_PACKAGES for pair in public_objects(package)]
    assert {name.split(".")[-1] for name, thing in objects if not has_example(thing)} >= NO_EXAMPLE


def test_every_public_name_exists_and_is_full() -> None:
    module = importlib.import_module("snnlearn")
    assert len(module.__all__) == len(set(module.__all__)) > 30
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert [name for name in module.__all__ if re.search(r"_$|^_(?!_)", name)] == []


def test_no_source_file_is_ignored_by_git() -> None:
    """A pattern such as `data/` for a folder at the top also hides new files in tests/data and snnlearn/data."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here to ask")
    top = git(ROOT, "rev-parse", "--show-toplevel")
    if top.returncode or Path(top.stdout.strip()).resolve() != ROOT:
        pytest.skip(f"{ROOT} is no git checkout: {top.stderr.strip() or top.stdout.strip()}")
    assert ignored_files(ROOT) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here to ask")
def test_the_check_for_ignored_files_sees_them(tmp_path: Path) -> None:
    for name in ("tests/data/test_new.py", "tests/data/__pycache__/test_new.pyc", "docs/page.md", "data/big.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    git(tmp_path, "init")
    for rules, hidden in (
        ("__pycache__/\n/data/\n", []),
        ("__pycache__/\ndata/\n", ["tests/data/test_new.py"]),
        ("*.md\n*.pyc\n", ["docs/page.md"]),
    ):
        (tmp_path / ".gitignore").write_text(rules)
        assert ignored_files(tmp_path) == hidden
    git(tmp_path, "add", "--force", "docs/page.md")
    assert ignored_files(tmp_path) == ["docs/page.md"]  # in the repository, but its neighbours would not be


SNAPSHOT = """
import sys, logging
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *rest):
        return None if name.split(".")[0] in {blocked} else self.finder.find_spec(name, *rest)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import torch
def flags():
    backends = torch.backends
    return {{
        "rng": torch.random.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "handlers": list(logging.getLogger().handlers),
        "level": logging.getLogger().level,
        "cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic),
        "tf32": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32),
        "mkldnn": backends.mkldnn.enabled,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "validate": torch.distributions.Distribution._validate_args,
    }}
before = flags()
{statement}
after = flags()
print(sorted(key for key in before if before[key] != after[key]))
"""


def run_snapshot(statement: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    code = SNAPSHOT.format(blocked=set(NOT_NEEDED), statement=statement)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


def test_import_needs_torch_alone_and_changes_nothing(tmp_path: Path) -> None:
    """X08: no Hydra, no TensorBoard, no HOME, another folder; random state, dtype, flags as before."""
    done = run_snapshot("import snnlearn", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_the_snapshot_sees_a_change(tmp_path: Path) -> None:
    done = run_snapshot("torch.manual_seed(1); torch.set_default_dtype(torch.float64)", tmp_path)
    assert done.stdout.strip() == "['dtype', 'rng']", done.stderr


def test_the_block_blocks(tmp_path: Path) -> None:
    done = run_snapshot("import hydra", tmp_path)
    assert done.returncode != 0
    assert "No module named 'hydra'" in done.stderr


def test_the_layer_check_sees_an_upward_import() -> None:
    assert direction_faults("from snnlearn.engine import OnlineLearner", "nn", "snnlearn.nn") != []
    assert direction_faults("def f():\n    from ..rules import OTTT", "nn", "snnlearn.nn") != []
    assert direction_faults("from snnlearn.nn import LIF", "data", "snnlearn.data") != []
    assert direction_faults("import snnlearn.training", "", "snnlearn") != []
    assert direction_faults("from snnlearn import LIF", "nn", "snnlearn.nn") != []
    assert direction_faults("from .neuron import LIF\nfrom .. import functional", "nn", "snnlearn.nn") == []
    assert direction_faults("from snnlearn.data import NMNIST", "training", "snnlearn.training") == []


def test_the_other_checks_see_planted_faults() -> None:
    assert size_faults("\n".join(["x = 1"] * 401)) != []
    assert size_faults("def f():\n" + "    x = 1\n" * 50) != []
    assert size_faults('def f():\n    """' + "a\n" * 60 + '    """\n    x = 1\n') == []
    assert habit_faults("try:\n    pass\nexcept Exception:\n    pass") != []
    assert habit_faults("try:\n    pass\nexcept (ValueError, BaseException):\n    pass") != []
    assert habit_faults("try:\n    pass\nexcept:\n    pass") != []
    assert habit_faults("try:\n    pass\nexcept BaseException:\n    clean_up()\n    raise") == []
    assert habit_faults("def f():\n    import pickle") != []
    assert habit_faults("try:\n    pass\nexcept ValueError:\n    pass") == []
    reads = "os.environ['A']; os.environ.get('B', 1); os.getenv(c); 'D' in os.environ"
    assert environment_reads(reads) == {"A", "B", "c", "D"}
    assert leftovers("x = 1  # TODO later") != []
    assert leftovers("def TodoList(): ...") == []
    assert not has_example(len)
