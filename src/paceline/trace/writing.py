"""Writing the trace of a run: every event, and every instruction that followed it, in order.

Lines are handed to the operating system as things happen: what was written survives the death of the process, and a
last line that was torn is passed over when reading.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.core.messages import Event, Instruction, Ticket
from paceline.files import cannot_write, open_regular, writing
from paceline.trace.format import (
    FORMAT,
    MOST_SECONDS,
    Computed,
    Fact,
    FreshState,
    MachineWorkers,
    NonFinite,
    WorkCost,
    encode,
)
from paceline.trace.history import History, Observer
from paceline.trace.reading import Trace, lines_of, lines_until, read_trace

WRITTEN_AT_ONCE = 10_000  # facts of a trace in memory, which is quicker than one by one


class TraceWriter:
    """Writes a trace to a file, or into memory.

    ``resumed``: the file is that of a run to be continued, and stays as it is until ``cut``.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any], *, resumed: bool = False) -> None:
        self._path = path
        self._text: list[str] = []
        self._facts: list[Fact] = []  # not written yet; only of a trace in memory
        self._position = 0
        first = json.dumps({"paceline_trace": FORMAT, **about}, sort_keys=True) + "\n"
        if resumed:
            assert path is not None
            self._file: BinaryIO | None = self._open_again(path, first)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC
        with writing(path or "trace"):
            self._file = None if path is None else open_regular(path, flags)
        self._write(first)

    def _open_again(self, path: Path, first: str) -> BinaryIO:
        recorded = next(iter(lines_of(path)), "") if path.is_file() else ""
        if recorded != first:
            raise ConfigError(f"cannot continue {path}: it begins with {recorded[:70]!r}, not with {first[:70]!r}")
        return open_regular(path, os.O_WRONLY | os.O_APPEND)

    def state(self) -> dict[str, Any]:
        """How much is written, and will be there whatever happens to the machine."""
        assert self._file is not None
        with writing(self._path or "trace"):
            os.fsync(self._file.fileno())
        return {"bytes": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._position, there = whole(state["bytes"]), os.fstat(self._file.fileno()).st_size
        if self._position > there:
            raise ConfigError(f"trace.jsonl has {there} bytes, and {self._position} when the checkpoint was made")

    def check(self) -> None:
        """Refuse a trace that is damaged before the point at which the run continues."""
        assert self._path is not None
        path = self._path
        for _ in Trace(lambda: lines_until(path, self._position), str(path)):
            pass

    def cut(self) -> None:
        """Forget what was written after the state that was restored."""
        assert self._file is not None
        os.ftruncate(self._file.fileno(), self._position)

    def record(self, events: Sequence[Event], instructions: Iterable[Instruction]) -> None:
        if events and events[-1].at > MOST_SECONDS:  # it could not be read
            raise ConfigError(
                f"the clock of the run has come to {events[-1].at:.4g} s, and a trace ends at {MOST_SECONDS:.0e} s: "
                "make delays, latencies or the run shorter"
            )
        if self._file is None:
            facts = self._facts
            facts.extend(events)
            facts.extend(instructions)
            if len(facts) >= WRITTEN_AT_ONCE:
                self._write_facts()
        else:
            self._facts = [*events, *instructions]
            self._write_facts()

    def non_finite(self, tickets: Iterable[Ticket]) -> None:
        self._facts.extend(NonFinite(ticket) for ticket in tickets)
        self._write_facts()

    def note(self, fact: WorkCost | Computed | FreshState | MachineWorkers) -> None:
        """What else a fleet says: of the work on a ticket, or of where its workers are."""
        self._facts.append(fact)
        if self._file is not None:
            self._write_facts()

    def _write_facts(self) -> None:
        self._write(encode(self._facts))
        self._facts.clear()

    def _write(self, text: str) -> None:
        if self._file is None:
            self._text.append(text)
        else:
            data = text.encode()
            self._position += len(data)
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                raise cannot_write(self._path or "trace", error) from None

    def release(self) -> None:
        """Let go of the file, also if the run failed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> "Trace":
        """End writing; what was written, to read."""
        self._write_facts()
        if self._path is None:
            return Trace(lambda: (line for chunk in self._text for line in chunk.splitlines()))
        self.release()
        return read_trace(self._path)


class NoTrace(TraceWriter):
    """Takes the place of a trace that nobody needs: observers follow the run itself, and nothing is written."""

    def __init__(self, about: Mapping[str, Any], *observers: Observer) -> None:
        super().__init__(None, about)
        self._history = History(about, observers)

    @property
    def history(self) -> History:
        """What is known of the run by now, of which the observers were told."""
        self._write_facts()
        return self._history

    def _write_facts(self) -> None:
        follow = self._history.follow
        for fact in self._facts:
            follow[type(fact)](fact)
        self._facts.clear()
