"""A task's model and loss, copied for a run: together, and with the hooks that hang on them.

``train`` moves a copy of the task's model; the user's own stays as it is. So whatever refers to the user's own one, a
penalty in the loss or a hook, would have no effect on what is trained. Objects are copied along and then refer to the
copy: a loss module that holds the model, a method of it, a ``functools.partial`` with it. A function's variables cannot
be: it is refused, with what to write instead. Where the search for them finds nothing, the first batch may still show
that the loss depends on parameters of the user's own model.
"""

import copy
import dis
import functools
import logging
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from torch import Tensor, nn

from paceline.core.errors import ConfigError

Function = Callable[..., Any]  # a loss, or a step
Found = tuple[str, object, bool]  # a name, what it stands for, and whether a copy of whoever refers to it keeps it
MOST_LOOKED_AT = 100_000  # objects behind a loss or a hook; texts and numbers, which refer to nothing, aside
LEAVES = (str, bytes, int, float, complex, type(None))
NOT_THE_USERS = {"torch", "numpy", "paceline"}  # their globals are nobody's model
STANDARD = Path(sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}
OF_MODULES = ("_parameters", "_buffers", "_modules")  # where a module keeps what it has under names of their own
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

log = logging.getLogger("paceline")


def copies(model: nn.Module, loss: Function, kind: str = "loss") -> tuple[nn.Module, Function]:
    """The model and the loss, or step, of a run. One without parameters that does not refer to the model is shared."""
    _refuse_hooks_on_the_original(model)
    found = Search(model, kind, loss)
    if (name := next(iter(found.by_functions), None)) is not None:
        raise refusal(kind, f"refers to the task's own model ({name})")
    if not found.complete:
        log.warning(
            "the %s refers to more than %d objects, and not all were looked at: it must not refer to the task's own "
            "model, for a run trains a copy of it", kind, MOST_LOOKED_AT,
        )  # fmt: skip
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


def refusal(kind: str, what: str) -> ConfigError:
    instead = (
        "Use the model that step is handed as its first argument"
        if kind == "step"
        else "Let the loss take it as an argument, loss=functools.partial(my_loss, model=model), or be a module "
        "that holds it"
    )
    return ConfigError(
        f"the {kind} {what}, which is not the one that is trained: a run trains a copy of it. {instead}; for its "
        "present weights as constants, refer to a copy.deepcopy of it"
    )


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
    modules = _modules(original)
    values = [value for part in modules for m in part.modules() for value in vars(m).values()]
    computed = [value for value in values if isinstance(value, Tensor) and value.grad_fn is not None]
    known = {**(memo or {}), **{id(each): each.detach().clone() for each in computed}}
    known.update({id(each): each for each in _hooks_apart(modules)})
    try:
        made = copy.deepcopy(original, known)
        hung = [each.copied(known) for each in hung_on(_parameters(original))]
    except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        raise ConfigError(f"the model or the loss cannot be copied: {' '.join(str(error).split())}") from error
    hang(_parameters(made), hung)
    return made


def stand_in(loss: Function) -> Function:
    """A copy of a loss to be tried, with the same parameters and data; the loss itself where it cannot be copied."""
    found = Search((), "loss", loss)
    try:
        return copy.deepcopy(loss, {id(each): each for each in (*found.parameters, *found.data)})
    except Exception:  # whatever an object of the user's raises
        return loss


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

    def copied(self, known: dict[int, Any]) -> "Hung":
        """For a copy; ``known`` is what ``copy.deepcopy`` remembers of it, so that hooks that hold the model follow."""
        return self._replace(hooks=copy.deepcopy(self.hooks, known), after=copy.deepcopy(self.after, known))


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


