"""A run at a glance: one line, a table with a picture, figures, and a pandas table."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import paceline as pl
from paceline import look
from paceline.core.errors import ConfigError
from paceline.storage.metrics import Metrics
from support.saved_runs import save_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pl.Run:
    return save_run(tmp_path_factory.mktemp("shown") / "run", pl.Asynchronous())


def test_the_repr_is_short(run: pl.Run) -> None:
    assert re.fullmatch(
        r"Run\(ended=seconds, updates=\d+, seconds=30, samples=\d+, loss=0\.\d+, accuracy=\d+\.\d%, "
        r"staleness=\S+ on average, \d+ at most, directory=\S+\)",
        repr(run),
    )
    assert repr(run) == str(run)


def test_a_long_problem_and_many_metrics_stay_short(run: pl.Run) -> None:
    many = Metrics({f"metric {number}": float(number) for number in range(100)})
    long = replace(run, problem="overflow " * 1_000, history=[run.history[-1]._replace(metrics=many)])
    assert len(repr(long)) < 500
    assert "problem=overflow overflow" in repr(long)


def test_a_run_without_evaluations_is_shown_too(run: pl.Run) -> None:
    empty = replace(run, history=[])
    assert repr(empty).startswith("Run(ended=seconds, staleness=")
    assert "<img" in empty._repr_html_()
    assert len(empty.to_pandas()) == 0


def test_the_page_is_a_table_and_a_picture_and_everything_is_escaped(run: pl.Run) -> None:
    shown = replace(run, problem="<script>alert(1)</script>", directory=Path('a"<b>'))._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.count("<tr>") == 9
    assert re.search(r'src="data:image/png;base64,iVBOR[\w+/=]+"', shown)
    assert 5_000 < len(shown) < 100_000


def test_a_plot_has_each_metric_against_time_and_updates(run: pl.Run) -> None:
    figure = run.plot()
    assert isinstance(figure, Figure)
    assert [axis.get_ylabel() for axis in figure.axes] == ["loss", "", "accuracy", ""]
    assert [axis.get_xlabel() for axis in figure.axes][-2:] == ["virtual seconds", "updates"]
    time, updates = (np.asarray(axis.lines[0].get_xydata()).tolist() for axis in figure.axes[:2])
    assert time == [[row.seconds, row.loss] for row in run.history]
    assert updates == [[row.updates, row.loss] for row in run.history]


def test_a_plot_names_its_rule_and_has_its_colour(run: pl.Run) -> None:
    assert run.directory is not None
    for each in (run, pl.load_run(run.directory)):
        assert each.strategy == {"kind": "Asynchronous"}
        assert each.plot().get_suptitle() == "asynchronous SGD"
        assert {axis.lines[0].get_color() for axis in each.plot().axes} == {look.colour("asgd")}
    quorum = replace(run, strategy={"kind": "FastestK", "quorum": 3})
    assert quorum.plot().get_suptitle() == "K-SGD, 3 of 5"
    assert quorum.plot().axes[0].lines[0].get_color() == look.colour("k-sgd:quorum=3")
    older = replace(run, strategy={})  # of a directory that does not tell
    assert older.plot().get_suptitle() == ""
    assert older.plot().axes[0].lines[0].get_color() == look.OTHER.light


def test_metrics_to_plot_are_chosen_by_name(run: pl.Run) -> None:
    own = [row._replace(metrics=Metrics({"perplexity": float(row.updates)})) for row in run.history]
    perplexed = replace(run, history=own)
    assert [axis.get_ylabel() for axis in perplexed.plot().axes][::2] == ["perplexity", "training_loss"]
    assert [axis.get_ylabel() for axis in perplexed.plot("staleness").axes] == ["staleness", ""]
    with pytest.raises(ConfigError, match=r"no evaluation has a 'perplexty': did you mean 'perplexity'\?"):
        perplexed.plot("perplexty")


def test_pandas_has_a_row_for_each_evaluation_and_a_column_for_each_metric(run: pl.Run) -> None:
    own = [row._replace(metrics=Metrics({**row.metrics, "f1": 0.5})) for row in run.history]
    table = replace(run, history=own).to_pandas()
    names = ["updates", "seconds", "samples", "loss", "accuracy", "staleness", "training_loss", "f1"]
    assert [*table.columns] == names
    assert [*table["loss"]] == [row.loss for row in run.history]
    assert table["updates"].dtype == int


def test_without_pandas_one_line_says_what_to_install(run: pl.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"needs the package pandas: pip install 'paceline\[notebook\]'"):
        run.to_pandas()
