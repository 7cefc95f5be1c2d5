"""`gainstage doctor`: what is installed and fits together, on what it runs, where data is looked for."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import gainstage
from gainstage.cli.common import AsJson, people_errors

GIGA = 2**30
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


@dataclass
class Report:
    """All that `doctor` found; plain data throughout."""

    versions: dict[str, str] = field(default_factory=dict)
    core: list[Package] = field(default_factory=list)
    extras: list[Extra] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    matmul: dict[str, float] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not any(finding.error for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self) | {"healthy": self.healthy}
        for extra, source in zip(data["extras"], self.extras, strict=True):
            extra["complete"] = source.complete
        return data


def pip(*arguments: str) -> str:
    """The command that installs into the very Python that runs."""
    return shlex.join([sys.executable, "-m", "pip", "install", *arguments])


def diagnose(*, measure: bool = True) -> Report:
    """Look at everything; nothing is changed and nothing is fetched.

    Args:
        measure: also time a matrix product (a third of a second).
    """
    report = Report()
    needs = requirements()
    report.core = [_package(need) for need, extra in needs if extra is None]
    names = dict.fromkeys(extra for _, extra in needs if extra is not None)
    for name in names:
        packages = tuple(_package(need) for need, extra in needs if extra == name)
        report.extras.append(Extra(name, packages, pip(f"gainstage[{name}]")))
    report.versions = {
        "gainstage": gainstage.__version__,
        "from": str(Path(gainstage.__file__).parent),
        "python": platform.python_version(),
        "executable": sys.executable,
    }
    report.machine = machine()
    report.data = data_folder()
    if measure:
        report.matmul = matmul_speed(report.machine["cores"])
    report.findings = [
        *check_core(report.core),
        *check_conflicts({package.name for package in report.core}),
        *check_machine(report.machine, report.matmul),
        *check_data(report.data),
    ]
    return report


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


def _package(need: Requirement) -> Package:
    return Package(need.name, str(need.specifier), _version(need.name))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Processor, memory, disk, threads and accelerators."""
    import psutil
    import torch

    from gainstage.tracking.environment import cores, processor

    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append({"name": properties.name, "gigabytes": round(properties.total_memory / GIGA, 1)})
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "load": round(psutil.getloadavg()[0], 1),
        "memory_gigabytes": round(memory.total / GIGA, 1),
        "memory_free_gigabytes": round(memory.available / GIGA, 1),
        "disk_free_gigabytes": round(disk.free / GIGA, 1),
        "gpus": gpus,
        "torch_cuda": torch.version.cuda,
        "mps": bool(torch.backends.mps.is_available()),
        "nvidia_driver": shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists(),
    }


def data_folder() -> dict[str, Any]:
    """Where data sets are looked for, and what lies there."""
    from gainstage.tasks.text.readers import DATA_VARIABLE, data_dir

    folder = data_dir()
    return {
        "folder": str(folder),
        "set_by": DATA_VARIABLE if os.environ.get(DATA_VARIABLE) else "default",
        "exists": folder.is_dir(),
        "entries": sorted(path.name for path in folder.iterdir())[:50] if folder.is_dir() else [],
        "hub_offline": os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"),
    }


def matmul_speed(cores: int, size: int = 512, seconds: float = 0.15) -> dict[str, float]:
    """GFLOP/s of a float32 matrix product, with one thread and with one a core."""
    import torch

    before = torch.get_num_threads()
    left, right = torch.rand(size, size), torch.rand(size, size)
    speeds = {}
    try:
        for threads in dict.fromkeys((1, cores)):
            torch.set_num_threads(threads)
            torch.mm(left, right)
            started, spent, products = time.perf_counter(), 0.0, 0
            while spent < seconds:
                torch.mm(left, right)
                products += 1
                spent = time.perf_counter() - started
            speed = 2e-9 * size**3 * products / spent
            speeds[f"{threads} thread{'s' if threads > 1 else ''}"] = float(f"{speed:.3g}")
    finally:
        torch.set_num_threads(before)
    return speeds


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


