"""The model card of a trained policy: what it is, how it was made, and what was measured, with intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import gainstage
from gainstage.tracking.files import replace_text
from gainstage.tracking.secrets import redact

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""`owner/name`: hubs refuse a card that links to anything else, so other names stand in the text only."""


@dataclass(frozen=True)
class Figure:
    """A measured number with its interval.

    Args:
        value: the estimate.
        low, high: the ends of the interval; None where there is none, which the card says.
        base: the same figure before training.
        base_low, base_high: the ends of its interval.
        n: problems (or episodes) it was measured on.
        seeds: runs it is taken over.
        level: of the interval.
        unit: what it is counted in.
    """

    value: float
    low: float | None = None
    high: float | None = None
    base: float | None = None
    base_low: float | None = None
    base_high: float | None = None
    n: int | None = None
    seeds: int = 1
    level: float = 0.95
    unit: str = ""

    @classmethod
    def of(cls, name: str, given: Any) -> Figure:
        """A figure from one, a number, `(value, low, high)`, a mapping, or an object with such attributes.

        Raises:
            ValueError: it is none of these, or its value is not finite.
        """
        if isinstance(given, Figure):
            figure = given
        elif isinstance(given, int | float):
            figure = cls(float(given))
        elif isinstance(given, Sequence) and len(given) == 3 and not isinstance(given, str):
            figure = cls(float(given[0]), float(given[1]), float(given[2]))
        else:
            fields = dict(given) if isinstance(given, Mapping) else dict(vars(given))
            known = {field: fields[field] for field in cls.__dataclass_fields__ if field in fields}
            if "value" not in known:
                raise ValueError(f"model card: the figure {name!r} has no value; it has {sorted(fields)}")
            figure = cls(**known)
        if not math.isfinite(figure.value):
            raise ValueError(f"model card: the figure {name!r} is {figure.value}; leave out what was not measured")
        return figure

    @property
    def interval(self) -> str:
        """`[0.71, 0.83]`, or that there is none."""
        if self.low is None or self.high is None:
            return "no interval"
        return f"[{_number(self.low)}, {_number(self.high)}]"

    @property
    def before(self) -> str:
        """`0.27 [0.21, 0.33]`: the value before training, with its interval where there is one."""
        if self.base is None:
            return ""
        if self.base_low is None or self.base_high is None:
            return _number(self.base)
        return f"{_number(self.base)} [{_number(self.base_low)}, {_number(self.base_high)}]"


def write_card(
    folder: str | Path,
    recipe: Mapping[str, Any],
    measured: Mapping[str, Any],
    *,
    base_model: str,
    dataset: str | None = None,
    citation: str = "",
    how_to_run: str = "",
    license: str | None = None,
    kind: str = "lm",
) -> Path:
    """Write `README.md` into the folder of a model, in the form that model hubs read.

    Args:
        recipe: as resolved; `name`, `paper` and `seed` are told apart, the whole is appended.
        measured: name of a metric (`pass@1`) -> `Figure` or what makes one. Plain numbers under `NAME/low`,
            `NAME/high` and `NAME/before` are the ends of NAME's interval and its value before training (whose own
            ends are `NAME/before/low` and `NAME/before/high`); one under `problems` is the number of problems that
            all figures were measured on.
        base_model: name or folder of the model that training started from.
        dataset: name of the task or data set.
        citation: BibTeX of the method's paper.
        how_to_run: the command that repeats the run.
        license: of the model, where it is known; that of the base model usually binds.
        kind: `lm` for a whole language model, `adapter` for a PEFT adapter of one, `net` for a net that acts in
            environments.

    Raises:
        ValueError: a figure without a finite value.
    """
    figures = {name: Figure.of(name, given) for name, given in _with_ends(measured).items()}
    recipe = redact(dict(recipe))
    place = Path(folder).resolve()
    title = place.parent.name if place.name in ("final", "hf") else place.name
    head = _front_matter(title, recipe, figures, base_model, dataset, license, kind)
    body = [
        f"# {title}",
        _origin(recipe, base_model, dataset),
        "## What was measured",
        _table(figures, "starts" if kind == "net" else "problems")
        if figures
        else "Nothing was measured: no evaluation ran.",
        "## How to load it",
        _LOADING[kind](base_model),
    ]
    if how_to_run:
        body += ["## How it was made", _fenced("bash", redact(how_to_run))]
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=110)
    body += ["The whole recipe:", _fenced("yaml", text)]
    if citation:
        body += ["## Citation", "The method:", _fenced("bibtex", citation)]
    path = Path(folder) / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, f"---\n{head}---\n\n" + "\n\n".join(body) + "\n")
    return path


