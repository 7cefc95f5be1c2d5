"""What gainstage needs installed, what is, and the command that mends what does not fit."""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

import gainstage

COMPANIONS = ("torchvision", "torchaudio")


@dataclass(frozen=True)
class Package:
    """A package that gainstage needs: `wanted` is the range, `installed` None where it is missing."""

    name: str
    wanted: str
    installed: str | None

    @property
    def fits(self) -> bool:
        return self.installed is not None and Requirement(self.name + self.wanted).specifier.contains(
            self.installed, prereleases=True
        )


@dataclass(frozen=True)
class Extra:
    """An optional part, and the command that installs it."""

    name: str
    packages: tuple[Package, ...]
    command: str

    @property
    def complete(self) -> bool:
        return all(package.fits for package in self.packages)


@dataclass(frozen=True)
class Finding:
    """Something that does not fit. `error`: gainstage will not work right; otherwise it is good to know."""

    error: bool
    text: str
    command: str = ""


def pip(*arguments: str) -> str:
    """The command that installs into the very Python that runs."""
    return shlex.join([sys.executable, "-m", "pip", "install", *arguments])


def requirements() -> list[tuple[Requirement, str | None]]:
    """What gainstage needs on this machine, with the extra it belongs to; `dev` is left out.

    Read from the installed package, or from pyproject.toml where gainstage runs from its source.
    """
    try:
        lines = importlib.metadata.requires("gainstage") or []
    except importlib.metadata.PackageNotFoundError:
        project = Path(gainstage.__file__).parents[2] / "pyproject.toml"
        table = tomllib.loads(project.read_text())["project"] if project.exists() else {}
        lines = [*table.get("dependencies", [])]
        for extra, needs in table.get("optional-dependencies", {}).items():
            for need in map(Requirement, needs):
                marker = f"({need.marker}) and " if need.marker else ""
                lines.append(f"{need.name}{need.specifier} ; {marker}extra == '{extra}'")
    found = []
    for need in map(Requirement, lines):
        extra = _extra_of(need)
        if extra != "dev" and (need.marker is None or need.marker.evaluate({"extra": extra or ""})):
            found.append((need, extra))
    return found


def _extra_of(need: Requirement) -> str | None:
    text = str(need.marker or "")
    return text.split("extra == ")[1].split('"')[1] if "extra == " in text else None


def package_of(need: Requirement) -> Package:
    """What is installed of it."""
    return Package(need.name, str(need.specifier), _version(need.name))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_core(core: Iterable[Package]) -> list[Finding]:
    """Packages that are missing or outside the range that gainstage works with."""
    findings = []
    for package in core:
        if package.installed is None:
            findings.append(Finding(True, f"{package.name} is missing", pip(package.name + package.wanted)))
        elif not package.fits:
            text = f"{package.name} {package.installed} is outside the range {package.wanted}"
            findings.append(Finding(True, text, pip(package.name + package.wanted)))
    return findings


def check_conflicts(core: Iterable[str] = ()) -> list[Finding]:
    """Installed packages that ask for other versions of installed packages than are there.

    Looked at are the packages that gainstage needs, directly or through others, and those that need one of them. It is
    an error in the former, and in torch's companions, which transformers imports where it finds them.
    """
    dists = {_plain(d.metadata["Name"]): d for d in importlib.metadata.distributions() if d.metadata["Name"]}
    dists.pop("gainstage", None)
    ours = _closure(core, dists)
    findings = []
    for name, dist in sorted(dists.items()):
        for need in map(Requirement, dist.requires or []):
            wanted = _plain(need.name)
            if need.marker and not need.marker.evaluate({"extra": ""}):
                continue
            installed = dists[wanted].version if wanted in dists else None
            if installed is None or need.specifier.contains(installed, prereleases=True):
                if installed is None and name in ours:
                    text = f"{name} {dist.version} needs {need.name}, which is missing"
                    findings.append(Finding(True, text, pip(f"{need.name}{need.specifier}")))
                continue
            text = f"{name} {dist.version} needs {need.name}{need.specifier}, but {installed} is installed"
            if name in ours:
                findings.append(Finding(True, text, pip(f"{need.name}{need.specifier}")))
            elif name in COMPANIONS:
                text += f"; {name} is not needed here, and breaks transformers"
                findings.append(Finding(True, text, shlex.join([sys.executable, "-m", "pip", "uninstall", "-y", name])))
            elif wanted in ours:
                findings.append(Finding(False, text, pip("--upgrade", name, f"{need.name}=={installed}")))
    return findings


def _closure(roots: Iterable[str], dists: dict[str, importlib.metadata.Distribution]) -> set[str]:
    found: set[str] = set()
    todo = [_plain(name) for name in roots]
    while todo:
        name = todo.pop()
        if name in found or name not in dists:
            continue
        found.add(name)
        for need in map(Requirement, dists[name].requires or []):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                todo.append(_plain(need.name))
    return found


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
