"""Recordings as files, for tests of what is read out of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Step = tuple[float, float, int | None, float | None, float | None]


def write_worker(
    directory: Path, worker: int, steps: Sequence[Step], *, last: str | None = "closed", **header: Any
) -> Path:
    """The file of one worker: steps are (began, ended, samples, waited, exchanged)."""
    directory.mkdir(exist_ok=True)
    first = {
        "paceline_recording": 1, "worker": worker, "workers": None, "host": "here", "clock": "boot", "opened": 5.0,
        "wall": 1000.0, **header,
    }  # fmt: skip
    lines: list[Any] = [first, *map(list, steps), *([] if last is None else [[last]])]
    file = directory / f"worker-{worker}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def steps_of(
    computes: Sequence[float], slowest: Sequence[float], exchange: float = 0.01, after: float = 0.0
) -> list[Step]:
    """What a worker records that computes for so long in each step, and waits for the slowest."""
    began = after
    steps: list[Step] = []
    for compute, most in zip(computes, slowest, strict=True):
        ended = began + most + exchange
        steps.append((began, ended, 32, most + exchange - compute, ended))
        began = ended
    return steps


def write_job(directory: Path, computes: Sequence[Sequence[float]], exchange: float = 0.01) -> Path:
    """A synchronous job of several workers: what each computes in each step."""
    slowest = [max(step) for step in zip(*computes, strict=True)]
    for worker, own in enumerate(computes):
        write_worker(directory, worker, steps_of(own, slowest, exchange), workers=len(computes))
    return directory
