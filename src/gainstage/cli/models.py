"""`gainstage pretrain` and `gainstage sample`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainstage.cli.common import Device, Threads, people_errors, pick_device, prepare, visible


@people_errors
def pretrain(
    size: Annotated[str, typer.Argument(help="micro or micro-half.")] = "micro",
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the model.", show_default=False)] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Optimizer steps; absent = those of the shipped weights.", show_default=False),
    ] = None,
    rates: Annotated[bool, typer.Option(help="Measure the base rates of every task at the end (minutes).")] = True,
    threads: Threads = None,
) -> None:
    """Make the embedded model again from its synthetic tasks. The same seed gives the same weights.

    Examples:

      gainstage pretrain micro --out my-micro

      gainstage pretrain micro --steps 200 --seed 1 --out quick
    """
    prepare(threads)
    from gainstage.policies.language.micro import pretrain as make
    from gainstage.tracking.progress import Progress

    target = out or Path(f"{size}-pretrained")
    with Progress() as progress:

        def tell(step: int, steps: int, loss: float) -> None:
            progress.update(size, step / steps, note=f"step {step} of {steps}, loss {loss:.3f}")

        card = make(target, seed=seed, steps=steps, size=size, progress=tell, rates=rates)
        progress.finish(size, f"{card.get('parameters', '')} weights in {target}")


@people_errors
def sample(
    policy: Annotated[str, typer.Argument(help="micro, smollm2, a run, a folder, or a hub name.")] = "micro",
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Ask once; absent = a conversation.", show_default=False)
    ] = None,
    max_new: Annotated[int, typer.Option("--max-new", help="Most tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="0 = greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option("--top-p")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="0 = off.")] = 0,
    min_p: Annotated[float, typer.Option("--min-p")] = 0.0,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    number: Annotated[int, typer.Option("--number", "-k", min=1, help="Answers to each prompt.")] = 1,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Talk to a checkpoint.

    Examples:

      gainstage sample micro -p "345+678=" -k 4

      gainstage sample runs/grpo-arithmetic-001

      gainstage sample smollm2 -p "Name three rivers." --max-new 64
    """
    prepare(threads)
    from gainstage.ops.noise import mix
    from gainstage.policies.snapshots import Models
    from gainstage.types import Prompt, Sampling

    model = Models({"policy": {"load": policy}}, ["policy"], device=pick_device(device))["policy"]
    sampling = Sampling(temperature, top_k, top_p, min_p)
    chat = bool(getattr(model.tokenizer, "chat_template", None)) and policy not in ("micro", "micro-half")
    history: list[dict[str, str]] = []
    turn = 0
    while True:
        text = prompt
        if text is None:
            try:
                text = input("> ")
            except EOFError:
                return
            if not text.strip():
                continue
        history.append({"role": "user", "content": text})
        ids = model.encode(history) if chat else model.encode(text)
        keys = tuple(mix("sample", seed, turn, k) for k in range(number))
        answers = model.generate([Prompt(ids, keys, sampling)], max_new=max_new)[0]
        for answer in answers:
            print(visible(answer.text))
        history.append({"role": "assistant", "content": answers[0].text})
        turn += 1
        if prompt is not None:
            return
