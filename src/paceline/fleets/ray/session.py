"""What the runs of a fleet have in common: a connection to the cluster, places in it, and actors that may stay."""

from itertools import count

from paceline.fleets.ray.actor import Actor
from paceline.fleets.ray.callback_thread import Switchboard
from paceline.fleets.ray.connection import Connection, Handle
from paceline.fleets.ray.fleet import RayFleet
from paceline.fleets.ray.local import Desk


class Office:
    """Of one fleet, as long as it has a place in the cluster."""

    def __init__(self, fleet: RayFleet, *, stays: bool) -> None:
        self.stays = stays  # after a run
        self.switchboard = Switchboard()
        self.desk: Desk | None = None
        self._runs = count()
        self._idle: dict[int, Handle] = {}
        self._connection: Connection | None = None
        try:
            total = {name: amount * fleet.workers for name, amount in fleet.resources_per_worker.items()}
            self._connection = Connection(fleet.address, total, self.switchboard.note, trusted=fleet.trust_address)
            self._connection.place(
                fleet.resources_per_worker, fleet.workers, spread=fleet.placement == "spread", labels=_labels(fleet)
            )
            self.desk = Desk(self.switchboard) if fleet.share_memory else None
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def next_run(self) -> int:
        return next(self._runs)

    def start(self, place: int) -> Handle:
        """An actor in a place: a new one, or one that stayed."""
        return self._idle.pop(place, None) or self.connection.start(Actor, place)

    def keep(self, place: int, handle: Handle) -> bool:
        """Let an actor stay for the next run, if there may be one."""
        if self.stays:
            self._idle[place] = handle
        return self.stays

    def close(self) -> None:
        for handle in self._idle.values():
            handle.kill()
        self.switchboard.close()
        if self.desk is not None:
            self.desk.close()
        if self._connection is not None:
            self._connection.close()


def _labels(fleet: RayFleet) -> list[dict[str, str]]:
    """Of each worker."""
    return [{name: value} for name, _, value in (label.partition("=") for label in fleet.labels)]
