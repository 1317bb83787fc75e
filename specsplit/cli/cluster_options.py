"""The options of `specsplit up` and `specsplit demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from specsplit.cli.drafters import CHOICES
from specsplit.cli.folders import DRAFTS, POCKET_LAYERS, TARGET
from specsplit.values.bounds import INT32_MAX, UINT32_MAX, UINT64_MAX
from specsplit.values.sampling import MAX_TEMPERATURE
from specsplit.wire.limits import MAX_MEMBERS

DRAFT_FOLDERS = ", ".join(f"{name}/" for name in DRAFTS.values())
"""The folders of draft models and heads, in words."""

ModelOption: TypeAlias = Annotated[
    Path | None, typer.Option("--model", metavar="FOLDER", help="The target; the pocket target if left out.")
]
DraftModelOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--draft-model",
        metavar="[KIND=]FOLDER",
        help="The draft model or head; KIND= says whose, where several kinds need one. May be given repeatedly. "
        f"If left out it is looked for beside the target, in {', '.join(DRAFTS.values())}.",
    ),
]
DraftersOption: TypeAlias = Annotated[
    int, typer.Option("--drafters", min=0, max=MAX_MEMBERS, help="How many drafters of each kind.")
]
VerifiersOption: TypeAlias = Annotated[
    int, typer.Option("--verifiers", min=1, max=MAX_MEMBERS, help="How many verifiers.")
]
DrafterOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="KIND",
        help=f"{CHOICES}; may be given repeatedly. If left out: the kinds of --draft-model (standalone without KIND=), "
        "else the best whose folder is beside the target, else none, and verifiers draft by lookup themselves.",
    ),
]
ListenOption: TypeAlias = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where the coordinator listens.")
]
WebListenOption: TypeAlias = Annotated[
    str, typer.Option("--web-listen", metavar="HOST:PORT", help="Where the coordinator serves its page.")
]
HttpListenOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--http-listen",
        metavar="HOST:PORT",
        help="Also start a gateway (package smg, extra gateway), which serves the OpenAI API here.",
    ),
]
InflateOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--inflate-layers",
        min=0,
        max=INT32_MAX,
        help="Make the target this deep with layers that change nothing; 0: as it is. "
        f"If left out: {POCKET_LAYERS} for the pocket target, 0 with --model.",
    ),
]
ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file with settings of the services, in the tables [coordinator], [verifier] and [drafter]. "
        "The environment counts before it.",
    ),
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SERVICE.NAME=VALUE",
        help="A setting of all children of a service: coordinator, verifier or drafter (drafters of every kind), as "
        "verifier.kv_tokens=65536; specsplit serve SERVICE --help lists them. "
        "May be given repeatedly; counts before the environment and --config.",
    ),
]

ModelsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--models",
        metavar="FOLDER",
        help=f"Holds {TARGET}/ and one of {DRAFT_FOLDERS}, of which the first is used; models/pocket if left out.",
    ),
]
OneDrafterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--drafter", metavar="KIND", help=f"{', '.join(DRAFTS)}; the best that --models has a folder of if left out."
    ),
]
PromptOption: TypeAlias = Annotated[
    str, typer.Option("--prompt", "-p", metavar="TEXT", help="Python source to continue.")
]
MaxTokensOption: TypeAlias = Annotated[
    int, typer.Option("--max-tokens", min=1, max=UINT32_MAX, help="Generated tokens at most.")
]
TemperatureOption: TypeAlias = Annotated[
    float, typer.Option("--temperature", min=0, max=MAX_TEMPERATURE, help="0 picks the likeliest token.")
]
SeedOption: TypeAlias = Annotated[
    int, typer.Option("--seed", min=0, max=UINT64_MAX, help="Selects the noise at temperatures above 0.")
]
DepthOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--inflate-layers",
        min=0,
        max=INT32_MAX,
        help="Make the target this deep with layers that change nothing; 0: as it is.",
    ),
]
PageOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--page",
        help="Serve the coordinator's page on this machine, print its address, and go on generating until Ctrl-C.",
    ),
]
