"""`gainstage doctor`: what is installed and fits together, on what it runs, where data is looked for."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gainstage
from gainstage.cli.common import AsJson, people_errors
from gainstage.cli.packages import (
    Extra,
    Finding,
    Package,
    check_conflicts,
    check_core,
    package_of,
    pip,
    requirements,
)
from gainstage.ops.extras import source

GIGA = 2**30


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
        for extra, found in zip(data["extras"], self.extras, strict=True):
            extra["complete"] = found.complete
        return data


def diagnose(*, measure: bool = True) -> Report:
    """Look at everything; nothing is changed and nothing is fetched.

    Args:
        measure: also time a matrix product (a third of a second).
    """
    report = Report()
    needs = requirements()
    report.core = [package_of(need) for need, extra in needs if extra is None]
    names = dict.fromkeys(extra for _, extra in needs if extra is not None)
    for name in names:
        packages = tuple(package_of(need) for need, extra in needs if extra == name)
        report.extras.append(Extra(name, packages, pip(*shlex.split(source(name)))))
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
