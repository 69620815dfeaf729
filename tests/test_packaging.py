"""The wheel holds one package, ``oncegate``, and all of it, although its folders stand at the top of the tree."""

import json
import os
import platform
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from pyproject_hooks import BuildBackendHookCaller

from oncegate import __version__
from testing.wheelhouse import copy_checkout

ROOT = Path(__file__).parent.parent
NAMED = "5f0c" * 10
"""A commit, as what builds an image says it."""
FOLDERS = {
    "oncegate": "src/oncegate",
    "oncegate/app": "app",
    "oncegate/middleware": "middleware",
    "oncegate/cache": "cache",
}


def sources(folder: Path) -> Iterator[Path]:
    """The files below ``folder``, without those behind links."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".pyc":
            yield path
        elif path.is_dir() and not path.is_symlink() and path.name != "__pycache__":
            yield from sources(path)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: nothing that an earlier build has left is in it, nor git's folder."""
    tree = tmp_path_factory.mktemp("tree") / "oncegate"
    copy_checkout(tree)
    return tree


def build(source: Path, into: Path, **environment: str) -> zipfile.ZipFile:
    """The wheel of a tree, or of packed sources, as pip builds it."""
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(into), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert "BuildBackendWarning" not in done.stdout + done.stderr
    return zipfile.ZipFile(next(into.glob("*.whl")))


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    before = set(sources(tree))
    with build(tree, tmp_path_factory.mktemp("wheel"), ONCEGATE_COMMIT=NAMED) as archive:
        yield archive
    assert set(sources(tree)) == before, "a build leaves nothing in the tree"


def test_the_wheel_holds_what_the_tree_holds(wheel: zipfile.ZipFile) -> None:
    tree = {
        f"{package}/{file.relative_to(ROOT / folder)}"
        for package, folder in FOLDERS.items()
        for file in sources(ROOT / folder)
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == {*tree, "oncegate/commit.txt"}
    assert "oncegate/py.typed" in packed
    assert any(name.endswith(".lua") for name in packed)


def test_the_wheel_says_what_it_is_of(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    assert (
        version_of(tmp_path)
        == f"oncegate {__version__}, commit {NAMED}, from source, CPython {platform.python_version()}\n"
    )


def version_of(site: Path) -> str:
    """What `oncegate --version` prints for a package of its own folder."""
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from oncegate.app.cli.main import main; main(['--version'])"
    return subprocess.run([sys.executable, "-c", code, str(site)], cwd=site, capture_output=True, text=True).stdout


def test_packed_sources_make_the_same_wheel_of_the_same_commit(
    wheel: zipfile.ZipFile, tree: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "ONCEGATE_COMMIT": NAMED})
    assert done.returncode == 0, done.stderr
    with build(next(tmp_path.glob("*.tar.gz")), tmp_path / "wheel") as other:
        assert other.namelist() == wheel.namelist()
        assert [name for name in wheel.namelist() if other.read(name) != wheel.read(name)] == []


def bill_of(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """Its bill of materials, in the folder that PEP 770 names."""
    (name,) = [name for name in wheel.namelist() if ".dist-info/sboms/" in name]
    text = wheel.read(name).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill: dict[str, Any] = json.loads(text)
    return bill


def test_the_wheel_s_bill_of_materials_names_it_and_what_it_needs(wheel: zipfile.ZipFile) -> None:
    bill = bill_of(wheel)
    itself = bill["metadata"]["component"]
    assert (itself["purl"], itself["components"]) == (f"pkg:pypi/oncegate@{__version__}", [])
    assert {"name": "oncegate:commit", "value": NAMED} in itself["properties"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = {Requirement(line).name for line in project["dependencies"]}
    extras = {Requirement(line).name for extra in project["optional-dependencies"].values() for line in extra}
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert scopes == {**dict.fromkeys(extras, "optional"), **dict.fromkeys(required, "required")}
    needed = {line["value"] for each in bill["components"] for line in each["properties"]}
    assert {*project["dependencies"]} < needed


@pytest.mark.parametrize(
    ("given", "needs_mypy"), [({}, False), ({"ONCEGATE_COMPILED": "0"}, False), ({"ONCEGATE_COMPILED": "1"}, True)]
)
def test_a_build_needs_mypy_only_where_it_compiles(tree: Path, given: dict[str, str], needs_mypy: bool) -> None:
    needed = {Requirement(line).name for line in hooks(tree, **given).get_requires_for_build_wheel()}
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    by_types = {"mypy", *(Requirement(line).name for line in dependencies)}
    assert needed >= by_types if needs_mypy else needed == set()


@pytest.mark.parametrize(
    ("hook", "given", "line"),
    [
        ("get_requires_for_build_wheel", "yes", "ONCEGATE_COMPILED: is 1, unoptimized or 0, not yes"),
        ("get_requires_for_build_editable", "1", "an editable installation runs from source: unset ONCEGATE_COMPILED"),
    ],
)
def test_what_can_t_be_compiled_is_said(
    tree: Path, capfd: pytest.CaptureFixture[str], hook: str, given: str, line: str
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        getattr(hooks(tree, ONCEGATE_COMPILED=given), hook)()
    assert line in capfd.readouterr().err


def hooks(tree: Path, **environment: str) -> BuildBackendHookCaller:
    """The build backend as pip calls it, by what pyproject.toml says."""

    def run(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        subprocess.run(cmd, cwd=cwd, env={**os.environ, **environment, **(extra_environ or {})}, check=True)

    system = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["build-system"]
    return BuildBackendHookCaller(str(tree), system["build-backend"], system["backend-path"], run)


def test_the_wheel_installs_one_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert sorted(top for top in tops if not top.endswith(".dist-info")) == ["oncegate"]


def test_every_module_of_the_wheel_can_be_imported(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        "import sys, pkgutil, importlib; sys.path.insert(0, sys.argv[1]); import oncegate\n"
        "assert oncegate.__file__.startswith(sys.argv[1]), oncegate.__file__\n"
        "names = [m.name for m in pkgutil.walk_packages(oncegate.__path__, 'oncegate.')]\n"
        "assert 'oncegate.cache.redis.store' in names and 'oncegate.app.cli.main' in names, names\n"
        "for name in names: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_console_script_is_there(wheel: zipfile.ZipFile) -> None:
    scripts = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "oncegate = oncegate.app.cli.main:main" in wheel.read(scripts).decode()
