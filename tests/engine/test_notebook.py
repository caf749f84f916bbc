"""A notebook trains, shows the run, plots it, makes a pandas table of it, and loads it again, without a warning."""

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support.processes import PATIENCE

CELLS = (
    """
import warnings
warnings.simplefilter("always")
import paceline, torch
task = paceline.Task(
    torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy,
    train=(torch.randn(64, 3), torch.arange(64) % 2), test=(torch.randn(16, 3), torch.arange(16) % 2),
)
run = paceline.train(
    task, strategy="asgd", fleet=paceline.SimulatedFleet(paceline.delays.Constant(1.0), workers=4),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), stop=paceline.Stop(updates=30), batch_size=8,
    directory="run",
)
""",
    "run",
    "run.plot()",
    "run.to_pandas()",
    "paceline.load_run('run')",
    "print(repr(paceline.load_run('run')))",
)
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 4,
    "metadata": {},
    "cells": [
        {"cell_type": "code", "source": text, "metadata": {}, "outputs": [], "execution_count": None} for text in CELLS
    ],
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The outputs of each cell."""
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name))
        notebook = nbformat.from_dict(NOTEBOOK)  # type: ignore[no-untyped-call]
        client = NotebookClient(
            notebook, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    return [cell.outputs for cell in notebook.cells]


def kinds(outputs: list[Any]) -> list[str]:
    return [output.output_type for output in outputs]


def test_nothing_is_written_to_stderr(outputs: list[list[Any]]) -> None:
    assert [output.text for cell in outputs for output in cell if output.get("name") == "stderr"] == []


def test_progress_is_one_line_of_text_that_was_kept_up_to_date(outputs: list[list[Any]]) -> None:
    (line,) = outputs[0]
    assert line.output_type == "display_data"
    assert [*line.data] == ["text/plain"]
    assert line.data["text/plain"].startswith(f"Asynchronous  |{'█' * 20}|  100%  update 30/30  time ")


def test_a_run_is_a_table_and_a_picture(outputs: list[list[Any]]) -> None:
    for number in (1, 4):
        (shown,) = outputs[number]
        assert "<table>" in shown.data["text/html"]
        assert "data:image/png;base64," in shown.data["text/html"]
        assert shown.data["text/plain"].startswith("Run(ended=updates, updates=30,")


def test_a_plot_is_a_picture_and_pandas_a_table(outputs: list[list[Any]]) -> None:
    (figure,), (table,) = outputs[2:4]
    assert figure.data["image/png"].startswith("iVBOR")
    assert "training_loss" in table.data["text/html"]
    assert kinds(outputs[5]) == ["stream"]
