"""`python -m benchmarks [NAME] [--quick]`.

NAME: step_overhead, overlap, speedup, acceptance, drafters, features, members, placement, edge, telemetry, trees, targets, startup, lookup,
harm, beside, distance, grammars, adapters or, by default, all.

Or `lab`, `adaptive`, `ranks`, `fire`, `gpu` or `peers`, which have options of their own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks.runner import begun, parser_of
from specsplit.cli.screen import Screen
from specsplit.errors import SpecsplitError

NAMES = (
    "step_overhead",
    "overlap",
    "speedup",
    "acceptance",
    "drafters",
    "features",
    "members",
    "placement",
    "edge",
    "telemetry",
    "trees",
    "targets",
    "startup",
    "lookup",
    "harm",
    "beside",
    "distance",
    "grammars",
    "adapters",
)
COMMANDS = ("lab", "adaptive", "ranks", "fire", "gpu", "peers")


def main() -> None:
    """Parse the options and run the benchmarks asked for, one after the other. Those of `COMMANDS` have options of their own."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        importlib.import_module(f"benchmarks.{sys.argv[1]}.command").main(sys.argv[2:])
        return
    parser = parser_of("", __doc__, "--quick", "--models")
    parser.add_argument("name", nargs="?", choices=(*NAMES, "all"), default="all")
    parser.add_argument("--before", type=Path, help="telemetry: a checkout from before there was any, to compare with")
    parser.add_argument(
        "--chat", action="store_true", help="speedup: a real chat model; python -m scripts.chat_model fetches it"
    )
    options = parser.parse_args()
    if options.chat and options.name != "speedup":
        parser.error("--chat goes with speedup alone")
    context = begun(sys.argv[1:], Screen(width=140), quick=options.quick, models=options.models)
    for name in NAMES if options.name == "all" else (options.name,):
        context.console.rule(name)
        more = {"telemetry": {"before": options.before}, "speedup": {"chat_model": options.chat}}.get(name, {})
        try:
            importlib.import_module(f"benchmarks.{name}").run(context, **more)
        except SpecsplitError as error:
            sys.exit(f"benchmarks {name}: {error}")


if __name__ == "__main__":
    main()
