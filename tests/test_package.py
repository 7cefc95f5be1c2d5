"""What is shipped: every file of the package that git holds, and nothing else of the repository."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("gainstage-*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_holds_the_package_with_its_data(wheel: zipfile.ZipFile):
    listed = subprocess.run(["git", "ls-files", "src/gainstage"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name.removeprefix("src/") for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    shipped = set(wheel.namelist())
    assert tracked <= shipped
    assert {"gainstage/py.typed", "gainstage/registry.py"} <= shipped
    assert any(name.startswith("gainstage/catalog/") and name.endswith(".yaml") for name in shipped)
    assert any(name.startswith("gainstage/policies/language/weights/") for name in shipped)
    assert all(name.startswith(("gainstage/", "gainstage-")) for name in shipped)
    assert not [name for name in shipped if "__pycache__" in name]


def test_the_wheel_is_small_enough_to_ship_weights(wheel: zipfile.ZipFile):
    assert sum(item.compress_size for item in wheel.infolist()) < 20 * 2**20


def test_metadata_names_the_command_and_the_extras(wheel: zipfile.ZipFile):
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert "gainstage = gainstage.cli.main:app" in wheel.read(f"{info}/entry_points.txt").decode()
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata and "Requires-Python: >=3.11" in metadata
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


def test_versions_agree():
    import gainstage

    assert f"\nversion: {gainstage.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_locks_satisfy_the_ranges():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = {}
    for name in ("requirements.lock", "requirements-compiled.lock"):
        for line in (ROOT / name).read_text().split():
            package, version = line.split("==")
            pins[canonicalize_name(package)] = version
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(line for needs in extras.values() for line in needs)]:
        need = Requirement(line)
        pin = pins.get(canonicalize_name(need.name))
        assert pin is None or need.specifier.contains(pin), f"{need} against {pin}"
    for line in [*PROJECT["dependencies"], *extras["dev"], *extras["lora"], *extras["math"], *extras["gguf"]]:
        assert canonicalize_name(Requirement(line).name) in pins, line
