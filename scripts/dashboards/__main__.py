"""Writes deploy/grafana/dashboards from the code, or with --check says whether it is what the code gives."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from scripts.dashboards.members import members
from scripts.dashboards.overview import overview
from scripts.dashboards.speculation import speculation
from scripts.printed import ROOT

FOLDER = ROOT / "deploy" / "grafana" / "dashboards"


def texts() -> Mapping[str, str]:
    """The JSON of every dashboard, by file name."""
    built = (overview(), speculation(), members())
    return {f"{each.uid}.json": json.dumps(each, cls=JSONEncoder, indent=2, sort_keys=True) + "\n" for each in built}


def stale() -> list[str]:
    """Files in the folder that are not what the code gives, or that are missing."""
    wanted = texts()
    present = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def main() -> int:
    """The exit status: 1 if something is stale."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if parser.parse_args().check:
        for name in (old := stale()):
            print(f"dashboards: {name} is not what the code gives; run python -m scripts.dashboards")
        return 1 if old else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale():
        (FOLDER / name).unlink(missing_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
        print(f"dashboards: wrote {(FOLDER / name).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
