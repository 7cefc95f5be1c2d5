"""Write requirements.lock and requirements-compiled.lock anew, from a real install in a fresh environment.

Run with any Python 3.11: `python3.11 tools/lock.py`. The locks hold what the tests need; packages that only some
machines can build (a C compiler is needed) are kept apart, with what only they need, so that the launcher can go on
without them. Torch is pinned here, since its newest release is not always the one the tests ran with.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
EXTRAS = ("dev", "lora", "math", "gguf", "tune", "control")
BESIDES = ("datasets", "scikit-learn", "tensorboard")
COMPILED = ("reasoning-gym",)

# Runs inside the new environment: name==version of everything that the given packages need, without local versions.
CLOSURE = """
import importlib.metadata as metadata, json, re, sys
from packaging.requirements import Requirement
def plain(name): return re.sub(r"[-_.]+", "-", name).lower()
installed = {plain(d.metadata["Name"]): d for d in metadata.distributions()}
def closure(names):
    found, todo = set(), [plain(Requirement(name).name) for name in names]
    while todo:
        name = todo.pop()
        if name in found or name not in installed:
            continue
        found.add(name)
        for line in installed[name].requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                todo.append(plain(need.name))
    return found
base, compiled = (closure(names) for names in json.load(sys.stdin))
def lines(names):
    pins = [f"{installed[n].metadata['Name']}=={installed[n].version.split('+')[0]}" for n in names]
    return sorted(pins, key=lambda pin: plain(pin))
json.dump([lines(base), lines(compiled - base)], sys.stdout)
"""


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = [TORCH, *project["dependencies"], *BESIDES]
    for extra in EXTRAS:
        base += project["optional-dependencies"][extra]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", *base, *COMPILED], check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
        answer = subprocess.run(
            [python, "-c", CLOSURE], input=json.dumps([base, COMPILED]), text=True, capture_output=True, check=True
        ).stdout
    for name, pins in zip(("requirements.lock", "requirements-compiled.lock"), json.loads(answer), strict=True):
        (ROOT / name).write_text("".join(pin + "\n" for pin in pins))
        print(f"{name}: {len(pins)} packages")


if __name__ == "__main__":
    main()
