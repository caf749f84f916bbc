"""A task's model and loss, copied for a run: together, and with the hooks that hang on them.

``train`` moves a copy of the task's model; the user's own stays as it is. So whatever refers to the user's own one, a
penalty in the loss or a hook, would have no effect on what is trained. Objects are copied along and then refer to the
copy: a loss module that holds the model, a method of it, a ``functools.partial`` with it. A function's variables cannot
be: it is refused, with what to write instead.
"""

import copy
import dis
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from paceline.core.errors import ConfigError

Function = Callable[..., Any]  # a loss, or a step
MOST_LOOKED_AT = 10_000  # objects behind a loss or a hook
NOT_THE_USERS = ("torch", "numpy", "functools", "math")  # packages whose functions refer to nobody's model
OF_MODULES = ("_parameters", "_buffers", "_modules")  # where a module keeps what it has under names of their own
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

log = logging.getLogger("paceline")


def copies(model: nn.Module, loss: Function, kind: str = "loss") -> tuple[nn.Module, Function]:
    """The model and the loss, or step, of a run. One without parameters that does not refer to the model is shared."""
    _refuse_hooks_on_the_original(model)
    found = Search(model, kind, loss)
    if (name := next(iter(found.by_functions), None)) is not None:
        instead = (
            "Use the model that step is handed as its first argument"
            if kind == "step"
            else "Let the loss take it as an argument, loss=functools.partial(my_loss, model=model), or be a module "
            "that holds it"
        )
        raise ConfigError(
            f"the {kind} refers to the task's own model ({name}), which is not the one that is trained: a run trains a "
            f"copy of it. {instead}; for its present weights as constants, refer to a copy.deepcopy of it"
        )
    own = trained_parameters(model, loss)
    if found.foreign and not own:
        log.warning(
            "the %s refers to parameters (%s) that are not trained: let the %s be a module that has them to train "
            "them too, or freeze them with requires_grad_(False)", kind, ", ".join(list(found.foreign)[:3]), kind,
        )  # fmt: skip
    if not found.by_objects and not own:
        return copied(model), loss
    shared: dict[int, Any] = {id(each): each for each in found.data}
    own_model, own_loss = copied((model, loss), shared)
    return own_model, own_loss


def warn_of_evaluation(model: nn.Module, evaluate: object) -> None:
    """Say that an evaluation looks at the task's own model, which no run changes: its metrics may never move."""
    found = Search(model, "evaluate", evaluate)
    if (name := next(iter((*found.by_functions, *found.by_objects)), None)) is not None:
        log.warning(
            "evaluate refers to the task's own model (%s), which is not trained: a run trains a copy of it. Evaluate "
            "the model that evaluate is handed as its argument", name,
        )  # fmt: skip


def trained_parameters(model: nn.Module, loss: Function) -> list[nn.Parameter]:
    """Those of a loss module that are not the model's."""
    if not isinstance(loss, nn.Module):
        return []
    known = {id(each) for each in model.parameters()}
    return [each for each in loss.parameters() if each.requires_grad and id(each) not in known]


def copied(original: Any, memo: dict[int, Any] | None = None) -> Any:
    """A deep copy of a module, or of several things, with the hooks and attributes of parameters, which torch drops.

    Old ``weight_norm``, ``spectral_norm`` and pruning keep in their modules what they computed of parameters in the
    last forward pass. Torch refuses to copy that; the copy computes it anew before its first pass.
    """
    values = [value for part in _modules(original) for m in part.modules() for value in vars(m).values()]
    computed = [value for value in values if isinstance(value, Tensor) and value.grad_fn is not None]
    try:
        made = copy.deepcopy(original, {**(memo or {}), **{id(each): each.detach().clone() for each in computed}})
    except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        raise ConfigError(f"the model or the loss cannot be copied: {' '.join(str(error).split())}") from error
    hang(_parameters(made), hung_on(_parameters(original)))
    return made


def _modules(content: Any) -> list[nn.Module]:
    return [each for each in (content if isinstance(content, tuple) else (content,)) if isinstance(each, nn.Module)]


def _parameters(content: Any) -> list[nn.Parameter]:
    """Each once, in a fixed order."""
    return list({id(each): each for module in _modules(content) for each in module.parameters()}.values())


# What hangs on parameters.


class Hung(NamedTuple):
    """The hooks of one parameter, and attributes that it was given."""

    number: int
    hooks: list[Callable[[Tensor], Tensor | None]]
    after: list[Callable[[Tensor], None]]  # called when the gradient was accumulated
    attributes: dict[str, Any]


