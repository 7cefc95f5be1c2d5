"""`doctor` finds what does not fit and says the command that mends it."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

from gainstage.cli import doctor

MACHINE = {
    "platform": "Linux", "processor": "a processor", "cores": 2, "threads": 1, "omp_num_threads": "1", "load": 0.2,
    "memory_gigabytes": 24.0, "memory_free_gigabytes": 20.0, "disk_free_gigabytes": 50.0, "gpus": [],
    "torch_cuda": None, "mps": False, "nvidia_driver": False,
}  # fmt: skip


def install(monkeypatch: pytest.MonkeyPatch, **packages: tuple[str, list[str]]) -> None:
    """Pretend that exactly these packages are installed: name -> (version, requirements)."""
    dists = [
        SimpleNamespace(metadata={"Name": name.replace("_", "-")}, version=version, requires=needs)
        for name, (version, needs) in packages.items()
    ]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: dists)


def command(*words: str) -> str:
    return " ".join([sys.executable, "-m", "pip", *words])


def test_this_environment_is_healthy():
    report = doctor.diagnose(measure=False)
    assert report.healthy, [finding.text for finding in report.findings]
    assert {"torch", "transformers", "numpy"} <= {package.name for package in report.core}
    assert {"lora", "math", "tasks", "control", "view", "scale", "track"} <= {extra.name for extra in report.extras}
    assert all(extra.name != "dev" for extra in report.extras)
    assert report.machine["cores"] >= 1 and report.versions["gainstage"] and report.matmul == {}


def test_requirements_are_the_same_installed_and_from_the_source(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    installed = doctor.requirements()
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    source = doctor.requirements()
    assert {(need.name, str(need.specifier), extra) for need, extra in source} == {
        (need.name, str(need.specifier), extra) for need, extra in installed
    }
    assert ("peft", "lora") in [(need.name, extra) for need, extra in source]


def test_a_package_outside_its_range_is_told_with_the_command():
    packages = [
        doctor.Package("numpy", ">=2.0", "1.26.4"),
        doctor.Package("torch", ">=2.6", "2.13.0+cpu"),
        doctor.Package("rich", "", None),
    ]
    wrong, missing = doctor.check_core(packages)
    assert wrong.error and wrong.text == "numpy 1.26.4 is outside the range >=2.0"
    assert wrong.command == command("install", "'numpy>=2.0'")
    assert missing.text == "rich is missing" and missing.command == command("install", "rich")


def test_conflicts_inside_what_gainstage_needs_are_errors(monkeypatch: pytest.MonkeyPatch):
    needs = ["tokenizers<0.24,>=0.22", "regex", "absent; extra == 'x'"]
    install(monkeypatch, transformers=("5.0", needs), tokenizers=("0.25.1", []))
    conflict, missing = doctor.check_conflicts(["transformers"])
    assert conflict.error and "transformers 5.0 needs tokenizers<0.24,>=0.22, but 0.25.1 is installed" in conflict.text
    assert conflict.command == command("install", "'tokenizers<0.24,>=0.22'")
    assert missing.error and missing.text == "transformers 5.0 needs regex, which is missing"


def test_conflicts_around_it_are_notes_and_elsewhere_nothing(monkeypatch: pytest.MonkeyPatch):
    install(
        monkeypatch, torch=("2.13.0+cpu", []), other=("1.0", ["torch==2.9.0"]), far=("1.0", ["away<2"]),
        away=("2.0", []), torchvision=("0.30.0", ["torch==2.15.0"]), fine=("1.0", ["torch>=2"]),
        gainstage=("0.1", ["torch>=99"]),
    )  # fmt: skip
    note, companion = doctor.check_conflicts(["torch"])
    assert not note.error and note.text.startswith("other 1.0 needs torch==2.9.0")
    assert note.command == command("install", "--upgrade", "other", "torch==2.13.0+cpu")
    assert companion.error and companion.command == command("uninstall", "-y", "torchvision")


@pytest.mark.parametrize(
    ("change", "speeds", "word"),
    [
        ({"nvidia_driver": True}, {}, "built for the CPU only"),
        ({"nvidia_driver": True, "torch_cuda": "13.0"}, {}, "CUDA 13.0, but it sees no GPU"),
        ({"threads": 8}, {}, "8 threads on 2 cores"),
        ({}, {"1 thread": 20.0, "2 threads": 15.0}, "one thread is the better choice"),
        ({"load": 3.1}, {"1 thread": 20.0, "2 threads": 15.0}, "look again when they are done"),
        ({"memory_free_gigabytes": 0.5}, {}, "0.5 GB of memory"),
        ({"disk_free_gigabytes": 0.5}, {}, "0.5 GB of disk"),
    ],
)
def test_the_machine_is_looked_at(change: dict, speeds: dict, word: str):
    (finding,) = doctor.check_machine({**MACHINE, **change}, speeds)
    assert word in finding.text and not finding.error


def test_a_machine_in_order_gives_no_finding():
    assert doctor.check_machine(MACHINE, {"1 thread": 20.0, "2 threads": 38.0}) == []
    seen = {**MACHINE, "nvidia_driver": True, "gpus": [{"name": "X"}], "torch_cuda": "13"}
    assert doctor.check_machine(seen, {}) == []


def test_the_data_folder_is_named_with_who_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gsm8k_test.jsonl").touch()
    monkeypatch.setenv("GAINSTAGE_DATA", str(tmp_path))
    found = doctor.data_folder()
    assert found["folder"] == str(tmp_path) and found["set_by"] == "GAINSTAGE_DATA"
    assert found["entries"] == ["gsm8k_test.jsonl"] and doctor.check_data(found) == []
    monkeypatch.setenv("GAINSTAGE_DATA", str(tmp_path / "gone"))
    (finding,) = doctor.check_data(doctor.data_folder())
    assert finding.error and "gone, which is no folder" in finding.text
    monkeypatch.delenv("GAINSTAGE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = doctor.data_folder()
    assert found["set_by"] == "default" and not found["exists"] and doctor.check_data(found) == []


def test_speed_is_measured_and_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    speeds = doctor.matmul_speed(2, size=64, seconds=0.01)
    assert list(speeds) == ["1 thread", "2 threads"] and min(speeds.values()) > 0
    assert torch.get_num_threads() == before
    assert list(doctor.matmul_speed(1, size=64, seconds=0.01)) == ["1 thread"]


def test_the_command_prints_text_or_json(monkeypatch: pytest.MonkeyPatch):
    app = typer.Typer()
    app.command()(doctor.doctor)
    report = doctor.Report(
        versions={"gainstage": "0.1.0", "from": "/x", "python": "3.11", "executable": "py"},
        core=[doctor.Package("numpy", ">=2.0", "2.4")],
        extras=[doctor.Extra("lora", (doctor.Package("peft", ">=0.18", None),), doctor.pip("gainstage[lora]"))],
        machine=MACHINE,
        matmul={"1 thread": 20.0},
        data={"folder": "/d", "set_by": "default", "exists": False, "entries": []},
    )
    monkeypatch.setattr(doctor, "diagnose", lambda: report)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0 and "Nothing to mend." in result.output
    assert "without peft: " + command("install", "'gainstage[lora]'") in result.output
    assert "20 GFLOP/s with 1 thread" in result.output and "/d (default), which does not exist yet" in result.output
    report.findings.append(doctor.Finding(True, "numpy is missing", "pip install numpy"))
    result = CliRunner().invoke(app, ["--json"])
    data = json.loads(result.output)
    assert result.exit_code == 1 and data["healthy"] is False and data["extras"][0]["complete"] is False
    assert data["findings"][0]["command"] == "pip install numpy"


def test_every_range_is_one_that_pip_reads():
    for need, _ in doctor.requirements():
        assert Requirement(f"{need.name}{need.specifier}").name == need.name
