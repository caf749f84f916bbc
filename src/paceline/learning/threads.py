r"""How many threads torch computes with in a simulation: chosen for each pass by its size, so the same in every run.

The number of threads changes how sums are rounded. So it must not depend on how busy the machine is, and is not
measured. A pass takes one thread if its typical operation has fewer than ``ENOUGH`` floating-point operations, else as
many as torch was set to. The typical operation is the mean over the matrix products and convolutions of the forward
pass, each weighed by its work: $\sum_i f_i^2 / \sum_i f_i$. What has none is small.

Threads that wait for each other must not keep the processor: on a busy machine the one that is waited for then does not
get it, and a pass of a tenth of a millisecond takes a hundred. GNU's OpenMP, which torch's own builds use, lets waiting
threads sleep at once if there are more of them than cores. So a second team of threads is kept, asleep, while a run
goes on. Other kinds of OpenMP are not changed by this.
"""

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.core.codec import real
from paceline.core.stateful import State
from paceline.learning.generators import Generators
from paceline.learning.task import device_of

# On two cores, a training step with two threads took 1.2 times as long as with one at 35 million operations, 1.2 to 1.4
# times at 100 million in layers of unequal size, and 0.7 times at 130 million in layers of one size.
ENOUGH = 120e6
SEVERAL = 1_000_000  # elements that torch shares out among threads, whatever it does with them


class Threads:
    """Chooses between one thread and all that torch was set to.

    ``settled`` are the sizes of passes, in samples, for which the number is right as it is.
    """

    def __init__(self, asked: int | None) -> None:
        self._chooses = asked is None
        self._all = self._now = torch.get_num_threads()
        self._work: float | None = None  # of the typical operation, for each sample
        self.settled: set[int] = set()

    def choose(self, model: nn.Module, forward: Callable[[nn.Module], object], samples: int) -> None:
        """Set the number for a pass over so many samples. ``forward`` makes such a pass; it is called once in a run."""
        if self._chooses and self._all > 1:
            if self._work is None:
                self._work = typical_operation(model, forward) / samples
            wanted = self._all if self._work * samples >= ENOUGH else 1
            if wanted != self._now:
                torch.set_num_threads(wanted)
                self._now = wanted
                self.settled.clear()
        self.settled.add(samples)

    def state(self) -> State:
        return {"work": self._work}

    def restore(self, state: State) -> None:
        self._work = None if state["work"] is None else real(state["work"])
        self.settled.clear()


def typical_operation(model: nn.Module, forward: Callable[[nn.Module], object]) -> float:
    """The floating-point operations of a typical operation in a forward pass; the model and random numbers stay."""
    generators = Generators(device_of(model))
    before = generators.state()
    counted = _Counted()
    try:
        with torch.no_grad(), uncompiled(), counted:
            forward(copy.deepcopy(model))
    except Exception:  # whatever a model raises: the pass that follows will raise it too, and is where it belongs
        return 0.0
    finally:
        generators.restore(before)
    total = sum(counted.flops)
    return sum(flops * flops for flops in counted.flops) / total if total else 0.0


def uncompiled() -> AbstractContextManager[Any]:
    """Let compiled functions run as they were written, for passes that are watched operation by operation.

    Torch does not compile while somebody watches, remembers that it did not, and then never compiles the function: one
    compiled with ``fullgraph`` would raise an error from then on.
    """
    if "torch._dynamo" not in sys.modules:  # nobody has compiled anything, and to load it takes seconds
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the work of each matrix product and convolution."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # takes a while to load, and is needed once in a run

        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: list[float] = []
        self._formulas = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self.flops.append(float(formula(*args, **(kwargs or {}), out_val=result)))
        return result


@contextmanager
def own_threads(asked: int | None) -> Iterator[None]:
    """Let a run have so many threads, or choose among those that torch has; then leave the number as it was."""
    before = torch.get_num_threads()
    if asked is not None:
        torch.set_num_threads(asked)
    ready, over = threading.Event(), threading.Event()
    second = threading.Thread(target=_sleep, args=(torch.get_num_threads(), ready, over), daemon=True)
    if torch.get_num_threads() > 1:
        second.start()
        ready.wait()
    try:
        yield
    finally:
        over.set()
        if second.ident is not None:
            second.join()
        torch.set_num_threads(before)


def _sleep(count: int, ready: threading.Event, over: threading.Event) -> None:
    """Be the second team."""
    torch.set_num_threads(count)
    torch.zeros(SEVERAL).add_(1.0)
    ready.set()
    over.wait()
