"""Tasks that a function of the user's own makes: found in the folder of the TOML file, called, and checked.

The folder comes first on ``sys.path``, which worker processes and Ray's workers get too. Two files may each have a
module ``task`` beside them: those of one folder leave ``sys.modules`` when a task of another is made, and come back
when theirs is made again.
"""

import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.config.tasks import FactoryChoice
from paceline.core.errors import ConfigError
from paceline.core.fields import nearest, shown
from paceline.learning.task import Task


class _Folders:
    """The folder whose modules can be imported, and the modules of those that had their turn before.

    The last task is kept too: the runs of a comparison with the same seed share it, as each trains a copy.
    """

    def __init__(self) -> None:
        self.current = ""
        self.last: tuple[tuple[str, ...], Task] | None = None
        self._modules: dict[str, dict[str, ModuleType]] = {}

    def enter(self, folder: str) -> None:
        if folder == self.current:
            return
        if self.current:
            own = {name: module for name, module in sys.modules.items() if lies_in(module, self.current)}
            self._modules[self.current] = own
            for name in own:
                del sys.modules[name]
            sys.path[:] = [each for each in sys.path if each != self.current]
        sys.path.insert(0, folder)
        sys.modules.update(self._modules.get(folder, {}))
        self.current = folder
        importlib.invalidate_caches()


_folders = _Folders()


def make_from_factory(choice: FactoryChoice, seed: int) -> Task:
    """Call the function, with the seed if it takes one, and return its task; the last one, if it is the same."""
    if choice.folder:
        _folders.enter(choice.folder)
    key = (choice.folder, choice.factory, json.dumps(choice.arguments, sort_keys=True), str(seed))
    if _folders.last is None or _folders.last[0] != key:
        _folders.last = key, _make(choice, seed)
    return _folders.last[1]


def _make(choice: FactoryChoice, seed: int) -> Task:
    function = _function(choice)
    arguments = _arguments(choice, function, seed)
    try:
        task = function(**arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"task.factory: {choice.factory} raised {_line(error, choice)}") from error
    if not isinstance(task, Task):
        raise ConfigError(
            f"task.factory: {choice.factory} returned {_article(task)}: return "
            "paceline.Task(model=..., loss=..., train=..., test=...)"
        )
    return task


def lies_in(module: ModuleType, folder: str) -> bool:
    """Is this a module that was found in the folder, or a part of such a package?"""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    file = getattr(top, "__file__", None)
    places = [Path(each).parent for each in getattr(top, "__path__", ())] or ([Path(file).parent] if file else [])
    return any(str(place) == folder for place in places)


def _function(choice: FactoryChoice) -> Callable[..., Any]:
    module = _import(choice)
    function = getattr(module, choice.function, None)
    if function is None:
        known = [name for name, each in vars(module).items() if inspect.isfunction(each) and not name.startswith("_")]
        raise ConfigError(
            f"task.factory: {choice.module} has no {choice.function!r}: {nearest(choice.function, known)}"
        )
    if not callable(function):
        raise ConfigError(f"task.factory: {choice.factory} is {_article(function)}, not a function that makes a task")
    found: Callable[..., Any] = function
    return found


def _import(choice: FactoryChoice) -> ModuleType:
    top = choice.module.partition(".")[0]
    there = sys.modules.get(top)
    shadowed = there is not None and bool(choice.folder) and not lies_in(there, choice.folder)
    if shadowed and PathFinder.find_spec(top, [choice.folder]):
        raise ConfigError(
            f"task.factory: {top} of {choice.folder} has the name of a module that is imported already, from "
            f"{getattr(there, '__file__', None) or 'Python itself'}: give it another name"
        )
    try:
        return importlib.import_module(choice.module)
    except ModuleNotFoundError as error:
        if error.name is not None and (choice.module == error.name or choice.module.startswith(f"{error.name}.")):
            known = sorted(_importable(Path(choice.folder)))
            where = f" in {choice.folder}" if choice.folder else ""
            raise ConfigError(
                f"task.factory: there is no module {error.name!r}{where}: {nearest(top, known)}"
            ) from None
        raise ConfigError(f"task.factory: {choice.module} cannot be imported: {_line(error, choice)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"task.factory: {choice.module} cannot be imported: {_line(error, choice)}") from error


def _importable(folder: Path) -> Iterator[str]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem
        elif (path / "__init__.py").is_file():
            yield path.name


def _arguments(choice: FactoryChoice, function: Callable[..., Any], seed: int) -> Mapping[str, Any]:
    """The arguments of the file, and the seed where the function has an argument of that name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function in C, nothing is known
        return choice.arguments
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [name for name, each in parameters.items() if each.kind in by_name]
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for name in choice.arguments:
        if name not in known and not takes_all:
            raise ConfigError(f"task.arguments: {choice.factory} has no argument {name!r}: {nearest(name, known)}")
    given = {**({"seed": seed} if "seed" in known else {}), **choice.arguments}
    for name in known:
        if name not in given and parameters[name].default is inspect.Parameter.empty:
            raise ConfigError(f"task.arguments: {name!r} is missing: {choice.factory} needs it")
    return given


def _line(error: BaseException, choice: FactoryChoice) -> str:
    """An error in one line, and the last place in the user's own files that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if choice.folder and Path(choice.folder) in Path(frame.filename).parents]
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({Path(error.filename).name}, line {error.lineno})"
        return f"{type(error).__name__}: {error.msg}{place}"
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{place}" if text else f"{type(error).__name__}{place}"


def _article(value: object) -> str:
    if value is None:
        return "nothing"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}, {shown(value)}"
