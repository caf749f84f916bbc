"""Mutation testing: small mistakes are put into the code one at a time, and the tests have to notice each.

    PYTHONPATH=src:tests .venv/bin/python -m support.mutation core strategies --sample 100 --seed 0 --log FILE

Cosmic Ray (``pip install -e '.[mutation]'``) finds the places and writes the mutants: another operator, number,
comparison or constant, a condition turned round, a loop that is left out. Annotations and docstrings are left alone. Of
each package a random sample is tried. A mutant lives in a copy of the tree, and only the tests that concern its module
run, in a process that was forked after torch was loaded; it ends after a time limit, with everything that it started.
What was found is appended to the log line by line: the same command goes on where it was stopped. The summary goes to
``--save FILE``.
"""

import argparse
import ast
import ctypes
import difflib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.ast
import cosmic_ray.plugins
import psutil
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parents[2]
PRELOADED = ("pytest", "torch", "numpy", "scipy.optimize", "scipy.stats", "sklearn.datasets")
SLIPS = (  # of all that Cosmic Ray offers, what one could have written by mistake
    *(f"ReplaceBinaryOperator_{pair}" for pair in (
        "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Mod_FloorDiv", "Pow_Mul", "BitOr_BitAnd",
        "BitAnd_BitOr",
    )),
    *(f"ReplaceComparisonOperator_{pair}" for pair in (
        "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_GtE", "Gt_LtE", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is",
    )),
    "ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "AddNot", "ReplaceAndWithOr",
    "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop",
)  # fmt: skip

# The tests of a module: its own, or those of the package around it; those that notice most come first.
_DECIDE = ("strategies/test_decide.py",)
_MODELS = ("strategies/test_ec_dnn_by_hand.py", "learning/models/test_averaging.py", "strategies/test_ec_dnn.py")
TESTS: dict[str, Sequence[str]] = {
    "core": (
        "core/test_coordinator.py",
        "core/test_ledger.py",
        "core/test_rules.py",
        *_DECIDE,
        "strategies/test_handing_in.py",
        "strategies/test_regrouped.py",
    ),
    "core/fields": ("strategies/test_handing_in.py", "cli/test_wrong_input.py"),
    "core/speeds": ("strategies/test_regrouped.py",),
    "strategies": (*_DECIDE, "core/test_coordinator.py"),
    "strategies/regrouped": ("strategies/test_regrouped.py",),
    "strategies/ensemble_compression": ("strategies/test_handing_in.py",),
    "strategies/model_averaging": ("strategies/test_handing_in.py",),
    "strategies/handing_in": ("strategies/test_handing_in.py",),
    "theory": ("theory",),
    "theory/runtime": ("theory/runtime",),
    "theory/runtime/order_statistics": ("theory/runtime/test_order_statistics.py",),
    "theory/estimate": ("theory/runtime",),
    "theory/stability": ("theory/stability/test_stability.py", "theory/sdde/test_moments.py"),
    "theory/stability/net_weights": ("theory/stability/test_net_weights.py",),
    "theory/stability/schedules": ("theory/stability/test_schedules.py",),
    "theory/sdde": ("theory/sdde",),
    "theory/group_bound": ("theory/sdde/test_rates.py",),
    "pruning": ("pruning/test_samplers.py",),
    "pruning/shards": ("pruning/test_train_pruned.py",),
    "pruning/record": ("pruning/test_train_pruned.py", "reports/test_pruning_section.py"),
    "pruning/schedule": ("pruning/test_plan.py", "pruning/test_samplers.py"),
    "pruning/rules": ("pruning/test_memory.py", "pruning/test_samplers.py"),
    "pruning/memory": ("pruning/test_memory.py", "pruning/test_samplers.py", "pruning/test_train_pruned.py"),
    "learning": ("engine/test_train.py", *_MODELS),
    "learning/arena/arena": (
        "learning/arena/test_arena.py",
        "learning/gradients/test_shared_gradients.py",
        "learning/test_loss.py",
    ),
    "learning/arena/blobs": (
        "learning/arena/test_arena.py",
        "fleets/ray/test_ray_remote.py",
    ),
    "learning/contributions": ("engine/test_train.py", "engine/test_resume.py"),
    "learning/copies": ("learning/test_copies.py", "learning/test_buffers.py"),
    "learning/cost": ("fleets/simulated/test_billing.py",),
    "learning/curvature": ("learning/test_curvature.py",),
    "learning/fusing": ("learning/test_fusing.py",),
    "learning/generators": ("learning/test_generators.py",),
    "learning/gradients/lazy": ("learning/gradients/test_unused.py", "learning/test_fusing.py", "engine/test_train.py"),
    "learning/gradients/server": (
        "engine/test_train.py",
        "learning/test_copies.py",
        "learning/gradients/test_shared_gradients.py",
    ),
    "learning/gradients/shared": ("learning/gradients/test_shared_gradients.py",),
    "learning/gradients/work": ("learning/gradients/test_shared_gradients.py", "learning/test_loss.py"),
    "learning/learner": ("engine/test_train.py", "engine/test_build.py", *_MODELS),
    "learning/loss": ("learning/test_loss.py",),
    "learning/model_state": ("learning/test_buffers.py", "learning/test_copies.py"),
    "learning/models/averaging": _MODELS,
    "learning/models/compression": ("learning/models/test_distillation.py", *_MODELS),
    "learning/models/ensemble": ("learning/models/test_ensemble.py", "learning/models/test_relabelling.py", *_MODELS),
    "learning/models/server": _MODELS,
    "learning/models/shared": ("fleets/processes/test_process_models.py",),
    "learning/models/training": _MODELS,
    "learning/optimizers": ("engine/test_resume.py", "learning/test_torch_features.py"),
    "learning/task": ("engine/test_train.py",),
    "learning/threads": ("learning/test_threads.py",),
}


