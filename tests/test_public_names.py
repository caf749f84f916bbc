"""What users import: few names from one table, public modules, and nothing else in the documentation."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from paceline.strategies.catalogue import STRATEGIES
from support.site import written_pages

ROOT = Path(__file__).parent.parent
MODULES = ("callbacks", "delays", "integrations", "look", "strategy", "testing", "theory")
INTEGRATIONS = ("huggingface", "lightning")
PUBLIC = {
    "paceline",
    *(f"paceline.{name}" for name in MODULES),
    *(f"paceline.integrations.{name}" for name in INTEGRATIONS),
}
FORMER = {
    "Constant": "paceline.delays.Constant",
    "Deadline": "paceline.SilenceTimeout",
    "Empirical": "paceline.delays.Empirical",
    "HandedOn": "paceline.ReassignShards",
    "IllegalDecision": "paceline.strategy.IllegalDecision",
    "ImpossibleEvent": "paceline.strategy.ImpossibleEvent",
    "LogNormal": "paceline.delays.LogNormal",
    "Pareto": "paceline.delays.Pareto",
    "ShiftedExponential": "paceline.delays.ShiftedExponential",
    "Strategy": "paceline.strategy.Strategy",
    "distilled_steps": "paceline.strategy.distilled_steps",
    "local_steps": "paceline.strategy.local_steps",
}
SNIPPET = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def test_there_are_few_names_and_they_exist() -> None:
    """Rules are counted by themselves: each is a name that a paper has, and users look for it.

    The last two that were added are ``advise`` and ``Advice``, its result: what users of real fleets begin with.
    """
    rules = {named.kind.__name__ for named in STRATEGIES}
    assert len({*paceline.__all__} - rules) <= 54
    assert rules <= {*paceline.__all__}
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)
    assert {*paceline.__all__, *MODULES} <= {*dir(paceline)}
    assert {"train", "simulate", "replay", "predict", "profile", "load", "read_trace"} <= {*paceline.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Synchronus'"):
        _ = paceline.Synchronus


def test_type_checkers_see_the_same_names() -> None:
    """Each from the module that it is loaded from."""
    (block,) = (
        node
        for node in ast.parse(Path(paceline.__file__).read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    imported = [(node.module, alias) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for _, alias in imported)
    seen = {alias.name: module for module, alias in imported}
    assert seen.keys() == {*paceline.__all__, *MODULES}
    for name in paceline.__all__:
        assert getattr(importlib.import_module(str(seen[name])), name) is getattr(paceline, name)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_module_says_what_is_public(name: str) -> None:
    module = importlib.import_module(f"paceline.{name}")
    assert getattr(paceline, name) is module
    assert all(hasattr(module, each) for each in module.__all__)
    assert module.__doc__


@pytest.mark.parametrize(("former", "now"), FORMER.items())
def test_a_former_name_works_and_tells_its_new_place(former: str, now: str) -> None:
    module, _, name = now.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"^paceline\.{former} is now {re.escape(now)}$") as told:
        value = getattr(paceline, former)
    assert value is getattr(importlib.import_module(module), name)
    assert told[0].filename == __file__


def test_no_former_name_is_forgotten() -> None:
    assert paceline._FORMER == FORMER


def sources() -> Iterator[tuple[str, str]]:
    for file in sorted((ROOT / "examples").rglob("*.py")):
        yield file.name, file.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written_pages()):
        for number, match in enumerate(SNIPPET.finditer(page.read_text(encoding="utf-8"))):
            yield f"{page.name}, snippet {number}", match[1]


SOURCES = dict(sources())


@pytest.mark.parametrize("code", SOURCES.values(), ids=SOURCES.keys())
def test_the_documentation_imports_public_names_only(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "paceline":
                    assert alias.name in PUBLIC
                    assert alias.asname is None, "write import paceline"
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "paceline":
            assert node.module in PUBLIC
            module = importlib.import_module(str(node.module))
            allowed = {*module.__all__, *(MODULES if module is paceline else ())}
            assert {alias.name for alias in node.names} <= allowed
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "paceline":
            assert node.attr in {*paceline.__all__, *MODULES, "__version__"}