def _with_ends(measured: Mapping[str, Any]) -> dict[str, Any]:
    """`x`, `x/low`, `x/high` and `x/before` as one figure, `problems` as the size of all."""
    parts = {"low": "low", "high": "high", "before": "base", "before/low": "base_low", "before/high": "base_high"}
    plain = {name for name, given in measured.items() if isinstance(given, int | float)}
    size = {"n": int(measured["problems"])} if "problems" in plain else {}
    joined: dict[str, Any] = {}
    for name, given in measured.items():
        of_another = any(name.endswith(f"/{end}") and name.removesuffix(f"/{end}") in plain for end in parts)
        if name in ("problems", "answers") or (of_another and name in plain):
            continue
        if name not in plain:
            joined[name] = given
            continue
        ends = {field: measured[f"{name}/{end}"] for end, field in parts.items() if f"{name}/{end}" in plain}
        joined[name] = {"value": given, **ends, **size}
    return joined


def _front_matter(
    title: str,
    recipe: Mapping[str, Any],
    figures: Mapping[str, Figure],
    base_model: str,
    dataset: str | None,
    license: str | None,
    kind: str,
) -> str:
    tags = ["gainstage", "reinforcement-learning"]
    if recipe.get("name"):
        tags.append(str(recipe["name"]))
    if isinstance(paper := recipe.get("paper"), Mapping) and paper.get("arxiv"):
        tags.append(f"arxiv:{paper['arxiv']}")
    head: dict[str, Any] = {
        "library_name": {"lm": "transformers", "adapter": "peft", "net": "gainstage"}[kind],
        "pipeline_tag": "reinforcement-learning" if kind == "net" else "text-generation",
        "tags": tags,
    }
    if _HUB_NAME.fullmatch(base_model):
        head["base_model"] = base_model
    if license:
        head["license"] = license
    if dataset and _HUB_NAME.fullmatch(dataset):
        head["datasets"] = [dataset]
    if figures and dataset:
        metrics = [
            {
                "type": name,
                "value": round(figure.value, 6),
                "name": name if figure.low is None else f"{name} {figure.interval}",
            }
            for name, figure in figures.items()
        ]
        task = {"type": head["pipeline_tag"]}
        data = {"type": dataset, "name": dataset}
        head["model-index"] = [{"name": title, "results": [{"task": task, "dataset": data, "metrics": metrics}]}]
    return yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=1000)


def _origin(recipe: Mapping[str, Any], base_model: str, dataset: str | None) -> str:
    method = recipe.get("name", "a recipe of its own")
    paper = _paper(recipe.get("paper"))
    on = f" on `{dataset}`" if dataset else ""
    seed = f", seed {recipe['seed']}" if recipe.get("seed") is not None else ""
    return f"`{base_model}` trained with **{method}**{paper}{on}{seed}, by gainstage {gainstage.__version__}."


def _paper(paper: Any) -> str:
    """` (title, year, arXiv id)` of what a recipe says of its paper; nothing where it says nothing."""
    if isinstance(paper, Mapping):
        arxiv = f"arXiv {paper['arxiv']}" if paper.get("arxiv") else None
        paper = ", ".join(str(word) for word in (paper.get("title"), paper.get("year"), arxiv) if word)
    return f" ({paper})" if paper else ""


def _table(figures: Mapping[str, Figure], counted: str) -> str:
    lines = ["| figure | before | after | interval | measured on |", "|---|---|---|---|---|"]
    for name, figure in figures.items():
        value = f"{_number(figure.value)} {figure.unit}".strip()
        interval = figure.interval if figure.low is None else f"{figure.interval}, {100 * figure.level:g} %"
        where = [f"{figure.n} {counted}"] if figure.n else []
        where.append(f"{figure.seeds} seed{'s' if figure.seeds > 1 else ''}")
        cells = (name, figure.before, value, interval, ", ".join(where))
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def _load_lm(base_model: str) -> str:
    return _transformers(
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained("PATH")\n'
    )


def _load_adapter(base_model: str) -> str:
    return _transformers(
        "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer\n\n"
        f'model = AutoPeftModelForCausalLM.from_pretrained("PATH")  # loads {base_model} as well\n'
    )


def _transformers(code: str) -> str:
    return _fenced("python", code + 'tokenizer = AutoTokenizer.from_pretrained("PATH")')


def _load_net(base_model: str) -> str:
    """`model.safetensors` are the weights (statistics of observations among them), `config.json` says of what net."""
    return (
        "`model.safetensors` holds the weights, running statistics of observations included; `config.json` says which "
        "net they belong to. Train on from it, or play it:\n\n"
        + _fenced(
            "bash",
            "gainstage train RECIPE models.policy.weights=PATH\ngainstage play RUN  # the folder around this one",
        )
    )


_LOADING = {"lm": _load_lm, "adapter": _load_adapter, "net": _load_net}


def _number(value: float) -> str:
    return f"{value:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _fenced(language: str, text: str) -> str:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
