"""The report page as text: what it says, what it escapes, and which runs it can read."""

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.cli.report import report
from paceline.reports.page import describe, histogram, limits, page, script_safe, spread
from paceline.reports.picture import Picture
from paceline.reports.sections import Html, cells, straggler_tables
from paceline.storage.reading import names_of, read_run
from paceline.strategies.ensemble_compression import EnsembleCompression
from paceline.trace.measure import measure
from support.saved_runs import save_run, with_perplexity_alone

EVIL = "</script><img src=x onerror=alert(1)>&'\"\u2028"


class Reader(HTMLParser):
    """The elements of a page, and the text of those that hold data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self) -> Any:
        return next(json.loads(script) for script in self.scripts if script.startswith("{"))


def page_of(*paths: Path) -> str:
    return page([describe(name, read_run(path)) for name, path in zip(names_of(paths), paths, strict=True)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    save_run(path / "ssgd", pl.Synchronous(), target=0.99)
    save_run(path / "lgc", pl.LiveCompensation(quorum=3, blocks=4))
    return path


@pytest.fixture
def run(directory: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    copy = tmp_path / "lgc"
    copy.mkdir()
    for file in ("config.json", "trace.jsonl", "metrics.jsonl", "summary.json"):
        (copy / file).write_bytes((directory / "lgc" / file).read_bytes())
    return copy


def test_the_page_has_the_numbers_of_the_runs(directory: Path) -> None:
    text = page_of(directory / "ssgd", directory / "lgc")
    found = Reader(text)
    for name in ("ssgd", "lgc"):
        saved, measures = read_run(directory / name), measure(read_run(directory / name).trace)
        row = re.search(rf"<tr data-run=.*?<b>{name}</b>.*?</tr>", text)
        assert row is not None
        assert f">{measures.updates:,}<" in row[0]
        assert f"{measures.mean_staleness:.1f} / {measures.max_staleness}" in row[0]
        assert f"{saved.rows[-1].loss:.4f}" in row[0]
        assert f"{saved.rows[-1].accuracy:.1%}" in row[0]
    assert [each["name"] for each in found.data["runs"]] == ["ssgd", "lgc"]
    assert [each["target"] for each in found.data["runs"]] == [0.99, None]
    assert "worker 4" in found.text


def test_the_data_are_those_of_the_run(directory: Path) -> None:
    saved = read_run(directory / "lgc")
    (data,) = Reader(page_of(directory / "lgc")).data["runs"]
    assert data["curves"]["seconds"] == [row.seconds for row in saved.rows]
    assert data["curves"]["loss"] == pytest.approx([row.loss for row in saved.rows], rel=1e-5)
    assert data["timeline"]["workers"] == [0, 1, 2, 3, 4]
    assert len(data["timeline"]["updates"]) == measure(saved.trace).updates
    assert sum(data["histogram"]["counts"]) == sum(each.contributions for each in measure(saved.trace).workers)


def test_the_file_is_whole_in_itself(directory: Path) -> None:
    text = page_of(directory / "ssgd", directory / "lgc")
    found = Reader(text)
    assert len(text.encode()) < 300_000
    assert not [tag for tag, attributes in found.tags if "src" in attributes or tag in ("iframe", "object", "img")]
    assert [attributes["href"] for tag, attributes in found.tags if tag == "link"] == ["data:,"]
    assert "@import" not in text
    assert "url(" not in text
    policy = next(a["content"] for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    allowed = re.search("script-src ([^;]*);", policy)
    assert allowed is not None
    run = [script for script in found.scripts if not script.startswith("{")]
    hashes = [b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in run]
    assert allowed[1] == " ".join(f"'sha256-{each}'" for each in hashes)
    assert "The MIT License" in found.text


def test_what_comes_from_files_is_escaped(run: Path) -> None:
    config, summary = json.loads((run / "config.json").read_text()), json.loads((run / "summary.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"strategy": EVIL}))
    (run / "summary.json").write_text(json.dumps(summary | {"ended": EVIL, "problem": EVIL}))
    text = page([describe(EVIL, read_run(run))])
    found = Reader(text)
    assert "<img" not in text
    assert len(found.scripts) == 4
    assert found.data["runs"][0]["strategy"] == found.data["runs"][0]["name"] == EVIL
    assert found.text.count(EVIL) >= 4


def test_every_cell_is_escaped_whatever_a_trace_may_say(directory: Path) -> None:
    told = describe("lgc", read_run(directory / "lgc"))
    evil: Any = EVIL  # strict reading lets no such worker through; the tables do not rely on it
    workers = (replace(told.measures.workers[0], worker=evil), *told.measures.workers[1:])
    sums = {evil: told.picture.workers.pop(0), **told.picture.workers}
    described = replace(
        told, measures=replace(told.measures, workers=workers), picture=replace(told.picture, workers=sums)
    )
    text = straggler_tables([described])
    assert f"worker {escape(EVIL)}" in text
    assert "<img" not in text
    row = cells(("a", "b"), (EVIL, Html("<b>bold</b>")))
    assert row == f'<td data-label="a">{escape(EVIL)}</td><td data-label="b"><b>bold</b></td>'


def test_a_script_in_a_trace_is_refused_with_the_line(run: Path, tmp_path: Path) -> None:
    lines = (run / "trace.jsonl").read_text().splitlines()
    lines.insert(1, '["joined", 0.0, "<img src=x onerror=alert(1)>"]')
    (run / "trace.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(pl.ConfigError, match=r"line 2 of .*trace\.jsonl cannot be understood"):
        report([run], tmp_path / "page.html", None)
    assert not (tmp_path / "page.html").exists()


def test_json_inside_a_script_survives_any_text() -> None:
    safe = script_safe(json.dumps(EVIL, ensure_ascii=False))
    assert json.loads(safe) == EVIL
    assert not set(safe) & set("<>&\u2028")


def test_a_run_that_was_killed_is_shown_as_far_as_it_came(run: Path) -> None:
    (run / "summary.json").unlink()
    trace, metrics = (run / "trace.jsonl").read_text(), (run / "metrics.jsonl").read_text()
    (run / "trace.jsonl").write_text(trace[: len(trace) // 2])
    (run / "metrics.jsonl").write_text(metrics[: len(metrics) // 2])
    found = Reader(page_of(run))
    assert "not finished" in found.text
    assert 0 < found.data["runs"][0]["timeline"]["end"] < 30


def test_a_run_that_was_killed_at_once_is_shown_too(run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "metrics.jsonl").unlink()
    (run / "trace.jsonl").write_text((run / "trace.jsonl").read_text().splitlines(keepends=True)[0])
    found = Reader(page_of(run))
    assert "not finished" in found.text
    assert found.data["runs"][0]["curves"]["seconds"] == []


def test_the_target_may_come_from_the_configuration_file(run: Path) -> None:
    assert read_run(run).target is None
    (run / "config.toml").write_text("target = 0.92\n")
    assert read_run(run).target == 0.92


def test_a_run_that_the_clock_ended_is_drawn_to_its_end(run: Path) -> None:
    assert read_run(run).stopped_at == 30
    assert describe("lgc", read_run(run)).picture.end == 30
    (run / "summary.json").unlink()
    assert read_run(run).stopped_at == 0
    assert describe("lgc", read_run(run)).picture.end == measure(read_run(run).trace).seconds < 30


def test_the_page_says_what_it_leaves_out(directory: Path) -> None:
    saved = read_run(directory / "lgc")
    assert limits(describe("lgc", saved)) == []
    described = describe("lgc", saved, marks=60)
    (told,) = limits(described)
    shown, whole = described.picture.until, described.picture.end
    assert 0 < shown < whole
    assert told.startswith(f"lgc: the timeline shows the first {shown:,.1f} of {whole:,.1f} seconds;")
    assert told in Reader(page([described])).text


def test_a_large_fleet_is_thinned_out(tmp_path: Path, run: Path) -> None:
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=200)
    pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=2), trace=run / "trace.jsonl")
    described = describe("large", read_run(run))
    assert limits(described) == ["large: the timeline shows 64 of 200 workers, evenly chosen."]
    assert len(Reader(page([described])).data["runs"][0]["timeline"]["rows"]) == 64


def test_values_are_spread_evenly() -> None:
    assert spread(range(3), 5) == [0, 1, 2]
    assert spread(range(10), 5) == [0, 2, 4, 6, 8]


def test_a_histogram_of_many_values_has_wider_bins() -> None:
    picture = Picture()
    picture.staleness.update([0, 0, 1, 99])
    assert histogram(picture) == {"width": 3, "counts": [3, *[0] * 32, 1]}
    assert histogram(Picture()) == {"width": 1, "counts": []}


def test_names_are_as_short_as_they_can_be() -> None:
    assert names_of([Path("/a/x"), Path("/a/y")]) == ["x", "y"]
    assert names_of([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]
    assert len(set(names_of([Path("/a/x"), Path("/a/x")]))) == 2


def test_the_command_writes_both_files(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, perfetto = tmp_path / "page.html", tmp_path / "trace.json"
    report([directory / "ssgd"], out, perfetto)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(perfetto.read_text())["traceEvents"]
    assert str(out) in capsys.readouterr().out


def test_the_command_refuses_in_one_line(directory: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(pl.ConfigError, match="nothing to write"):
        report([run], None, None)
    with pytest.raises(pl.ConfigError, match=r"must end with \.html"):
        report([run], tmp_path / "page.pdf", None)
    with pytest.raises(pl.ConfigError, match="is not the directory of a run"):
        report([tmp_path / "nowhere"], out, None)
    with pytest.raises(pl.ConfigError, match=r"no config\.json"):
        report([tmp_path], out, None)
    (run / "trace.jsonl").write_text((run / "trace.jsonl").read_text().replace('["step"', '["stop"'))
    with pytest.raises(pl.ConfigError, match=r"lgc: line .* of .*trace\.jsonl cannot be understood"):
        report([directory / "ssgd", run], out, None)
    (run / "metrics.jsonl").write_text("nonsense\n" + (run / "metrics.jsonl").read_text())
    with pytest.raises(pl.ConfigError, match=r"line 1 of .* cannot be understood: 'nonsense'"):
        report([run], out, None)
    assert not out.exists()


def test_what_handing_in_models_costs_is_told_apart(tmp_path: Path) -> None:
    strategy = EnsembleCompression(every=4, compression_steps=1)
    save_run(tmp_path / "ec", strategy, seconds=60.0)
    text = page_of(tmp_path / "ec")
    assert "training / relabelling / messages" in text
    found = measure(read_run(tmp_path / "ec").trace)
    assert f"{found.compute:,.1f} / {found.relabelling:,.1f} / {found.transfer:,.1f} s" in text
    assert found.relabelling > 0
    assert 'class="relabel"' in text  # where a worker's time went
    assert "relabel" in Reader(text).data["kinds"]


def test_the_legend_names_only_what_occurs(directory: Path) -> None:
    assert Reader(page_of(directory / "ssgd")).data["kinds"] == ["compute", "transfer", "wait", "pending"]


def test_other_metrics_have_columns_and_curves(run: Path) -> None:
    """Names come from a file: they are escaped."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["metrics"] = {"loss": row["loss"], "<b>f1</b>": number / 8, "perplexity": None}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = page_of(run)
    reader = Reader(text)
    assert reader.data["curves"] == {"loss": "loss", "accuracy": "accuracy", "metric0": "<b>f1</b>"}
    (saved,) = reader.data["runs"]
    assert saved["curves"]["metric0"] == [number / 8 for number in range(len(rows))]
    assert saved["curves"]["metric1"] == [None] * len(rows)
    assert "&lt;b&gt;f1&lt;/b&gt; against time" in text
    assert f'<td data-label="&lt;b&gt;f1&lt;/b&gt;">{(len(rows) - 1) / 8:.4g}</td>' in text
    assert '<td data-label="perplexity">–</td>' in text
    assert "<b>f1" not in text.split("<script")[0]


def test_what_was_not_evaluated_has_no_panel_and_no_column(run: Path) -> None:
    with_perplexity_alone(run)
    text = page_of(run)
    assert re.findall("<figcaption>(.*?) against", text) == ["perplexity"] * 2
    assert Reader(text).data["curves"] == {"metric0": "perplexity"}
    assert not re.search("data-label=.(loss|accuracy|time to target)", text)
    (run / "metrics.jsonl").write_text("")
    assert "No evaluation returned a number" in page_of(run)
