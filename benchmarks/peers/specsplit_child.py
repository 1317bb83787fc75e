"""A cluster of this project without a drafter: coordinator and verifier, which looks up by itself if it is to draft."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.serving import Prompts, Write, options, serve
from specsplit.cli.local import LocalCluster


def main() -> None:
    asked = options()
    verifier = {"threads": asked["threads"], "prefix_cache": False, "lookup": asked["drafts"]}
    cluster = LocalCluster(Path(asked["model"]), verifier=verifier, drafters=[])
    with ThreadPoolExecutor(8) as threads:

        def load() -> Write:
            cluster.start()
            client = cluster.client()

            def write(prompts: Prompts, new: int) -> list[list[int]]:
                done = threads.map(
                    lambda each: client.generate(list(each), max_tokens=new, temperature=0, ignore_eos=True), prompts
                )
                return [list(each.tokens) for each in done]

            return write

        try:
            serve(load)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