def hung_on(parameters: Sequence[nn.Parameter]) -> list[Hung]:
    """What a copy of these parameters, or a worker's own, has to be given."""
    every = [
        Hung(
            number,
            list((parameter._backward_hooks or {}).values()),
            list((getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()),
            dict(vars(parameter)),
        )
        for number, parameter in enumerate(parameters)
    ]
    return [each for each in every if each.hooks or each.after or each.attributes]


def hang(parameters: Sequence[nn.Parameter], hung: Iterable[Hung]) -> None:
    for number, hooks, after, attributes in hung:
        parameter = parameters[number]
        vars(parameter).update(attributes)
        for hook in hooks:
            parameter.register_hook(hook)  # type: ignore[no-untyped-call]
        for function in after:
            parameter.register_post_accumulate_grad_hook(function)  # type: ignore[no-untyped-call]


def has_backward_hooks(module: nn.Module) -> bool:
    """Does anything look at single gradients? Then those of several workers must not be computed as one sum."""
    return any(each.hooks or each.after for each in hung_on(list(module.parameters()))) or any(
        each._backward_hooks or each._backward_pre_hooks for each in module.modules()
    )


def _refuse_hooks_on_the_original(model: nn.Module) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = list(model.parameters())
    hooks: list[tuple[str, Iterable[Any]]] = [
        (f"parameter {names[id(parameters[each.number])]!r}", [*each.hooks, *each.after])
        for each in hung_on(parameters)
    ]
    hooks += [
        (f"module {name or type(module).__name__!r}", getattr(module, kind).values())
        for name, module in model.named_modules()
        for kind in MODULE_HOOKS
    ]
    for where, functions in hooks:
        for function in functions:
            if (name := next(iter(Search(model, "hook", function).by_functions), None)) is not None:
                raise ConfigError(
                    f"a hook on {where} refers to the task's own model ({name}), which is not the one that is trained: "
                    "a run trains a copy of it. A module's hook is handed the module, and "
                    "register_post_accumulate_grad_hook hands its function the parameter"
                )


# What refers to whom.


class Search:
    """Looks through all that a function or an object refers to for a model, its modules, parameters and buffers.

    by_objects    names under which objects hold a part of the model: a copy of them holds the copy
    by_functions  names of variables of functions that do: no copy follows them
    foreign       names of other parameters that could be trained
    data          tensors and arrays that are nobody's parameters or buffers, which need no copy
    """

    def __init__(self, model: nn.Module, name: str, value: object) -> None:
        self.by_objects: dict[str, None] = {}
        self.by_functions: dict[str, None] = {}
        self.foreign: dict[str, None] = {}
        self.data: list[Any] = []
        parts = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
        seen: dict[int, object] = {}  # kept, so that no other object gets the same place in memory
        stack: list[tuple[str, object, bool]] = [(name, value, False)]
        while stack and len(seen) < MOST_LOOKED_AT:
            name, each, by_function = stack.pop()
            if id(each) in seen:
                continue
            seen[id(each)] = each
            if id(each) in parts:
                (self.by_functions if by_function else self.by_objects)[name] = None
            elif isinstance(each, nn.Parameter):
                if each.requires_grad:
                    self.foreign[name] = None
            elif isinstance(each, Tensor | np.ndarray):
                self.data.append(each)
            else:
                held = by_function or isinstance(each, FunctionType)
                stack += [(name if inner in OF_MODULES else f"{name}.{inner}", it, held) for inner, it in _inside(each)]


def _inside(each: object) -> Iterator[tuple[str, object]]:
    if isinstance(each, FunctionType):
        if (each.__module__ or "").partition(".")[0] not in NOT_THE_USERS:
            yield from _variables(each)
    elif isinstance(each, MethodType):
        yield "self", each.__self__
        yield each.__name__, each.__func__
    elif isinstance(each, functools.partial):
        yield from (("func", each.func), *((str(n), what) for n, what in enumerate(each.args)), *each.keywords.items())
    elif isinstance(each, dict):
        yield from ((str(key), value) for key, value in each.items())
    elif isinstance(each, list | tuple | set | frozenset):
        yield from ((str(number), value) for number, value in enumerate(each))
    elif not isinstance(each, type | ModuleType | str | bytes | int | float | complex | None):
        yield from getattr(each, "__dict__", {}).items()
        for called in ("__call__", "forward"):
            function = getattr(type(each), called, None)
            if isinstance(function, FunctionType):
                yield called, function


def _variables(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function refers to: variables of where it was defined, defaults, and the globals that it uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from ((f"default {number}", value) for number, value in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    for name in _globals_of(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _globals_of(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)
