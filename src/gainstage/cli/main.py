"""`gainstage`: every command, its help and its examples. Heavy imports happen inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from gainstage import __version__
from gainstage.cli import (
    audit,
    catalogue,
    check_env,
    collect,
    compare,
    doctor,
    drift_search,
    evaluate,
    ledger,
    models,
    play,
    reproduce,
    train,
)

app = typer.Typer(
    name="gainstage",
    help="Reinforcement-learning methods as chains of stages, and the gain each brings, measured at equal budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gainstage {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Every command takes --help, which ends in examples."""


app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("ledger")(ledger.ledger)
app.command("evaluate")(evaluate.evaluate)
app.add_typer(audit.audit, name="audit")
app.command("play")(play.play)
app.command("methods")(catalogue.methods)
app.command("show")(catalogue.show)
app.command("tasks")(catalogue.tasks)
app.command("pretrain")(models.pretrain)
app.command("sample")(models.sample)
app.command("search-drift")(drift_search.search_drift)
app.command("collect")(collect.collect)
app.command("check-env")(check_env.check_env)
app.command("doctor")(doctor.doctor)

if __name__ == "__main__":
    app()
