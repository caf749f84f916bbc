"""Add a rule of your own in one file: ``TimedRounds`` waits so many seconds, then continues with whatever has arrived.

    python examples/custom_strategy.py          # trains with it, and with Synchronous to compare
    pytest examples/custom_strategy.py          # checks that it keeps the contract of a strategy

A rule is a frozen dataclass with one method. It looks at the ledger, answers with decisions, and is asked again until
it answers nothing; it never sees a tensor, a thread or a clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import paceline
from paceline.delays import LogNormal
from paceline.strategy import Assign, ConfigError, Decision, Ledger, Step, Strategy, WakeAt
from paceline.testing import StrategyContract


@dataclass(frozen=True)
class TimedRounds(Strategy):
    r"""Step on the mean of what has arrived when a round is ``seconds`` old, or earlier if everybody is in.

    $$w_{t+1} = w_t - \frac{\eta}{|A_t|} \sum_{i \in A_t} g_i,$$

    where $A_t$ are the gradients that arrived in time, with those that were late for the round before: they are used
    one round later rather than thrown away. If nothing has arrived by the deadline, the first to arrive makes the step.
    """

    seconds: float

    def check(self, workers: int, batch_size: int | None) -> None:
        if not self.seconds > 0:
            raise ConfigError(f"a deadline of {self.seconds} seconds leaves no time to work: more than 0")

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle:
            return [Assign(worker) for worker in ledger.idle]
        arrived = [*ledger.late, *ledger.fresh]
        if not arrived:
            return []
        deadline = ledger.updated_at + self.seconds
        if ledger.now >= deadline or not ledger.running:
            return [Step(dict.fromkeys(arrived, Fraction(1, len(arrived))))]
        return [] if deadline in ledger.alarms else [WakeAt(deadline)]


class TestTimedRounds(StrategyContract):
    strategy = TimedRounds(seconds=2.0)


class TestTimedRoundsInGroups(StrategyContract):
    strategy = paceline.Grouped([[0, 1], [2, 3, 4]], inside=TimedRounds(seconds=2.0))


def main() -> None:
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    task = paceline.Task(
        model=torch.nn.Linear(64, 10),
        loss=torch.nn.functional.cross_entropy,
        train=(x[:1500], y[:1500]),
        test=(x[1500:], y[1500:]),
    )
    usually_a_second = [LogNormal(median=1.0, sigma=0.2)] * 7
    fleet = paceline.SimulatedFleet(delays=[*usually_a_second, LogNormal(median=4.0, sigma=0.2)])
    print("8 workers, one of them four times as slow; 60 seconds of virtual time")
    for strategy in (paceline.Synchronous(), TimedRounds(seconds=1.5)):
        run = paceline.train(
            task,
            strategy=strategy,
            fleet=fleet,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
            stop=paceline.Stop(seconds=60.0),
            progress=False,
        )
        last = run.history[-1]
        print(
            f"{strategy!s:22}  {last.updates:3} updates  mean staleness {run.mean_staleness:.2f}  "
            f"loss {last.loss:.3f}  accuracy {last.accuracy:.1%}"
        )


if __name__ == "__main__":
    main()
