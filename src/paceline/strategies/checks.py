"""Refusals that several rules share."""

from collections.abc import Callable

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError


def check_quorum(quorum: int, workers: int) -> None:
    if not 1 <= quorum <= workers:
        nearest = min(max(quorum, 1), workers)
        raise ConfigError(
            f"a quorum of {quorum} does not fit {workers} workers: choose 1 to {workers} (nearest {nearest})"
        )


def check_blocks(blocks: int, batch_size: int | None) -> None:
    if blocks < 1:
        raise ConfigError(f"a batch cannot have {blocks} blocks: at least 1")
    if batch_size is not None and batch_size > 0 and batch_size % blocks:
        fitting = [n for n in range(1, batch_size + 1) if batch_size % n == 0]
        nearest = min(fitting, key=lambda n: abs(n - blocks))
        raise ConfigError(
            f"{blocks} blocks do not divide a batch of {batch_size} evenly: nearest {nearest} (blocks={nearest})"
        )


def check_fits(rule: Strategy, workers: int, batch_size: int | None) -> None:
    """Let the rule refuse a fleet or a batch that it does not fit, if it has a ``check``."""
    check: Callable[[int, int | None], None] | None = getattr(rule, "check", None)
    if check is not None:
        check(workers, batch_size)
