"""`python -m scripts.pocket target|draft|head|card`: each stage resumes where an earlier run stopped."""

from __future__ import annotations

import argparse
from pathlib import Path

from specsplit.training.order import KINDS
from specsplit.values import DrafterKind

MODELS = Path("models/pocket")
STATE = Path("build/pocket")


def main() -> None:
    """Parse the stage and run it."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pocket", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    target = stages.add_parser("target", help="tokenizer and target (about an hour on two cores)")
    target.add_argument("--steps", type=int, default=2350)
    draft = stages.add_parser("draft", help="the standalone draft, distilled from the target (about 15 minutes)")
    draft.add_argument("--steps", type=int, default=2000)
    head = stages.add_parser("head", help="a draft head on the target's features, as specsplit train-head makes it")
    head.add_argument("kind", choices=[kind.value for kind in KINDS])
    head.add_argument("--epochs", type=int, help="other than the recipe's")
    stages.add_parser("card", help="measure target and draft on held-out files and write their model cards")
    options = parser.parse_args()
    # Imported late: --help need not wait for torch.
    if options.stage == "target":
        from scripts.pocket import target as stage  # noqa: PLC0415

        stage.train(MODELS / "target", STATE / "target.pt", options.steps)
    elif options.stage == "draft":
        from scripts.pocket import draft as stage  # noqa: PLC0415

        stage.train(MODELS / "target", MODELS / "draft", STATE, options.steps)
    elif options.stage == "head":
        from scripts.pocket import heads as stage  # noqa: PLC0415

        stage.train(DrafterKind(options.kind), MODELS, STATE, options.epochs)
    else:
        from scripts.pocket import card  # noqa: PLC0415

        card.write(MODELS)


if __name__ == "__main__":
    main()