def check_machine(found: dict[str, Any], matmul: dict[str, float]) -> list[Finding]:
    """Accelerators that torch does not see, threads that cost more than they bring, little memory or disk."""
    findings = []
    if found["nvidia_driver"] and not found["gpus"]:
        if found["torch_cuda"] is None:
            text = "an NVIDIA driver is here, but this torch is built for the CPU only"
            findings.append(Finding(False, text, pip("--force-reinstall", "torch")))
        else:
            text = f"an NVIDIA driver is here and torch is built for CUDA {found['torch_cuda']}, but it sees no GPU"
            findings.append(Finding(False, text + " (CUDA_VISIBLE_DEVICES empty, or the driver too old)", "nvidia-smi"))
    speeds = list(matmul.values())
    if len(speeds) == 2 and speeds[1] < 1.1 * speeds[0]:
        text = f"{found['cores']} threads are no faster than one here"
        if found["load"] > found["cores"] / 2:
            text += f", but other programs are busy (load {found['load']}): look again when they are done"
            findings.append(Finding(False, text))
        else:
            text += "; for small models one thread is the better choice"
            findings.append(Finding(False, text, "export OMP_NUM_THREADS=1"))
    if found["threads"] > found["cores"]:
        text = f"torch uses {found['threads']} threads on {found['cores']} cores, which slows it down"
        findings.append(Finding(False, text, f"export OMP_NUM_THREADS={found['cores']}"))
    if found["memory_free_gigabytes"] < 2:
        findings.append(Finding(False, f"only {found['memory_free_gigabytes']} GB of memory are free"))
    if found["disk_free_gigabytes"] < 2:
        findings.append(Finding(False, f"only {found['disk_free_gigabytes']} GB of disk are free here: runs need room"))
    return findings


def check_data(found: dict[str, Any]) -> list[Finding]:
    """A data folder that was named but is not there."""
    if found["set_by"] != "default" and not found["exists"]:
        return [Finding(True, f"GAINSTAGE_DATA names {found['folder']}, which is no folder", "unset GAINSTAGE_DATA")]
    return []


def render(report: Report) -> str:
    """The report for people."""
    versions, found = report.versions, report.machine
    lines = [
        f"gainstage {versions['gainstage']} from {versions['from']}",
        f"Python {versions['python']} ({versions['executable']})",
        "",
        "Machine",
        f"  {found['processor']}, {found['cores']} cores, {found['memory_gigabytes']} GB memory "
        f"({found['memory_free_gigabytes']} free), {found['disk_free_gigabytes']} GB disk free",
        f"  device: {_device(found)}; torch uses {found['threads']} thread{'s' if found['threads'] > 1 else ''}",
    ]
    if report.matmul:
        speeds = ", ".join(f"{speed:g} GFLOP/s with {threads}" for threads, speed in report.matmul.items())
        lines.append(f"  float32 matrix product: {speeds}")
    lines += ["", "Packages"]
    for package in report.core:
        wanted = "" if package.fits else f"wanted: {package.wanted}"
        lines.append(f"  {package.name:<14} {package.installed or 'missing':<14} {wanted}".rstrip())
    lines += ["", "Extras"]
    for extra in report.extras:
        missing = [p.name if p.installed is None else f"{p.name} {p.wanted}" for p in extra.packages if not p.fits]
        state = "installed" if extra.complete else f"without {', '.join(missing)}: {extra.command}"
        lines.append(f"  {extra.name:<10} {state}")
    data = report.data
    state = "" if data["exists"] else ", which does not exist yet"
    lines += ["", "Data", f"  looked for in {data['folder']} ({data['set_by']}){state}"]
    if data["entries"]:
        lines.append(f"  there: {', '.join(data['entries'])}")
    lines += ["", "Findings" if report.findings else "Nothing to mend."]
    for finding in report.findings:
        lines.append(f"  {'error' if finding.error else 'note'}: {finding.text}")
        if finding.command:
            lines.append(f"         {finding.command}")
    return "\n".join(lines)


def _device(found: dict[str, Any]) -> str:
    if found["gpus"]:
        return ", ".join(f"cuda ({gpu['name']}, {gpu['gigabytes']} GB)" for gpu in found["gpus"])
    return "mps (Apple GPU)" if found["mps"] else "cpu"


@people_errors
def doctor(json_: AsJson = False) -> None:
    """Say what is installed, what it runs on, and how to mend what does not fit.

    Exit code 1 where something is wrong.

    Examples:

      gainstage doctor

      gainstage doctor --json
    """
    import typer

    report = diagnose()
    typer.echo(json.dumps(report.to_json(), indent=2) if json_ else render(report))
    if not report.healthy:
        raise typer.Exit(1)
