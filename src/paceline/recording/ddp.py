"""Waiting told from computing in the backward pass of a DistributedDataParallel model.

DDP hands the gradients to the all-reduce while the backward pass still computes, and ends the pass with a callback of
the autograd engine that waits for all of them. Such callbacks run when the last gradient was computed, in the order in
which they were queued. So a callback that was queued before DDP's notes when the own gradients were ready, and one that
it queues in turn, which comes after DDP's, notes when the all-reduce had ended. What lies between is waiting: for
slower workers, and for the messages that were still on their way. No communication hook is taken, so that models with
one of their own (compression) can be watched.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.recording.recorder import Recorder

now = time.perf_counter


def watch_model(model: DistributedDataParallel, recorder: "Recorder") -> Callable[[], None]:
    """Tell a recorder what the backward passes of a model waited; returns a function that ends it."""
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"cannot watch a {type(model).__name__}: give the DistributedDataParallel model itself, or put the "
            "exchange of gradients into recorder.wait()"
        )
    undo = [watch_parameters(model.parameters(), recorder, lambda: bool(model.require_backward_grad_sync))]
    if model.broadcast_buffers and any(True for _ in model.module.buffers()):
        undo.append(_watch_buffers(model, recorder))
    return partial(_all, undo)


def watch_parameters(
    parameters: Iterable[torch.nn.Parameter], recorder: "Recorder", exchanges: Callable[[], bool] = lambda: True
) -> Callable[[], None]:
    """The same for the parameters that a DDP model has, where it cannot be got at itself."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise ConfigError("the model to watch has no parameter that is trained")
    queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
    cuda = next((parameter.device for parameter in trained if parameter.is_cuda), None)
    add_wait, ready_at = recorder.add_wait, 0.0
    queued_by: torch.Tensor | None = None

    def first(parameter: torch.Tensor) -> None:
        """One of the parameters has its gradient: DDP has not queued its callback yet."""
        nonlocal queued_by
        if (queued_by is None or queued_by is parameter) and exchanges():  # its second time: the last pass failed
            queued_by = parameter
            queue(ready)

    def ready() -> None:
        nonlocal queued_by, ready_at
        queued_by = None
        if cuda is not None:
            _finish(cuda)
        ready_at = now()
        queue(done)

    def done() -> None:
        if cuda is not None:
            _finish(cuda)
        add_wait(ready_at, now())

    hooked: list[Any] = [trained[0], trained[-1]] if len(trained) > 1 else trained  # two: one may be unused
    hooks = [parameter.register_post_accumulate_grad_hook(first) for parameter in hooked]
    return partial(_all, [hook.remove for hook in hooks])


def _finish(device: torch.device) -> None:
    """On a GPU the processor only asks for work: wait until what was asked for is done."""
    torch.cuda.current_stream(device).synchronize()


def _watch_buffers(model: DistributedDataParallel, recorder: "Recorder") -> Callable[[], None]:
    """Before a forward pass, DDP waits for the buffers of worker 0 (statistics of batch normalisation)."""
    began: list[float] = []
    synchronizes: Callable[[], bool] = model.will_sync_module_buffers

    def before(*_: Any) -> None:
        began[:] = [now()] if synchronizes() else []

    def after(*_: Any) -> None:
        if began:
            recorder.add_wait(began.pop(), now(), exchange=False)

    hooks = [model.register_forward_pre_hook(before), model.module.register_forward_pre_hook(after)]
    return partial(_all, [hook.remove for hook in hooks])


def _all(functions: Iterable[Callable[[], None]]) -> None:
    for each in functions:
        each()
