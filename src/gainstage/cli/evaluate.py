"""`gainstage evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gainstage.cli.common import AsJson, Device, PolicyName, Threads, people_errors, pick_device, prepare


@people_errors
def evaluate(
    task: Annotated[
        str, typer.Option("--task", help="Task: a name, jsonl:PATH, parquet:PATH, hf:ID, rg:NAME.")
    ] = "arithmetic",
    policy: PolicyName = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings, key=value: task.levels=[3], rollout.generate.max_new=256", show_default=False),
    ] = None,
    problems: Annotated[int, typer.Option("--problems", "-n", min=1, help="Held-out problems.")] = 200,
    samples: Annotated[int, typer.Option("--samples", "-k", min=1, help="Answers to each.")] = 1,
    split: Annotated[str, typer.Option("--split", help="validation or test.")] = "test",
    temperature: Annotated[float, typer.Option("--temperature", help="0 = greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write every answer as JSON lines.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Answer held-out problems and print rates with intervals.

    Examples:

      gainstage evaluate --policy runs/grpo-arithmetic-001 --task arithmetic -n 500 -k 16 --temperature 1

      gainstage evaluate --policy smollm2 --task gsm8k -n 200 rollout.generate.max_new=256 --save answers.jsonl
    """
    prepare(threads)
    from gainstage.chain import build_chain
    from gainstage.cli.common import changes
    from gainstage.evaluation import held_out, look
    from gainstage.measure.evaluate import summarize
    from gainstage.policies.snapshots import Models
    from gainstage.recipe import check, override
    from gainstage.running import ks
    from gainstage.tracking.progress import Progress

    data: dict[str, Any] = {"name": "evaluate", "rollout": ["generate"], "store": "on_policy"}
    for text in changes(settings, task, policy):
        data = override({"models": {"policy": {"load": "micro"}}, "task": "arithmetic", **data}, text)
    recipe = check(data)
    chain = build_chain(recipe)
    if "check" not in chain.task.it.capabilities:
        chain.rollout = []
    models = Models(recipe.models, ["policy"], device=pick_device(device))
    asked = held_out(chain.task.it, split, problems)
    written: list[Any] = []
    done = 0
    with Progress() as progress:

        def rows(found: list[Any]) -> None:
            nonlocal done
            done += len(found)
            written.extend(found)
            right = sum(float(t.parts.get("verdict") or t.parts.get("success") or 0) for t in written)
            progress.update(chain.task.name, done / (len(asked) * samples), note=f"{right:.0f} of {done} right")

        progress.update(chain.task.name, 0.0)
        records = look(
            chain, models, asked, samples, seed=seed, temperature=temperature, rows=rows, batch=max(64, samples)
        )
    numbers = summarize(records, ks(samples), "")
    if save:
        lines = [
            {"problem": t.problem.id, "answer": t.problem.answer, "prompt": t.info["prompt"],
             "completion": t.info["completion"], "stop": str(t.stop),
             "verdict": t.parts.get("verdict", t.parts.get("success"))}
            for t in written
        ]  # fmt: skip
        save.write_text("".join(json.dumps(line, default=str, ensure_ascii=False) + "\n" for line in lines))
    if as_json:
        print(json.dumps({"task": chain.task.name, "split": split, "policy": policy or "micro", **numbers}))
        return
    print(
        f"{policy or 'micro'} on {chain.task.name} "
        f"({split}, {len(asked)} problems x {samples}, temperature {temperature:g})"
    )
    if "pass@1" in numbers:
        print(
            f"  pass@1   {numbers['pass@1']:.3f}  "
            f"95 % interval [{numbers['pass@1/low']:.3f}, {numbers['pass@1/high']:.3f}]"
        )
    for key, value in numbers.items():
        if key.startswith("pass@") and key.count("/") == 0 and key != "pass@1":
            print(f"  {key:8} {value:.3f}")
    print(
        f"  reward {numbers['reward/mean']:.3f}, length {numbers['length/mean']:.1f} tokens, "
        f"cut off {100 * numbers['length/truncated']:.1f} %"
    )
    if "ece" in numbers:
        print(
            f"  calibration error {100 * numbers['ece']:.1f} %, Brier score {numbers['brier']:.3f}, "
            f"{numbers.get('diversity', 1):.2f} distinct answers a problem"
        )
    if "abstention" in numbers:
        wrong = f", wrong if attempted {100 * numbers['hallucination']:.1f} %" if "hallucination" in numbers else ""
        apart = ", ".join(
            f"{100 * numbers[name]:.1f} % of {name.partition('/')[2]}"
            for name in ("abstention/unanswerable", "abstention/answerable")
            if name in numbers
        )
        print(f"  abstained {100 * numbers['abstention']:.1f} %{f' ({apart})' if apart else ''}{wrong}")
