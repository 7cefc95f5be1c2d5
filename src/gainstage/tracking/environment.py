"""What a run ran on: versions, machine, threads, commit, command line."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gainstage
from gainstage.tracking.secrets import redact

PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "pydantic", "pyarrow", "peft", "gymnasium",
    "mujoco", "reasoning-gym", "math-verify", "vllm", "ray",
)  # fmt: skip
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED", "GAINSTAGE_DATA", "HF_HOME", "HF_HUB_OFFLINE", "WORLD_SIZE", "RANK",
    "LOCAL_RANK",
)  # fmt: skip


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit(folder: Path) -> dict[str, Any] | None:
    """The commit of the working tree around `folder`, and whether tracked files differ from it; None outside git."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return {"commit": head, "modified": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def processor() -> str:
    """The name of the processor as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use; the machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def snapshot(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The environment as plain data, secrets masked.

    Args:
        argv: the command line; that of this process where absent.
    """
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    versions = {"gainstage": gainstage.__version__, "python": platform.python_version()}
    versions |= {package: found for package in PACKAGES if (found := version(package))}
    return redact(
        {
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "argv": list(sys.argv if argv is None else argv),
            "folder": str(Path.cwd()),
            "versions": versions,
            "git": commit(Path(gainstage.__file__).parent),
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "processor": processor(),
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "gpus": gpus,
            "cuda": torch.version.cuda,
            "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        }
    )
