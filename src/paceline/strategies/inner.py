"""Rules inside other rules, by name: ``Grouped(groups, inside="lgc:quorum=3,blocks=4")``."""

from typing import TYPE_CHECKING

from paceline.core.coordinator import Strategy
from paceline.core.fields import check_fields

if TYPE_CHECKING:

    class Inner:
        """A field that takes a rule or its name, and is a rule from then on."""

        def __get__(self, instance: object, owner: type) -> Strategy: ...

        def __set__(self, instance: object, value: Strategy | str) -> None: ...

else:
    Inner = Strategy


def check_with_inner(strategy: object, *names: str) -> None:
    """Check the fields of a strategy; those with these ``names`` may be a rule, or what the command line calls one."""
    from paceline.strategies.names import parse_strategy

    for name in names:
        if isinstance(given := getattr(strategy, name), str):
            object.__setattr__(strategy, name, parse_strategy(given).strategy(()))
    check_fields(strategy)
