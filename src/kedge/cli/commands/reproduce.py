"""kedge reproduce: train the cells of published tables, and show published beside measured numbers."""

import time
from pathlib import Path
from typing import Annotated

import typer

from kedge.cli import completion
from kedge.cli.errors import report_errors
from kedge.cli.options import Address, Debug, Device, EngineName, Json, Pack, PrecisionName, Quiet, check_pack


@report_errors
def command(
    name: Annotated[
        str,
        typer.Argument(
            help="A published table, or all. Default: list the tables.",
            autocompletion=completion.published_tables,
        ),
    ] = "",
    scale: Annotated[
        str,
        typer.Option(
            help="full. small: a tenth of the rounds. smoke: a test, two rounds on synthetic data.",
            autocompletion=completion.one_of("full", "small", "smoke"),
        ),
    ] = "full",
    filters: Annotated[
        list[str],
        typer.Option(
            "--cells",
            help="Only the cells with KEY=VALUE. * and ? are wildcards; KEY is a key of the grid, or row, "
            "column or block. Repeatable: all filters apply.",
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds, counted up from 0. Default: 3 at full scale, otherwise 1."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of results. Default: reproduced, or reproduced-small."),
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Show what is recorded; train nothing.")] = False,
    device: Device = "",
    engine: EngineName = "",
    address: Address = "",
    precision: PrecisionName = "",
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that train at the same time. 0: several on a GPU, one on a CPU; with --engine "
            "ray one for each GPU or core."
        ),
    ] = 0,
    pack: Pack = 0,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train the cells of a published table and print published beside measured numbers.

    Each finished run is recorded in the folder of results and is not trained again. Records of several
    machines add up: copy their files into one folder.
    """
    start = time.monotonic()
    from kedge.cli.actions import reproduce as action

    action.check_options(scale, seeds, workers, filters, name)
    check_pack(pack)
    folder = out or action.default_folder(scale)
    if not name:
        action.print_overview(folder, scale, as_json)
        return
    named_options = {
        "scale": scale if scale != "full" else "", "cells": filters, "seeds": seeds, "device": device,
        "engine": engine, "address": address, "precision": precision, "workers": workers, "pack": pack,
    }  # fmt: skip
    shared = folder if address else None
    options = action.CommandOptions(workers, pack, quiet or as_json, debug, start, shared)
    with action.temporary_data_folder(shared) as synthetic:
        request = action.request(name, named_options, folder, synthetic)
        if scale == "smoke":
            failed = action.train_smoke(request, options, quiet, as_json)
        else:
            failed = action.train_missing(request, options) if not render else 0
            action.print_tables(request, quiet, as_json)
    if failed:
        raise typer.Exit(1)
