"""What the descriptions of real workers have in common, wherever they run."""

from collections.abc import Mapping, Sequence

from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.delays import Delay, check_delay
from paceline.fleets.fleet import check_labels, check_number

Slow = Mapping[int, float | Delay]


def check_workers(workers: int, min_workers: int, slow: Slow, labels: Sequence[str]) -> None:
    """Raise ``ConfigError`` for what no fleet of real workers can be."""
    if workers < 1:
        raise ConfigError(f"a fleet of {workers} workers can do nothing: at least 1")
    check_number(workers)
    if not 1 <= min_workers <= workers:
        raise ConfigError(f"min_workers={min_workers} does not fit {workers} workers: from 1 to as many")
    if not isinstance(slow, Mapping):
        raise ConfigError(f"slow={shown(slow)} does not say who is slow: give {{3: 4.0}}, worker 3 four times as slow")
    for worker, slowness in slow.items():
        if not isinstance(worker, int):
            raise ConfigError(f"slow names worker {shown(worker)}: the fleet has workers 0 to {workers - 1}")
        if not isinstance(slowness, int | float):
            check_delay(slowness)
        if not 0 <= worker < workers:
            raise ConfigError(f"slow names worker {worker}: the fleet has workers 0 to {workers - 1}")
        if isinstance(slowness, int | float) and not 1 <= slowness < float("inf"):
            raise ConfigError(f"worker {worker} cannot be {slowness} times as slow: at least 1 times")
    check_labels(labels, workers)


def medians_of(slow: Slow, workers: int) -> tuple[float, ...]:
    """How long a mini-batch takes each worker: in seconds if all have a ``Delay``, else only in proportion."""
    slowness = [slow.get(worker, 1.0) for worker in range(workers)]
    return tuple(float(each) if isinstance(each, int | float) else each.median for each in slowness)
