"""What the README and CONTRIBUTING say is so: their code runs; commands, links and tables match the repository."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from snnlearn import RULES

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(path: Path) -> subprocess.CompletedProcess[str]:
    """Run all blocks of a document as one program, in a process of its own, warnings being errors."""
    program = "\n".join(blocks(path.read_text(), "python"))
    assert program.count("\n") > 8
    done = subprocess.run(
        [sys.executable, "-W", "error:::__main__", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_python_of_the_contributors_document_runs() -> None:
    run(ROOT / "CONTRIBUTING.md")


def test_the_library_example_runs_and_learns() -> None:
    (program,) = blocks(README, "python")
    assert 12 <= len([line for line in program.splitlines() if line.strip()]) <= 25
    losses = [float(value) for value in re.findall(r"loss (\d+\.\d+)", run(ROOT / "README.md").stdout)]
    assert len(losses) >= 2
    assert losses[-1] < 0.7 * losses[0]


def test_the_table_of_rules_lists_every_rule() -> None:
    cells = re.findall(r"^\| (`[^|]+) \|", README, flags=re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)\(\)`", cell)]
    assert sorted(named) == sorted({rule.__name__ for rule in RULES.values()})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(path: Path) -> None:
    text = path.read_text()
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in t]
    named = re.findall(r"`((?:snnlearn|tests|docs|notebooks|benchmarks|configs|scripts)/[\w./]+\.\w+)`", text)
    missing = [t for t in [*targets, *named] if "NAME" not in t and not (ROOT / t).exists()]
    assert missing == []


def test_the_readme_commands_are_make_targets_and_scripts() -> None:
    lines = [line for block in blocks(README, "bash") for line in block.splitlines() if line.strip()]
    assert {"make train", "make test"} <= {re.sub(r"\s*#.*", "", line) for line in lines}
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z]+)", "\n".join(lines)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for script in re.findall(r"python (\S+\.py)", "\n".join(lines)):
        assert (ROOT / script).is_file(), script
