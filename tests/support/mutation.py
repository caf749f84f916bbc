"""Mutation testing: small mistakes are put into the code one at a time, and the tests have to notice each.

    PYTHONPATH=src:tests .venv/bin/python -m support.mutation core strategies --sample 100 --seed 0 --log FILE

Cosmic Ray (``pip install -e '.[mutation]'``) finds the places and writes the mutants: another operator, number,
comparison or constant, a condition turned round, a loop that is left out. Annotations and docstrings are left alone. Of
each package a random sample is tried. A mutant lives in a copy of the tree. First all tests that start no process are
run once, and coverage notes which of them execute which lines, beside the log; then only tests that execute the line of
a mutant are run, the shortest first, in a process that was forked after torch was loaded; it ends after a time limit,
with everything that it started. What was found is appended to the log line by line: the same command goes on where it
was stopped. The summary goes to ``--save FILE``.
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
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cosmic_ray.ast
import cosmic_ray.plugins
import psutil
from cosmic_ray.mutating import mutate_code

if TYPE_CHECKING:
    import pytest
    from coverage import Coverage

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

# What worker processes execute coverage does not see: tests that start these are run after the others.
IN_WORKERS: dict[str, Sequence[str]] = {
    "learning/models/shared": ("tests/fleets/processes/test_process_models.py",),
    "learning/models": (
        "tests/fleets/processes/test_process_models.py",
        "tests/fleets/processes/test_worker_state.py",
    ),
    "pruning/samplers": ("tests/pruning/test_pruning_over_ranks.py",),
    "learning/gradients": ("tests/fleets/processes/test_processes.py", "tests/fleets/processes/test_gangs.py"),
    "learning": ("tests/fleets/processes/test_processes.py", "tests/fleets/processes/test_process_models.py"),
}
MOST_SECONDS = 60.0  # of tests for one mutant
PACKAGES = ("core", "strategies", "learning", "pruning", "theory")


class Covered(NamedTuple):
    """Which tests execute which lines."""

    seconds: dict[str, float]  # of each test function, its parameters together
    tests: dict[str, dict[str, list[str]]]  # of each line of each module; those of line 0 execute any line of it

    def of(self, module: str, lines: Sequence[int]) -> list[str]:
        """Tests that execute one of the lines: those of its own package first, then the shortest."""
        by_line = self.tests.get(module, {})
        found = {test for line in lines for test in by_line.get(str(line), ())} or {*by_line.get("0", ())}
        own = f"tests/{module.partition('/')[0]}/"
        chosen: list[str] = []
        left = MOST_SECONDS
        for test in sorted(found, key=lambda test: (not test.startswith(own), self.seconds[test], test)):
            if not chosen or self.seconds[test] <= left:
                chosen.append(test)
                left -= self.seconds[test]
        return chosen


class _Marks:
    """A plugin of pytest that tells coverage which test is running."""

    def __init__(self, coverage: "Coverage") -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}
        self._skipped: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid.partition("[")[0])

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        test = report.nodeid.partition("[")[0]
        self.seconds[test] = self.seconds.get(test, 0.0) + report.duration
        if report.outcome != "passed":
            self._skipped.add(test)

    def covered(self, package: Path) -> Covered:
        self.seconds = {test: taken for test, taken in self.seconds.items() if test not in self._skipped}
        data, tests = self._coverage.get_data(), dict[str, dict[str, list[str]]]()
        for file in data.measured_files():
            module = str(Path(file).relative_to(package).with_suffix(""))
            lines = {
                str(line): [test for test in found if test in self.seconds]
                for line, found in data.contexts_by_lineno(file).items()
            }
            tests[module] = {**lines, "0": sorted({test for found in lines.values() for test in found})}
        return Covered(self.seconds, tests)


def lines_of(code: str, line: int) -> list[int]:
    """The lines of the innermost statement around one; of a statement with a body, those before the body."""
    inner: list[int] = [line]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or line
            if line <= max(last, node.lineno):  # walk goes from the outside to the inside
                inner = [*range(node.lineno, max(last, node.lineno) + 1)]
    return inner


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

    def __init__(self, copy: Path, covered: Path) -> None:
        self.copy = copy
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in tracked.stdout.split("\0")[:-1]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        for name in PRELOADED:
            __import__(name)
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans of a trial become children of this process, and are ended
        if not covered.exists():
            told = self._run(["--quick", "--long"], 3600.0, covered)
            if not covered.exists():
                raise RuntimeError(f"the tests: {told} without any mutant\n{(copy / 'output').read_text()[-3000:]}")
        self.covered = Covered(**json.loads(covered.read_text()))

    def tests(self, mutant: Mutant, code: str) -> tuple[Sequence[str], float]:
        """Those that concern a mutant, and the limit of their time."""
        tests = self.covered.of(mutant.module, lines_of(code, mutant.line))
        places = (Path(mutant.module), *Path(mutant.module).parents)
        more = next((IN_WORKERS[str(place)] for place in places if str(place) in IN_WORKERS), ())
        return [*tests, *more], 60.0 + 5 * sum(self.covered.seconds[test] for test in tests) + 400.0 * bool(more)

    def outcome(self, mutant: Mutant) -> dict[str, str]:
        """``killed``, ``survived`` or ``timed out``, the lines that are others, and the test that failed first."""
        path = self.copy / "src" / "paceline" / f"{mutant.module}.py"
        code = path.read_text()
        tests, limit = self.tests(mutant, code)
        changed = mutate_code(code, cosmic_ray.plugins.get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
        assert changed is not None
        path.write_text(changed)
        try:
            told = self._run(tests, limit) if tests else "survived"
        finally:
            path.write_text(code)
        lines = difflib.unified_diff(code.splitlines(), changed.splitlines(), n=0, lineterm="")
        diff = "\n".join(line for line in lines if line[:3] not in ("---", "+++") and line[:2] != "@@")
        printed = (self.copy / "output").read_text(errors="replace").splitlines() if tests else []
        failed = next((line for line in printed if line.startswith(("FAILED", "ERROR"))), "").partition(" - ")[0]
        return {"outcome": told, "diff": diff, "by": failed}

    def _run(self, tests: Sequence[str], limit: float, covered: Path | None = None) -> str:
        child = os.fork()
        if not child:
            self._be_tested(tests, covered)
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

    def _be_tested(self, tests: Sequence[str], covered: Path | None) -> None:
        """The end of a forked process: 0 if all tests pass. It may write down which tests execute which lines."""
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

            arguments = ["-q", "-n", "0", "-p", "no:cacheprovider", *tests]
            if covered is None:
                code = pytest.main(["-x", *arguments])
            else:
                self._cover(arguments, covered)
            if not Path(sys.modules["paceline"].__file__ or "").is_relative_to(self.copy):
                code = 3
        finally:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)

    def _cover(self, arguments: Sequence[str], covered: Path) -> None:
        import pytest
        from coverage import Coverage

        package = self.copy / "src" / "paceline"
        coverage = Coverage(data_file=None, config_file=False, source=[str(package)])
        marks = _Marks(coverage)
        coverage.start()
        pytest.main([*arguments], plugins=[marks])
        coverage.stop()
        if marks.seconds:
            covered.write_text(json.dumps(marks.covered(package)._asdict()))


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
    parser.add_argument("packages", nargs="+", choices=PACKAGES)
    parser.add_argument("--sample", type=int, default=100, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument("--only", default="", help="modules whose name begins so")
    asked = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1")
    done: dict[str, dict[str, object]] = {}
    if asked.log.exists():
        done = {line["key"]: line for line in map(json.loads, asked.log.read_text().splitlines())}
    populations: dict[str, int] = {}
    tried: list[dict[str, object]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="paceline-mutation-") as place, asked.log.open("a", buffering=1) as log:
        trial = Trial(Path(place).resolve(), asked.log.with_suffix(".lines.json"))
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
