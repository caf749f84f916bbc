"""What recording costs: the time of a step with a recorder less that of the same step without, in microseconds.

    python benchmarks/recorder.py [--save] [--rounds N]

First a step that does nothing, alone and with ``compute`` or ``wait`` in it. Then a step of a small model under
DistributedDataParallel, in a process group of one, so that nothing depends on other processes; ``watch`` tells waiting
from computing. Loops with and without take turns. Reported are differences of medians, of DDP those of the quickest
tenth: other processes interrupt the slower ones.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import torch
import torch.distributed as dist
from measuring import interleaved, parse, save, seconds
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.recording.ddp import watch_model
from paceline.recording.recorder import Recorder

EMPTY, STEPS, TURN = 5_000, 1_000, 20  # of a round; of DDP in turns of so many
AIM = 20.0  # microseconds a step, at most


def nothing() -> None:
    for _ in range(EMPTY):
        pass


def recording(recorder: Recorder, part: str | None) -> Callable[[], None]:
    def steps() -> None:
        for _ in range(EMPTY):
            with recorder.step(samples=32):
                pass

    def steps_with_part() -> None:
        inside = getattr(recorder, str(part))
        for _ in range(EMPTY):
            with recorder.step(samples=32), inside():
                pass

    return steps if part is None else steps_with_part


def differences(times: dict[str, list[float]], with_: str, without: str, steps: int) -> float:
    pairs = zip(times[with_], times[without], strict=True)
    return round(median(a - b for a, b in pairs) / steps * 1e6, 2)


def empty_steps(folder: Path, rounds: int) -> dict[str, float]:
    with pl.record(folder, worker=0) as recorder:
        times = interleaved(
            {
                "without": nothing,
                "step": recording(recorder, None),
                "step and wait": recording(recorder, "wait"),
                "step and compute": recording(recorder, "compute"),
            },
            rounds,
        )
    return {name: differences(times, name, "without", EMPTY) for name in times if name != "without"}


def ddp_steps(folder: Path, rounds: int) -> dict[str, float]:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    inputs = torch.rand(32, 64)
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    own: list[float] = []
    more: list[float] = []
    with pl.record(folder / "ddp", worker=0) as recorder:

        def recorded() -> None:
            with recorder.step(samples=32):
                step()

        for _ in range(rounds * STEPS // TURN):
            own += [seconds(step) for _ in range(TURN)]
            unwatch = watch_model(model, recorder)
            more += [seconds(recorded) for _ in range(TURN)]
            unwatch()
    dist.destroy_process_group()
    quick, quick_too = (quantiles(times, n=10)[0] for times in (own, more))  # those not interrupted
    return {"step and watch": round((quick_too - quick) * 1e6, 2), "the step itself": round(quick * 1e6, 1)}


def main() -> None:
    torch.set_num_threads(1)
    rounds = parse().rounds
    with tempfile.TemporaryDirectory() as folder:
        empty = empty_steps(Path(folder) / "empty", rounds)
        ddp = ddp_steps(Path(folder), rounds)
    save("recorder", {"microseconds a step, at most": AIM, "an empty step": empty, "a step of DDP": ddp})


if __name__ == "__main__":
    main()
