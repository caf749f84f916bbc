"""From one split of a ledger to another, ticket by ticket: no ticket ever changes its part.

What a worker runs or has handed in stays in the part that gave it out, and is used there. The worker itself leaves that
part when it has nothing running, and joins its new one at the same instant: to the rules inside, one worker left after
it had handed in, and one joined, as they know it.
"""

from paceline.core.ledger import Ledger
from paceline.core.messages import Groups


def regroup(ledger: Ledger, groups: Groups) -> None:
    """Make the groups a split ledger's parts. Who runs something moves when that has ended."""
    was = {worker: ledger._part_number(worker) for worker in ledger._workers}
    ledger._groups = groups
    ledger._parts += [ledger._new_part() for _ in groups[len(ledger._parts) :]]
    ledger._part_of = {worker: number for number, group in enumerate(groups) for worker in group}
    ledger._moving.clear()
    for worker, part in was.items():
        now = ledger._part_number(worker)
        if now == part:
            continue
        ledger._part_of[worker] = part
        if worker in ledger._running:
            ledger._moving[worker] = now
        else:
            move(ledger, worker, now)


def move(ledger: Ledger, worker: int, number: int) -> None:
    """Let a worker that runs nothing leave its part and join another one, if it is here."""
    here = worker in ledger._workers
    if here:
        old = ledger._part_number(worker)
        ledger._touched[old] = None
        for part in _path(ledger._parts[old], worker):
            part.now = ledger.now
            part._leave(worker)
    ledger._part_of[worker] = number
    if here:
        ledger._touched[number] = None
        for part in _path(ledger._parts[number], worker):
            part.now = ledger.now
            part._join(worker)


def _path(part: Ledger, worker: int) -> tuple[Ledger, ...]:
    """A part and those inside it that the worker belongs to, all of which are to be asked."""
    path = part._path(worker)
    for ledger in path[:-1]:
        ledger._touched[ledger._part_number(worker)] = None
        if (number := ledger._moving.pop(worker, None)) is not None:
            ledger._part_of[worker] = number  # when it comes back
    return path