def _hooks_of(model: nn.Module) -> list[tuple[str, list[Any]]]:
    """The hooks on each of its parameters and modules, and where they are."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = list(model.parameters())
    of_parameters = [
        (f"parameter {names[id(parameters[each.number])]!r}", [*each.hooks, *each.after])
        for each in hung_on(parameters)
    ]
    return of_parameters + [
        (f"module {name or type(module).__name__!r}", list(getattr(module, kind).values()))
        for name, module in model.named_modules()
        for kind in MODULE_HOOKS
        if getattr(module, kind)
    ]


def _hooks_apart(modules: Sequence[nn.Module]) -> list[Any]:
    """Hooks that are objects, or methods of objects, which neither hold a model nor belong to one: a copy shares them.

    As it does functions, so that whoever counts or collects something in a hook finds it in the object that it made.
    Those that torch makes, such as the one of ``spectral_norm``, belong to the model.
    """
    every = [hook for model in modules for _, hooks in _hooks_of(model) for hook in hooks]
    every = [hook for hook in every if not isinstance(hook, FunctionType)]
    if not every:
        return []
    aside = {*OF_MODULES, *MODULE_HOOKS}
    attributes = [{k: v for k, v in vars(m).items() if k not in aside} for each in modules for m in each.modules()]
    belonging = Search(modules, "model", attributes).reached
    apart = []
    for hook in every:
        owner = hook.__self__ if isinstance(hook, MethodType) else hook
        of_torch = type(owner).__module__.partition(".")[0] == "torch"
        if not of_torch and id(owner) not in belonging and not Search(modules, "hook", hook).by_objects:
            apart.append(hook)
    return apart


def _refuse_hooks_on_the_original(model: nn.Module) -> None:
    for where, functions in _hooks_of(model):
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

    Objects are looked through whole. Of a class, and of a module that somebody imports, only those attributes are
    looked at that some function found here asks for by name: other methods may do with the model what they like.

    by_objects    names under which objects hold a part of the model: a copy of them holds the copy
    by_functions  names of variables of functions, of attributes of classes and of weak references that do: no copy
                  follows them
    foreign       names of other parameters that could be trained
    parameters    all that are not the model's
    data          tensors and arrays that are nobody's parameters or buffers, which need no copy
    reached       all objects that were looked at, by their place in memory
    complete      whether nothing was left out because there was too much
    """

    def __init__(self, model: nn.Module | Iterable[nn.Module], name: str, value: object) -> None:
        self.by_objects: dict[str, None] = {}
        self.by_functions: dict[str, None] = {}
        self.foreign: dict[str, None] = {}
        self.parameters: list[nn.Parameter] = []
        self.reached: dict[int, object] = {}  # kept, so that no other object gets the same place in memory
        models = [model] if isinstance(model, nn.Module) else list(model)
        self._parts = {id(part) for m in models for part in (*m.modules(), *m.parameters(), *m.buffers())}
        self._seen: set[tuple[int, bool]] = set()
        self._asked = {"__call__", "forward"}  # names of attributes
        self._classes: dict[type, str] = {}  # and under which name they were found
        self._taken: set[tuple[type, str]] = set()  # attributes of classes that were looked at
        self._data: list[Any] = []
        self._buffers: set[int] = set()
        found: deque[Found] = deque([(name, value, False)])
        while found and len(self.reached) < MOST_LOOKED_AT:
            found += self._look_at(*found.popleft())
            if not found:
                found += self._of_classes()
        self.complete = not found
        self.data = [each for each in self._data if id(each) not in self._buffers]

    def _look_at(self, name: str, each: object, kept: bool) -> Iterable[Found]:
        if isinstance(each, LEAVES) or (id(each), kept) in self._seen:
            return ()
        self._seen.add((id(each), kept))
        self.reached[id(each)] = each
        if id(each) in self._parts:
            (self.by_functions if kept else self.by_objects)[name] = None
        elif isinstance(each, nn.Parameter):
            self.parameters.append(each)
            if each.requires_grad:
                self.foreign[name] = None
        elif isinstance(each, Tensor | np.ndarray):
            self._data.append(each)
        elif isinstance(each, FunctionType):
            return [(f"{name}.{inner}", it, True) for inner, it in self._of_function(each)]
        elif isinstance(each, ref):  # a copy of it refers to the same object
            return [(name, each(), True)]
        elif isinstance(each, type):
            self._remember(each, name)
        elif not isinstance(each, ModuleType):
            self._remember(type(each.__self__ if isinstance(each, MethodType) else each), name)
            if isinstance(each, nn.Module):
                self._buffers.update(map(id, each._buffers.values()))
            return [(name if inner in OF_MODULES else f"{name}.{inner}", it, kept) for inner, it in _inside(each)]
        return ()

    def _of_function(self, function: FunctionType) -> Iterator[tuple[str, object]]:
        """Variables of where it was defined, defaults, and the globals and attributes of modules that it uses."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield from ((f"default {number}", value) for number, value in enumerate(function.__defaults__ or ()))
        yield from (function.__kwdefaults__ or {}).items()
        if not _is_the_users(function.__globals__.get("__name__")):
            return
        names, imported, attributes = _names_in(function.__code__)
        self._asked |= attributes
        yield from ((name, value) for name, value in vars(function).items() if name in attributes)
        used = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
        used += [(name, sys.modules[name]) for name in imported if name in sys.modules]
        for name, value in used:
            yield from _of_module(name, value, attributes) if isinstance(value, ModuleType) else [(name, value)]

    def _remember(self, kind: type, name: str) -> None:
        for each in kind.__mro__:
            if _is_the_users(each.__module__):
                self._classes.setdefault(each, name)

    def _of_classes(self) -> Iterator[Found]:
        """Attributes of classes that somebody has asked for since this was called last."""
        for kind, name in list(self._classes.items()):
            for attribute in sorted(self._asked & vars(kind).keys()):
                if (kind, attribute) not in self._taken:
                    self._taken.add((kind, attribute))
                    value = vars(kind)[attribute]
                    if isinstance(value, staticmethod | classmethod):
                        value = value.__func__
                    elif isinstance(value, property):
                        value = value.fget
                    yield f"{name}.{attribute}", value, True


def _inside(each: object) -> Iterator[tuple[str, object]]:
    """What an object holds."""
    if isinstance(each, MethodType):
        yield "self", each.__self__
        yield each.__name__, each.__func__
    elif isinstance(each, functools.partial):
        yield from (("func", each.func), *((str(n), what) for n, what in enumerate(each.args)), *each.keywords.items())
    elif isinstance(each, dict):
        yield from ((str(key), value) for key, value in each.items())
    elif isinstance(each, list | tuple | set | frozenset | deque):
        yield from ((str(number), value) for number, value in enumerate(each))
    else:
        yield from getattr(each, "__dict__", {}).items()


@functools.cache
def _is_the_users(module: str | None) -> bool:
    """Is a module neither Python's own, nor torch's, nor installed?"""
    package = (module or "").partition(".")[0]
    where = Path(getattr(sys.modules.get(package), "__file__", None) or STANDARD)
    # a file of one's own may have the name of a module of Python, such as profile.py
    standard = package in sys.stdlib_module_names and where.is_relative_to(STANDARD)
    return package not in NOT_THE_USERS and not standard and INSTALLED.isdisjoint(where.parts)


def _of_module(name: str, module: ModuleType, attributes: set[str]) -> Iterator[tuple[str, object]]:
    """Those attributes of a module, and of modules in it, that a function may ask for."""
    inner, seen = [(name, module)], {id(module)}
    while inner:
        name, module = inner.pop()
        if not _is_the_users(module.__name__):
            continue
        for attribute in sorted(attributes & vars(module).keys()):
            value = vars(module)[attribute]
            if not isinstance(value, ModuleType):
                yield f"{name}.{attribute}", value
            elif id(value) not in seen:
                seen.add(id(value))
                inner.append((f"{name}.{attribute}", value))


@functools.lru_cache(1000)
def _names_in(code: CodeType) -> tuple[list[str], list[str], set[str]]:
    """The globals that a function names, the modules that it imports, and the attributes that it asks for."""
    names, imported, attributes = list[str](), list[str](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.append(str(instruction.argval))
        elif instruction.opname == "IMPORT_NAME":
            imported += [str(instruction.argval), str(instruction.argval).partition(".")[0]]
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            attributes.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            of_inner = _names_in(constant)
            names, imported, attributes = names + of_inner[0], imported + of_inner[1], attributes | of_inner[2]
    return names, imported, attributes