class Mutant(NamedTuple):
    """One slip at one place."""

    module: str  # such as core/ledger
    operator: str
    occurrence: int
    line: int

    @property
    def key(self) -> str:
        return f"{self.module}:{self.operator}:{self.occurrence}"


def mutants(package: str, source: Path) -> Iterator[Mutant]:
    """All slips of a package, in a fixed order."""
    for path in sorted((source / package).rglob("*.py")):
        code, module = path.read_text(), str(path.relative_to(source).with_suffix(""))
        tree, untouched = cosmic_ray.ast.get_ast(code), _untouched(code)
        for name in SLIPS:
            operator, occurrence = cosmic_ray.plugins.get_operator(f"core/{name}")(), 0
            for node in cosmic_ray.ast.ast_nodes(tree):
                for (line, column), _ in operator.mutation_positions(node):
                    if not any(begin <= (line, column) < end for begin, end in untouched):
                        yield Mutant(module, name, occurrence, line)
                    occurrence += 1


def _untouched(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations are, and what is for type checkers or for errors of the programmer alone."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            found.append(node.returns)
        elif isinstance(node, ast.Assert) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            found.append(node)
    return [
        ((each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0))  # type: ignore[attr-defined]
        for each in found
    ]


class Trial:
    """A copy of the tree, in which one mutant after the other is tried."""

    def __init__(self, copy: Path, limit: float | None) -> None:
        self.copy = copy
        self.limit = limit
        self.limits: dict[Sequence[str], float] = {}
        for name in ("src", "tests", "examples", "pyproject.toml"):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, copy / name)
        for name in PRELOADED:
            __import__(name)
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans of a trial become children of this process, and are ended

    def tests(self, module: str) -> Sequence[str]:
        return next(TESTS[str(place)] for place in (Path(module), *Path(module).parents) if str(place) in TESTS)

    def outcome(self, mutant: Mutant) -> dict[str, str]:
        """``killed``, ``survived`` or ``timed out``, the lines that are others, and the test that failed first."""
        path = self.copy / "src" / "paceline" / f"{mutant.module}.py"
        code, tests = path.read_text(), self.tests(mutant.module)
        if self.limit is None and tests not in self.limits:
            begin = time.monotonic()
            if (told := self._run(tests, limit=900.0)) != "survived":
                output = (self.copy / "output").read_text()
                raise RuntimeError(f"{', '.join(tests)}: {told} without any mutant\n{output[-3000:]}")
            self.limits[tests] = 30.0 + 3 * (time.monotonic() - begin)
        changed = mutate_code(code, cosmic_ray.plugins.get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
        assert changed is not None
        path.write_text(changed)
        try:
            told = self._run(tests, self.limit or self.limits[tests])
        finally:
            path.write_text(code)
        lines = difflib.unified_diff(code.splitlines(), changed.splitlines(), n=0, lineterm="")
        diff = "\n".join(line for line in lines if line[:3] not in ("---", "+++") and line[:2] != "@@")
        printed = (self.copy / "output").read_text(errors="replace").splitlines()
        failed = next((line for line in printed if line.startswith(("FAILED", "ERROR"))), "").partition(" - ")[0]
        return {"outcome": told, "diff": diff, "by": failed}

    def _run(self, tests: Sequence[str], limit: float) -> str:
        child = os.fork()
        if not child:
            self._be_tested(tests)
        end = time.monotonic() + limit
        try:
            while True:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
                if time.monotonic() > end:
                    return "timed out"
                time.sleep(0.05)
        finally:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            with suppress(ChildProcessError):
                while os.waitpid(-1, 0)[0]:
                    pass

    def _be_tested(self, tests: Sequence[str]) -> None:
        """The end of a forked process: 0 if all tests pass."""
        code = 1
        try:
            os.chdir(self.copy)
            os.environ["PYTHONPATH"] = str(self.copy / "src")
            sys.path[:] = [
                str(self.copy / "src"),
                *(path for path in sys.path if not Path(path).is_relative_to(ROOT / "tests")),
            ]
            del sys.modules["support"]
            sys.dont_write_bytecode = True
            output = os.open(self.copy / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            import pytest

            files = [f"tests/{test}" for test in tests]
            code = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *files])
            if not Path(sys.modules["paceline"].__file__ or "").is_relative_to(self.copy):
                code = 3
        finally:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)


