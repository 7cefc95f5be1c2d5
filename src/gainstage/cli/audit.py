"""`gainstage audit`: contamination, reward, judge."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gainstage.cli.common import (
    AsJson,
    Device,
    Plugins,
    PolicyName,
    Threads,
    changes,
    people_errors,
    pick_device,
    prepare,
)

audit = typer.Typer(
    help="Is the test known by heart, does the reward pay for nothing, is the judge to be trusted? "
    "Exit code 1 where something is found.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Task = Annotated[str, typer.Option("--task", help="Task: a name, jsonl:PATH, hf:ID, rg:NAME.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(help="Settings, key=value: task.levels=[3], reward=my.py:my_reward", show_default=False),
]
Split = Annotated[str, typer.Option("--split", help="validation or test.")]
FOUND = 1
"""Exit code where an audit finds something."""


@audit.command("contamination")
@people_errors
def contamination(
    task: Task = "arithmetic",
    policy: PolicyName = None,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            help="Problems of the same kind that the model cannot know: newer ones, or generated.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    problems: Annotated[int, typer.Option("--problems", "-n", min=10, help="Problems of each set.")] = 100,
    split: Split = "test",
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show a model the first 40, 60 and 80 % of each problem, and see whether it knows the rest.

    Recovery (ROUGE-L and exact match) is compared with a control set; a set is flagged where it lies more than 3
    standard errors and more than 0.02 above it. Generated tasks are their own control: problems of another seed.

    Examples:

      gainstage audit contamination --policy smollm2 --task gsm8k --control rg:gsm_symbolic

      gainstage audit contamination --policy runs/grpo-arithmetic-001 --task arithmetic -n 200

      gainstage audit contamination --policy ./my-model --task jsonl:exam.jsonl --control jsonl:new-exam.jsonl --json
    """  # fmt: skip
    prepare(threads)
    from gainstage.auditing import audit_contamination, control_for
    from gainstage.evaluation import held_out
    from gainstage.policies.snapshots import Models
    from gainstage.tracking.progress import Progress

    recipe, chain = _chain(settings, task, policy)
    other = control_for(chain.task, control)
    ours, theirs = (held_out(part.it, split, problems) for part in (chain.task, other))
    handle = Models(recipe.models, ["policy"], device=pick_device(device))["policy"]
    with Progress() as progress:

        def tell(done: float) -> None:
            progress.update(chain.task.name, done)

        report = audit_contamination(handle, chain.task.it, ours, theirs, tell=tell)
    if as_json:
        print(json.dumps({"task": chain.task.name, "control": control or "another seed", "flagged": report.flagged,
                          **asdict(report)}))  # fmt: skip
    else:
        _tell_contamination(report, policy or "micro", chain.task.name, control)
    raise typer.Exit(FOUND if report.flagged else 0)


def _tell_contamination(report: Any, policy: str, task: str, control: str | None) -> None:
    verdict = (
        "is known by heart: read what is measured on it as memory" if report.flagged else "shows no sign of memory"
    )
    print(f"{task} {verdict} ({policy}, {report.problems} problems, {report.controls} of {control or 'another seed'})")
    print(f"  {'shown':>6} {'measure':10} {'set':>7} {'control':>8} {'difference':>11} {'std error':>10}")
    for row in report.rows:
        print(
            f"  {row.fraction:6.0%} {row.measure:10} {row.value:7.3f} {row.control:8.3f} {row.difference:+11.3f} "
            f"{row.standard_error:10.3f}{'  flagged' if row.flagged else ''}"
        )
    for fraction, (ours, theirs) in report.solved.items():
        print(f"  {fraction:6.0%} {'solved':10} {ours:7.3f} {theirs:8.3f}   without having seen the rest")
    if report.examples:
        print(f"  rests that came back word for word (short ones can be guessed): {', '.join(report.examples)}")


