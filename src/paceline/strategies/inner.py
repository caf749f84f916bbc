"""Rules inside other rules, by name: ``Grouped(groups, inside="lgc:quorum=3,blocks=4")``."""

from paceline.core.fields import check_fields


def check_with_inner(strategy: object, *names: str) -> None:
    """Check the fields of a strategy; those with these ``names`` may be a rule, or what the command line calls one."""
    from paceline.strategies.names import parse_strategy

    for name in names:
        if isinstance(given := getattr(strategy, name), str):
            object.__setattr__(strategy, name, parse_strategy(given).strategy(()))
    check_fields(strategy)
