"""``paceline strategies``: lists the names that --strategy takes."""


def strategies() -> None:
    """List the strategies: the names that --strategy takes, the rule of each, an example, and its paper."""
    from paceline.callbacks.terminal import Column, console, print_table
    from paceline.strategies.catalogue import STRATEGIES

    columns = [
        Column("names", left=True),
        Column("also known as", rank=2, left=True),
        Column("rule", least=24, left=True),
        Column("try", least=22, left=True),
        Column("paper", rank=1, least=24, left=True, style="dim"),
    ]
    rows = [
        ["\n".join(each.names[:3]), each.acronyms, each.rule + _weights(each.kind), each.example, each.paper]
        for each in STRATEGIES
    ]
    terminal = console()
    print_table(terminal, columns, rows, apart=True)
    terminal.print(
        "Options follow the name: --strategy lgc:quorum=7,blocks=4. Without groups=, gsgd forms groups of workers of "
        "similar speed. A rule inside the groups comes last: gsgd:tolerance=0.5,inside=lgc:quorum=3,blocks=4. "
        "Where weights do not add up to 1, a learning rate means something else: tune it for that rule.",
        markup=False,
    )


def _weights(kind: object) -> str:
    from paceline.strategies.traits import weight_sum

    total = weight_sum(kind)
    return "" if total == "1" else f" (weights add up to: {total})"