@audit.command("reward")
@people_errors
def reward(
    task: Task = "arithmetic",
    settings: Settings = None,
    problems: Annotated[int, typer.Option("--problems", "-n", min=1, help="Problems that are attacked.")] = 10,
    split: Split = "test",
    seed: Annotated[int, typer.Option("--seed")] = 0,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Give a reward outputs that solve nothing, and print what it pays for.

    Empty, padded, structure only, the question given back, the gold answer before a wrong one, several answers,
    instructions to the judge, huge outputs, look-alike letters, code that leaves early. Paid is what gets more than an
    honest wrong answer; a right answer that gets no more is named as well.

    Examples:

      gainstage audit reward --task countdown

      gainstage audit reward --task gsm8k reward=my_reward.py:score

      gainstage audit reward --task arithmetic 'reward=[task_verdict, {tag_format: {weight: 0.1}}]' --json
    """
    prepare(None, plugin)
    from gainstage.auditing import audit_reward
    from gainstage.evaluation import held_out
    from gainstage.tracking.progress import Progress

    _, chain = _chain(settings, task, None, reward=["task_verdict"])
    with Progress() as progress:
        report = audit_reward(
            chain, held_out(chain.task.it, split, problems), seed, lambda done: progress.update(chain.task.name, done)
        )
    if as_json:
        print(json.dumps({"task": chain.task.name, "clean": report.clean, "paid": report.paid, **asdict(report)}))
    else:
        _tell_reward(report, chain)
    raise typer.Exit(0 if report.clean else FOUND)


def _tell_reward(report: Any, chain: Any) -> None:
    names = ", ".join(part.name for part in chain.reward)
    paid, tried = sum(report.paid.values()), sum(report.tried.values())
    print(f"{chain.task.name}, {names}: {paid} of {tried} outputs that solve nothing are paid")
    print(f"  a right answer gets {report.right:.3g} on average, a wrong one {report.wrong:.3g}")
    for kind, count in report.tried.items():
        print(f"  {kind:18} {report.paid[kind]:4} of {count}")
    for finding in report.findings[:10]:
        got = finding.error or ("no verdict" if finding.reward is None else f"{finding.reward:.3g}")
        print(f"  {finding.kind}: {finding.text!r} got {got}")
    if len(report.findings) > 10:
        print(f"  and {len(report.findings) - 10} more: --json lists them")
    for name in report.unpaid[:5]:
        print(f"  a right answer to {name} gets no more than a wrong one")


@audit.command("judge")
@people_errors
def judge(
    task: Task = "arithmetic",
    function: Annotated[
        str | None,
        typer.Option(
            "--judge",
            help="my_judge.py:fn, of (question, answer, rubric) or (question, first, second, rubric); "
            "absent = the task's verifier.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    problems: Annotated[int, typer.Option("--problems", "-n", min=1, help="Problems to judge answers of.")] = 20,
    split: Split = "test",
    seed: Annotated[int, typer.Option("--seed")] = 0,
    as_json: AsJson = False,
) -> None:
    """Ask a judge about the same answers under other wordings, in the other order, and about garbage.

    Examples:

      gainstage audit judge --judge my_judge.py:grade --task gsm8k

      gainstage audit judge --task arithmetic -n 50

      gainstage audit judge --judge my_judge.py:prefer --task jsonl:questions.jsonl --json
    """  # fmt: skip
    prepare()
    from gainstage.auditing import audit_judge
    from gainstage.evaluation import held_out
    from gainstage.reward.functions import load_function
    from gainstage.tracking.progress import Progress

    _, chain = _chain(settings, task, None)
    asked = held_out(chain.task.it, split, problems)
    fn = load_function(function) if function else None
    with Progress() as progress:
        report = audit_judge(chain.task.it, asked, fn, seed, lambda done: progress.update(chain.task.name, done))
    if as_json:
        print(json.dumps({"judge": function or chain.task.name, "trustworthy": report.trustworthy, **asdict(report)}))
    else:
        _tell_judge(report, function or f"the verifier of {chain.task.name}")
    raise typer.Exit(0 if report.trustworthy else FOUND)


def _tell_judge(report: Any, name: str) -> None:
    verdict = "may be trusted" if report.trustworthy else "accepts garbage"
    print(f"{name} {verdict} ({report.kind}, {report.items} questions, {report.calls} calls)")
    for label, value in (
        ("judged rightly", report.accuracy), ("flips with the wording", report.rubric_flips),
        ("flips with the order", report.order_flips), ("prefers the first", report.first_rate),
        ("garbage accepted", report.garbage),
    ):  # fmt: skip
        if value is not None:
            print(f"  {label:24} {value:6.1%}")
    for text in report.accepted[:10]:
        print(f"  accepted: {text!r}")


def _chain(settings: list[str] | None, task: str, policy: str | None, **more: Any) -> tuple[Any, Any]:
    """A recipe that only looks, and its components."""
    from gainstage.chain import build_chain
    from gainstage.recipe import check, override

    data: dict[str, Any] = {"name": "audit", "rollout": ["generate"], "store": "on_policy", **more}
    data |= {"models": {"policy": {"load": "micro"}}, "task": "arithmetic"}
    for text in changes(settings, task, policy):
        data = override(data, text)
    recipe = check(data)
    return recipe, build_chain(recipe)