def _missing() -> Iterator[str]:
    """Modules and files of ``TESTS`` that were moved since."""
    source, tests = ROOT / "src" / "paceline", ROOT / "tests"
    yield from (module for module in TESTS if not ((source / module).is_dir() or (source / f"{module}.py").is_file()))
    yield from sorted({file for files in TESTS.values() for file in files if not (tests / file).exists()})


def summary(found: Sequence[dict[str, object]], populations: dict[str, int]) -> dict[str, object]:
    packages: dict[str, object] = {}
    for package, population in populations.items():
        own = [each for each in found if str(each["module"]).split("/")[0] == package]
        survivors = [each for each in own if each["outcome"] == "survived"]
        packages[package] = {
            "places_and_slips": population,
            "tried": len(own),
            "killed": len(own) - len(survivors),
            "of_these_timed_out": sum(each["outcome"] == "timed out" for each in own),
            "score": round(1 - len(survivors) / len(own), 3) if own else None,
            "survivors": [f"{each['module']}:{each['line']} {each['diff']}" for each in survivors],
        }
    return packages


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("packages", nargs="+", choices=[name for name in TESTS if "/" not in name])
    parser.add_argument("--sample", type=int, default=100, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument("--only", default="", help="modules whose name begins so")
    parser.add_argument(
        "--limit", type=float, help="seconds for the tests of one; otherwise thrice what they take without a mutant"
    )
    asked = parser.parse_args()
    if missing := [*_missing()]:
        parser.error(f"TESTS names what is not there: {', '.join(missing)}")
    os.environ.update(OMP_NUM_THREADS="1")
    done: dict[str, dict[str, object]] = {}
    if asked.log.exists():
        done = {line["key"]: line for line in map(json.loads, asked.log.read_text().splitlines())}
    populations: dict[str, int] = {}
    tried: list[dict[str, object]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="paceline-mutation-") as place, asked.log.open("a", buffering=1) as log:
        trial = Trial(Path(place), asked.limit)
        samples: list[list[Mutant]] = []
        for package in asked.packages:
            every = [m for m in mutants(package, trial.copy / "src" / "paceline") if m.module.startswith(asked.only)]
            populations[package] = len(every)
            random.Random(asked.seed).shuffle(every)  # a larger sample has all of a smaller one
            samples.append(every[: asked.sample])
        for mutant in (each for several in zip_longest(*samples) for each in several if each is not None):
            if mutant.key not in done or (asked.again and done[mutant.key]["outcome"] == "survived"):
                begin = time.monotonic()
                line = {"key": mutant.key, **mutant._asdict(), **trial.outcome(mutant)}
                done[mutant.key] = {**line, "seconds": round(time.monotonic() - begin, 1)}
                log.write(json.dumps(done[mutant.key]) + "\n")
            tried.append(done[mutant.key])
    told = {"command": " ".join(["python -m support.mutation", *sys.argv[1:]]), "packages": summary(tried, populations)}
    text = json.dumps(told, indent=1)
    print(text)
    if asked.save:
        asked.save.write_text(text + "\n")


if __name__ == "__main__":
    main()
