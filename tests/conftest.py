"""What every test may rely on: few threads, no network, the data folder, a place for runs, fixed seeds."""

from __future__ import annotations

import os
import random
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Before torch and transformers are imported: they read these once.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"
if "GAINSTAGE_DATA" not in os.environ and (ROOT.parent / "shared" / "data").is_dir():
    os.environ["GAINSTAGE_DATA"] = str(ROOT.parent / "shared" / "data")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# The same examples in every run, and no deadline: a shared machine is slow at times.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=60)
hypothesis.settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", default=False, help="also run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    data = os.environ.get("GAINSTAGE_DATA")
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: --slow runs it"))
        if item.get_closest_marker("needs_data") and not (data and Path(data).is_dir()):
            item.add_marker(pytest.mark.skip(reason="no data folder: set GAINSTAGE_DATA"))


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """The global generators stand at the same place at the start of every test, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def default_settings():
    """A test that changes torch's or the environment's settings leaves none of it behind."""
    threads, dtype, environment = torch.get_num_threads(), torch.get_default_dtype(), dict(os.environ)
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    if dict(os.environ) != environment:
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for runs, which is also where relative paths start."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
