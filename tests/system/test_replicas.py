"""Two coordinators and the same members: each serves the whole cluster, and neither needs the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from specsplit.cli.drawn_port import DrawnPort
from specsplit.cli.local import Child, LocalCluster
from specsplit.client import Client
from specsplit.client.result import Gatherer
from specsplit.requests import Delta, Done, GenerateEvent
from specsplit.rpc.home import home_of
from specsplit.values import PlanChanges
from tests.support.torchrun import forked_torchrun
from tests.system.conftest import SERIAL, as_soon_as, empty, eventually

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PACED = {"paced_step_base_ms": 20.0}
ACCENTS = "é ü 漢字 🙂 " * 3
PROMPT, TOKENS = "def mean(values):\n", 60


@dataclass
class Replicas:
    """Two coordinators, and a verifier and a drafter of both; a client of each."""

    cluster: LocalCluster
    other: Child
    clients: tuple[Client, Client]

    @property
    def addresses(self) -> str:
        return f"{self.cluster.address},{self.other.address}"


@contextmanager
def replicas(drafters: Iterable[str] = ("ngram",), verifiers: int = 1) -> Iterator[Replicas]:
    with closing(DrawnPort("127.0.0.1:0")) as first, closing(DrawnPort("127.0.0.1:0")) as second:
        members = {"coordinator": f"{first.listen},{second.listen}"}
        with coordinator({"listen": second.listen}) as other:
            whole = LocalCluster(
                POCKET,
                drafters=[*drafters],
                verifiers=verifiers,
                listen=first.listen,
                coordinator={"failover_s": 120},
                verifier=PACED | members,
                drafter=members,
            )
            with whole as cluster, Client(cluster.address) as here, Client(second.listen) as there:
                as_soon_as(lambda: len(there.cluster().members) == len(here.cluster().members))
                yield Replicas(cluster, other, (here, there))


@contextmanager
def coordinator(options: Mapping[str, object]) -> Iterator[Child]:
    child = Child("coordinator-2", "coordinator", {"model": POCKET, "failover_s": 120, **options}, None)
    try:
        child.wait_listening(60)
        yield child
    finally:
        child.kill()


def tokens_of(events: Iterable[GenerateEvent]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Delta) for token in event.tokens)


@pytest.mark.timeout(300)
def test_sessions_of_two_coordinators_run_on_one_verifier_and_one_drafter_and_one_killed_harms_none_of_the_other() -> (
    None
):
    with replicas() as both:
        here, there = both.clients
        asked = {"max_tokens": TOKENS, "temperature": 0.9, "seed": 7, "plan": SERIAL}
        alone = here.generate(PROMPT, **asked)
        ours, theirs = here.stream(PROMPT, **asked), there.stream(PROMPT, **asked)
        begun = [next(ours), next(theirs)]
        as_soon_as(lambda: there.cluster().members[0].load.sessions == 2)
        assert [client.cluster().running for client in both.clients] == [1, 1], "each counts its own"
        both.cluster.coordinator.kill()
        *rest, done = theirs
        assert tokens_of([begun[1], *rest]) == alone.tokens
        assert isinstance(done, Done) and done.drafter == alone.done.drafter != ""
        assert done.speculation.accepted > 0
        assert there.cluster().failovers == 0
        assert there.generate(PROMPT, **asked).tokens == alone.tokens
        both.cluster.revive(both.cluster.coordinator).wait_listening(60)
        with both.cluster.client() as again:
            eventually(lambda: len((now := again.cluster()).members) == 2 and empty(now))
            assert again.generate(PROMPT, **asked).tokens == alone.tokens


@pytest.mark.timeout(300)
@pytest.mark.parametrize("prompt", [PROMPT, ACCENTS], ids=["code", "half characters"])
def test_a_stream_of_a_client_that_knows_both_goes_on_when_its_coordinator_is_killed(prompt: str) -> None:
    asked = {"max_tokens": TOKENS, "temperature": 0.9, "seed": 7, "ignore_eos": True, "logprobs": 0}
    with replicas() as both, Client(both.addresses) as client:
        alone = both.clients[1].generate(prompt, **asked)
        gatherer, killed = Gatherer(), False
        for event in client.stream(prompt, **asked):
            gatherer.add(event)
            if isinstance(event, Delta) and not killed and len(gatherer.text) > len(alone.text) // 3:
                killed = True
                running = [each.cluster().running for each in both.clients]
                assert sorted(running) == [0, 1]
                (both.cluster.coordinator if running[0] else both.other).kill()
        result = gatherer.result()
        assert killed
        assert (result.text, result.tokens, result.reason) == (alone.text, alone.tokens, alone.reason)
        assert (result.usage.completion_tokens, result.seed) == (TOKENS, 7)
        assert [each.token for each in result.logprobs] == [each.token for each in alone.logprobs]
        unseeded = client.generate(prompt, max_tokens=8, temperature=0.9, ignore_eos=True)
        assert len(unseeded.tokens) == 8


@pytest.mark.timeout(300)
def test_the_latest_order_holds_whichever_coordinator_was_told_and_is_over_with_it() -> None:
    with replicas(drafters=()) as both:
        here, there = both.clients

        def steps_are(number: int) -> bool:
            plans = [client.cluster().members[0].plan for client in both.clients]
            return all(plan is not None and plan.num_steps == number for plan in plans)

        here.set_plan(PlanChanges(num_steps=1))
        as_soon_as(lambda: steps_are(1))
        there.set_plan(PlanChanges(num_steps=2))
        as_soon_as(lambda: steps_are(2))
        here.set_plan(PlanChanges(num_steps=1))
        as_soon_as(lambda: steps_are(1))
        both.cluster.coordinator.kill()
        both.cluster.revive(both.cluster.coordinator).wait_listening(60)
        as_soon_as(lambda: there.cluster().members[0].plan is not None)

        def second_holds() -> bool:
            plan = there.cluster().members[0].plan
            return plan is not None and plan.num_steps == 2

        as_soon_as(second_holds)


@pytest.mark.timeout(300)
def test_an_idle_verifier_gets_the_sessions_of_the_coordinator_that_is_its_home() -> None:
    with replicas((), verifiers=3) as both:
        addresses = both.addresses.split(",")
        verifiers = [member.member_id for member in both.clients[0].cluster().members]
        homes = {name: home_of(name, addresses) for name in verifiers}

        def verifier_of(client: Client) -> str:
            return client.generate(PROMPT, max_tokens=2, plan=SERIAL).done.verifier

        for client, address in zip(both.clients, addresses, strict=True):
            own = {name for name in verifiers if homes[name] == address} or {*verifiers}
            as_soon_as(lambda client=client, own=own: verifier_of(client) in own)  # once all have reported to both
            assert {verifier_of(client) for _ in range(6)} <= own
        both.other.kill()
        eventually(lambda: both.clients[0].cluster().coordinators == 1)
        assert verifier_of(both.clients[0]) in verifiers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_are_woken_by_either_coordinator_and_go_on_when_one_is_killed(tmp_path: Path) -> None:
    with coordinator({"listen": "127.0.0.1:0"}) as first, coordinator({"listen": "127.0.0.1:0"}) as second:
        where = f"{first.address},{second.address}"
        serve = ["verifier", "--model", POCKET, "--dp-size", 2, "--rank-timeout-s", 20, "--coordinator", where]
        with (
            forked_torchrun(2, *serve, log=tmp_path / "ranks.log"),
            Client(first.address) as here,
            Client(second.address) as there,
        ):
            for client in (here, there):
                as_soon_as(lambda client=client: len(client.cluster().members) == 2, within_s=150)
            asked = {"max_tokens": TOKENS, "ignore_eos": True}
            alone = here.generate(PROMPT, **asked).tokens
            for turn in range(4):  # they park in between, so that each wakes them
                client = (here, there)[turn % 2]
                as_soon_as(lambda: all(each.wave is not None and each.wave.parked for each in there.cluster().members))
                assert client.generate(PROMPT, **asked).tokens == alone
            ours, theirs = here.stream(PROMPT, **asked), there.stream(PROMPT, **asked)
            begun = [next(ours), next(theirs)]
            first.kill()
            assert tokens_of([begun[1], *theirs]) == alone
            as_soon_as(lambda: all(each.wave is not None and each.wave.parked for each in there.cluster().members))
            assert there.generate(PROMPT, **asked).tokens == alone
