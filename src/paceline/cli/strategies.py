"""``paceline strategies``: lists the names that --strategy takes."""

import typer


def strategies() -> None:
    """List the strategies: the names that --strategy takes, the rule of each, an example, and its paper."""
    from paceline.comparison.tables import console, strategies_table

    console().print(strategies_table())
    typer.echo(
        "Options follow the name: --strategy lgc:quorum=7,blocks=4. Without groups=, gsgd forms groups of workers"
    )
    typer.echo("of similar speed. A rule inside the groups comes last: gsgd:tolerance=0.5,inside=lgc:quorum=3,blocks=4")
