"""What rules with rounds share: exact weights, and refusals of what does not fit a fleet or a mini-batch."""

from collections.abc import Collection
from fractions import Fraction
from functools import lru_cache

from paceline.core.errors import ConfigError
from paceline.core.messages import Ticket

# The same few weights come back in every round, and making one costs more than all else that a rule does.
fraction = lru_cache(maxsize=4096)(Fraction)


def mean(tickets: Collection[Ticket]) -> dict[Ticket, Fraction]:
    """The same weight for each, one in all: so that a learning rate means the same however many take part."""
    return dict.fromkeys(tickets, fraction(1, len(tickets)))


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
