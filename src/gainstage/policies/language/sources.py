"""Where language models come from: the embedded one, a folder, a Hugging Face name, a server."""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict
from safetensors import SafetensorError

from gainstage.ops.extras import require
from gainstage.policies.language.causal_lm import CausalPolicy
from gainstage.registry import RecipeError, build, component, near

SHORT = ("micro", "micro-half", "smollm2")


@dataclass
class Lora:
    """Low-rank adapters through peft. `rank` bounds what can be learned, `alpha / rank` scales it."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: str | list[str] = "all-linear"
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # else a wrong key would say nothing

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank must be at least 1, got {self.rank}")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"lora.alpha must be positive and finite, got {self.alpha}")


@component("net")
@dataclass
class CausalLm:
    """A Hugging Face causal LM by short name (`micro`, `smollm2`), folder, run folder or hub name.

    `lora` true or a mapping of its settings trains adapters only; `engine` names what draws tokens; `dtype` is
    that of the weights, `mixed` computes in bfloat16 over them (mixed precision), `compile` runs the trunk through
    `torch.compile`; `chat_template` replaces the tokenizer's own and is saved with the result.
    """

    source: str = "micro"
    lora: bool | Lora = False
    engine: str | dict[str, Any] = "torch"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    chat_template: str | None = None
    mixed: bool = False
    compile: bool = False
    trust_remote_code: bool = False
    engine_settings: dict[str, Any] = field(default_factory=dict)

    def make(self, role: str, meter: Any, device: torch.device, trained: bool) -> CausalPolicy:
        module, tokenizer, adapted = load_causal_lm(self.source, self.dtype, self.trust_remote_code)
        if self.chat_template is not None:
            path = Path(self.chat_template)
            tokenizer.chat_template = (
                path.read_text() if path.suffix == ".jinja" and path.is_file() else self.chat_template
            )
        module.to(device)
        if adapted is None and self.lora:
            adapted = add_lora(module, self.lora if isinstance(self.lora, Lora) else Lora())
        if adapted is not None:
            module = adapted.get_base_model()
            for name, parameter in adapted.named_parameters():
                parameter.requires_grad_(trained and "lora_" in name)
        else:
            module.requires_grad_(trained)
        module.eval()
        if self.compile:
            module.base_model.compile(dynamic=True)
        name, settings = (self.engine, {}) if isinstance(self.engine, str) else next(iter(self.engine.items()))
        engine = build("engine", name, {**(settings or {}), **self.engine_settings}, f"models.{role}.engine").bind(
            module, tokenizer
        )
        policy = CausalPolicy(module, tokenizer, engine, role, meter, adapted, source=self.source)
        policy.autocast = torch.bfloat16 if self.mixed else None
        return policy


def _acts(config: Path) -> bool:
    """Whether it is the card of a net for environments."""
    try:
        return json.loads(config.read_text(encoding="utf-8")).get("format") == "gainstage-net"
    except (OSError, ValueError, AttributeError):
        return False


def load_causal_lm(source: str, dtype: str = "float32", trust_remote_code: bool = False) -> tuple[Any, Any, Any]:
    """Model, tokenizer and, for an adapter folder, the `PeftModel` around the model (else None).

    Weights come from safetensors files alone: a pickle is never opened, whatever would be read from it.

    Raises:
        RecipeError: nothing of that name, a folder without a model, or weights that do not fill the model which its
            config describes (they would be drawn at random); the message says what was tried.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = locate(source)
    adapter = Path(path) / "adapter_config.json"
    if adapter.is_file():
        peft = require("peft", "lora")
        if not (Path(path) / "adapter_model.safetensors").is_file():
            raise RecipeError(f"the adapter {source!r} has no adapter_model.safetensors, and pickles are not opened")
        base = json.loads(adapter.read_text())["base_model_name_or_path"]
        module, _, _ = load_causal_lm(base, dtype, trust_remote_code)
        adapted = peft.PeftModel.from_pretrained(module, path, is_trainable=True)
        return module, AutoTokenizer.from_pretrained(path), adapted
    folder = path if Path(path).is_dir() or hub_answers() else cached_folder(path)
    if _acts(Path(folder) / "config.json"):
        raise RecipeError(f"{source}: its net acts in an environment and writes no text; use gainstage play {source}")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, attn_implementation="sdpa",
            use_safetensors=True, ignore_mismatched_sizes=True, output_loading_info=True,
        )  # fmt: skip
        module, found = loaded
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, SafetensorError) as error:
        first = str(error).strip().split("\n")[0]
        raise RecipeError(f"cannot load the model {source!r}: {first}") from error
    refuse_random_weights(source, found)
    module.config.name_or_path = str(path)
    return module, tokenizer, None


