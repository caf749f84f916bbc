"""The paper's Table 2 in its own layout, from the card."""

import math
from collections.abc import Mapping
from typing import Any

from reproductions.pipeline.card import Card

NAMES = {"ma": "MA-DNN", "e": "E-DNN", "ec_s": "EC-DNN-S", "ec_r": "EC-DNN-R", "ec_m": "EC-DNN-M"}
Row = Mapping[str, Any]


def tables(card: Card) -> str:
    """Error with its spread over the seeds, speed and tau; then what the time went into."""
    rows = card.settings["table"]
    workers = sorted({row["workers"] for row in rows if row["workers"] > 1})
    return f"{_results(rows, workers)}\n{_costs(rows, workers)}"


def _results(rows: list[Row], workers: list[int]) -> str:
    """For each number of workers: error, speed (all that is charged; in brackets, steps alone), tau."""
    lines = ["| |" + "".join(f" K={each}: error, % | speed | τ |" for each in workers)]
    lines.append("|---|" + "---|---|---|" * len(workers))
    for final in ("g", "l"):
        for method, name in NAMES.items():
            cells = "".join(_cell(_find(rows, method, final, each)) for each in workers)
            lines.append(f"| {name}_{final.upper()} |{cells}")
    alone = next(row for row in rows if row["method"] == "s")
    lines.append(f"| S-DNN | {_error(alone)} |" + " |" * (3 * len(workers) - 1))
    return "\n".join(lines) + "\n"


def _find(rows: list[Row], method: str, final: str, workers: int) -> Row:
    return next(row for row in rows if (row["method"], row["final"], row["workers"]) == (method, final, workers))


def _cell(row: Row) -> str:
    chosen = f" [{row['error_validated']:.2f}]" if "error_validated" in row else ""
    speed = f"{row['speed_all']:.2f} ({row['speed_steps']:.2f})"
    return f" {_error(row)}{chosen} | {speed} | {row['tau'] or '–'} |"


def _error(row: Row) -> str:
    spread = row["spread"]
    return f"{row['error']:.2f}" + ("" if math.isnan(spread) else f" ± {spread:.2f}")


def _costs(rows: list[Row], workers: list[int]) -> str:
    """Virtual seconds of a worker, in the whole run."""
    lines = ["| |" + "".join(f" K={each}: steps, s | relabelling, s | messages, s |" for each in workers)]
    lines.append("|---|" + "---|---|---|" * len(workers))
    for method, name in NAMES.items():
        found = [_find(rows, method, "g", each) for each in workers]
        cells = "".join(
            f" {row['compute']:.2f} | {row['relabelling']:.2f} | {row['communication']:.3f} |" for row in found
        )
        lines.append(f"| {name} |{cells}")
    return "\n".join(lines) + "\n"
