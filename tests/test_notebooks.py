"""Every notebook runs from top to bottom, and every claim that names a test has one."""

import ast
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FACTS = [ROOT / "tests" / f"test_{name}_facts.py" for name in ("autograd", "traced_product")]
SECONDS = 120
LARGEST = 200_000


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run every cell in a kernel of its own, in the notebooks' folder; CellExecutionError at the first failure."""
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "notebooks")}},
    )
    return client.execute()


def names_of_tests(source: str) -> set[str]:
    return {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    done = execute(notebook)
    cells = [cell for cell in done.cells if cell.cell_type == "code"]
    assert len(cells) > 5
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_every_claim_about_autograd_is_a_test() -> None:
    """The notebook names exactly the tests of the two files of facts."""
    notebook = nbformat.read(ROOT / "notebooks" / "01_version_safe_traces.ipynb", as_version=4)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    named = set(re.findall(r"`(test_[a-z_]+)`", prose))
    assert named == set().union(*(names_of_tests(facts.read_text()) for facts in FACTS))


def test_a_failing_cell_fails() -> None:
    planted = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 + 1 == 3")])
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        execute(planted)
