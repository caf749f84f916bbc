"""What is released: the files and metadata of wheel and sdist, one version, and the files that a repository has."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

import paceline

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEEDED = {"torch", "numpy", "scipy", "safetensors", "matplotlib", "rich", "typer", "cloudpickle"}
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist and a wheel, of a copy: building leaves files behind."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("src/paceline", "reproductions"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run([sys.executable, "-c", BUILD, out], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    with ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    info = f"paceline-{paceline.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"paceline", info}
    assert f"{info}/licenses/LICENSE" in names
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/paceline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("paceline/")} == source


def test_the_metadata(built: Path) -> None:
    with ZipFile(next(built.glob("*.whl"))) as wheel:
        told = HeaderParser().parsestr(wheel.read(f"paceline-{paceline.__version__}.dist-info/METADATA").decode())
        scripts = wheel.read(f"paceline-{paceline.__version__}.dist-info/entry_points.txt").decode()
    assert told["Version"] == paceline.__version__
    assert told["Requires-Python"] == ">=3.11"
    assert told["License-Expression"] == "Apache-2.0"
    required = told.get_all("Requires-Dist") or []
    assert {re.split(r"[>=<;\s]", each)[0] for each in required if "extra ==" not in each} == NEEDED
    assert [each for each in required if 'extra == "demo"' in each] == ['scikit-learn>=1.4; extra == "demo"']
    assert scripts.strip().endswith("paceline = paceline.cli.main:main")
    versions = {each.rsplit(" :: ", 1)[1] for each in told.get_all("Classifier") or [] if "Python :: 3." in each}
    assert versions == {"3.11", "3.12", "3.13", "3.14"}


def test_the_sdist_can_be_built_from(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/paceline/py.typed"} <= names


def test_the_version_has_one_place_and_the_changelog_names_the_next() -> None:
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    heading = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    assert heading[1].startswith(re.match(r"[\d.]*\d", paceline.__version__)[0])  # type: ignore[index]


def test_the_demo_installs_only_what_it_needs() -> None:
    """And `make venv` everything, on top of it."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = dict(re.findall(r"^\$\((\w+)\):[^\n]*\n((?:\t[^\n]*\n)+)", text, re.MULTILINE))
    assert "-e '.[demo]'" in recipes["DEMO"]
    assert re.search(r"^demo: \$\(DEMO\)$", text, re.MULTILINE)
    extras = re.search(r"\.\[(demo,[\w,]+)\]", recipes["INSTALLED"])
    assert extras is not None
    assert set(PROJECT["optional-dependencies"]) - set(extras[1].split(",")) <= {"bench", "mutation", "docs"}


@pytest.mark.parametrize("name", ["checks.yml"])
def test_the_workflow_runs_what_continuous_integration_runs(name: str) -> None:
    text = (ROOT / ".github/workflows" / name).read_text(encoding="utf-8")
    assert ".ci/run" in text
    assert ".ci/release" in text
    for script in ("run", "release"):
        assert (ROOT / ".ci" / script).stat().st_mode & 0o100