def refuse_random_weights(source: str, found: Mapping[str, Any]) -> None:
    """Weights that the files lack, or hold in another shape, are drawn at random: no model anyone asked for.

    Raises:
        RecipeError: there are some.
    """
    wrong = {
        "lack": sorted(found["missing_keys"]),
        "hold in another shape": sorted(str(key[0]) for key in found["mismatched_keys"]),
    }
    for what, names in wrong.items():
        if names:
            raise RecipeError(
                f"the model {source!r}: its weight files {what} {len(names)} of the weights that its config.json "
                f"describes, the first is {names[0]}; use the config.json that the weights were saved with"
            )


def hub_answers(seconds: float = 2.0) -> bool:
    """Whether the Hugging Face hub can be reached; False as well where `HF_HUB_OFFLINE` is set.

    One request that is waited for `seconds`: clients of the hub try for half a minute before they give up.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):  # whatever goes wrong, there is no answer
            get_session().head(constants.ENDPOINT, timeout=seconds)
            answered.set()

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name has no limit of its own
    asking.start()
    asking.join(seconds)
    return answered.is_set()


def cached_folder(name: str) -> str:
    """The folder that the hub's client keeps a model in; nothing of it asks the network.

    Raises:
        RecipeError: the model was never downloaded.
    """
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):
        raise RecipeError(
            f"cannot load the model {name!r}: there is no folder of that name, it is not in the local cache of the "
            "Hugging Face hub, and the hub cannot be reached from here; check the name, or give the folder of a model"
        ) from None


def locate(source: str) -> str:
    """A folder for short names, runs and paths; anything else is left to transformers as a hub name.

    Raises:
        RecipeError: a path that does not exist, or a run folder without a saved model.
    """
    if source in ("micro", "micro-half"):
        from gainstage.policies.language.micro import micro

        return str(micro(source))
    if source == "smollm2":
        from gainstage.policies.language.smollm2 import smollm2

        return str(smollm2())
    path = Path(source).expanduser()
    if path.is_dir():
        for folder in (path, path / "hf", path / "final"):
            if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
                return str(folder)
        raise RecipeError(
            f"{source!r} holds no model: neither config.json nor adapter_config.json in it, in hf/ or in final/"
        )
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise RecipeError(f"the model folder {source!r} does not exist")
    if source.startswith("runs/"):
        raise RecipeError(f"there is no run {source!r} in {Path.cwd()}")
    if "/" not in source and difflib.get_close_matches(source, SHORT, cutoff=0.8):
        raise RecipeError(f"no model {source!r}; {near(source, SHORT)}")
    if os.environ.get("HF_HUB_OFFLINE") == "1" and "/" not in source:
        raise RecipeError(
            f"no model {source!r}: short names are {', '.join(SHORT)}; "
            "else give a folder or a hub name such as org/name"
        )
    return source


def add_lora(module: Any, settings: Lora) -> Any:
    """Adapters around a model; the base is frozen."""
    peft = require("peft", "lora")
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, lora_dropout=settings.dropout, target_modules=settings.targets,
        task_type="CAUSAL_LM",
    )  # fmt: skip
    return peft.get_peft_model(module, config)


@component("net")
@dataclass
class RemoteLm:
    """A model behind an OpenAI-compatible server: it samples, judges and teaches, but is never trained here."""

    source: str
    model: str = ""
    api_key_env: str = "OPENAI_API_KEY"
    tokenizer: str = "micro"

    def make(self, role: str, meter: Any, device: torch.device, trained: bool) -> Any:
        if trained:
            raise RecipeError(f"models.{role}: a remote model cannot be trained")
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(locate(self.tokenizer))
        settings = {"base_url": self.source, "model": self.model, "api_key_env": self.api_key_env}
        engine = build("engine", "openai", settings, f"models.{role}").bind(None, tokenizer)
        return RemotePolicy(tokenizer, engine, role, meter)


class RemotePolicy:
    """Text services of a served model."""

    markov = False

    def __init__(self, tokenizer: Any, engine: Any, role: str, meter: Any) -> None:
        self.tokenizer, self.engine, self.role, self.meter, self.version = tokenizer, engine, role, meter, 0

    encode = CausalPolicy.encode
    encode_answer = CausalPolicy.encode_answer
    encode_observation = CausalPolicy.encode_observation
    decode = CausalPolicy.decode
    context_limit = None

    def generate(self, requests: Any, *, max_new: int, stop: Any = (), want: Any = ()) -> Any:
        found = self.engine.generate(list(requests), max_new=max_new, stop=tuple(stop), want=tuple(want))
        self.meter.charge("judge_calls", float(sum(len(group) for group in found)))
        self.meter.charge("generated_tokens", float(sum(len(c.ids) for group in found for c in group)))
        return found
