"""A cluster as tables: its members, their adapters, what speculation brings each verifier, and what each drafter brings it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Group, RenderableType

from specsplit.cli.adapters_view import ADAPTERS, adapter_rows
from specsplit.cli.columns import NOTHING, Column, Fitted, named
from specsplit.membership import Cluster, Member
from specsplit.values import DrafterReport, Estimate, ModelInfo, Plan, SpeculationReport

_MANY = 8
"""With more members than that they are counted above the table."""
_NAMED = 3
"""Adapters of a verifier that are named in the table."""
Pairing = tuple[Member, DrafterReport]


def view(cluster: Cluster, address: str, most_rows: int | None = None) -> RenderableType:
    """Make the tables, of so many rows each at most."""
    members = ordered(cluster)
    speculating = [member for member in members if member.speculation is not None]
    drawn: list[RenderableType] = [Fitted(_title(cluster, address), MEMBERS, members, _counted(members), most_rows)]
    drawn += [cluster.quotas] if cluster.quotas else []
    drawn += _said(members, partial(_other_build, cluster.build))
    drawn += _said(members, partial(_in_the_way, members))
    if adapters := adapter_rows(members):
        drawn.append(Fitted("adapters", ADAPTERS, adapters, most_rows=most_rows))
    if speculating:
        drawn.append(Fitted("speculation, lately", SPECULATION, speculating, most_rows=most_rows))
        drawn += _said(speculating, _without_drafts)
    if pairs := [(member, each) for member in speculating for each in _report(member).whole_drafters]:
        drawn.append(Fitted("drafters, as verifiers see them lately", DRAFTERS, pairs, most_rows=most_rows))
    return Group(*drawn)


def ordered(cluster: Cluster) -> list[Member]:
    """Sort the members: verifiers first, then by member id."""
    return sorted(cluster.members, key=lambda member: (not isinstance(member.role, ModelInfo), member.member_id))


def kind(member: Member) -> str:
    """Say what a member is: "verifier", or the kind of a drafter."""
    return "verifier" if isinstance(member.role, ModelInfo) else member.role.kind.value


def _title(cluster: Cluster, address: str) -> str:
    happened = f"{cluster.failovers} failovers, {cluster.preemptions} preemptions so far"
    build = f" ({cluster.build})" if cluster.build else ""
    return f"{address}{build}: {cluster.running} running, {cluster.queued} queued; {happened}"


def _counted(members: Sequence[Member]) -> str:
    """Sum up many members in a sentence; empty for a few."""
    if len(members) <= _MANY:
        return ""
    kinds = ", ".join(f"{number} {name}" for name, number in Counter(map(kind, members)).items())
    sessions = [member for member in members if isinstance(member.role, ModelInfo)]
    taken, places = sum(each.load.sessions for each in sessions), sum(each.max_sessions for each in sessions)
    draining = sum(each.draining for each in members)
    return f"{len(members)} members: {kinds}; {draining} draining; verifiers have {taken} sessions of {places}"


def _said(members: Sequence[Member], sentence_of: Callable[[Member], str]) -> list[str]:
    """Say something of members, each sentence once for all of whom it holds; an empty one says nothing."""
    names: dict[str, list[str]] = {}
    for member in members:
        if sentence := sentence_of(member):
            names.setdefault(sentence, []).append(member.member_id)
    return [f"{named(those)}: {sentence}" for sentence, those in names.items()]


def _other_build(coordinators: str, member: Member) -> str:
    """Say so where a member is of another build than the coordinator; a coordinator that does not tell its own has nothing to compare."""
    if not coordinators or member.build == coordinators:
        return ""
    own = f"build {member.build}" if member.build else "a build that does not say which it is, and so an older one"
    return f"{own}, the coordinator is {coordinators}"


def _in_the_way(members: Sequence[Member], drafter: Member) -> str:
    """Say so where a drafter takes cores of verifiers on its machine."""
    if isinstance(drafter.role, ModelInfo):
        return ""
    verifiers = [each for each in members if isinstance(each.role, ModelInfo)]
    taken = {each.member_id: drafter.host.contention(each.host) for each in verifiers}
    cores = [f"{share:.0%} of those of {verifier}" for verifier, share in taken.items() if share]
    return f"takes cores while it draws ahead: {', '.join(cores)}" if cores else ""


def _without_drafts(member: Member) -> str:
    """Say why a verifier drafts nothing; empty if it does."""
    why = _report(member).no_drafts
    return "" if why is None else why.sentence


def _report(member: Member) -> SpeculationReport:
    assert member.speculation is not None, "those that have said nothing are left out"
    return member.speculation


def _pages(member: Member) -> str:
    return f"{member.load.free_pages}/{member.load.total_pages}" if member.load.total_pages else NOTHING


def _state(member: Member) -> str:
    return "draining" if member.draining else "ready"


def _rank(member: Member) -> str:
    return NOTHING if member.group is None else f"{member.group.rank} of {member.group.size}"


def _wave(member: Member) -> str:
    if member.wave is None:
        return NOTHING
    return f"{member.wave.state(member.load.sessions)} {'after' if member.wave.parked else 'in'} {member.wave.number}"


def _weights(member: Member) -> str:
    return str(member.weights_version) if member.weights_version > 1 else NOTHING


def _adapters(member: Member) -> str:
    """Name the adapters of a verifier; of many the first."""
    names = [each.name for each in member.role.adapters] if isinstance(member.role, ModelInfo) else []
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) + more) or NOTHING


def _cores(member: Member) -> str:
    host = member.host
    if not host.machine or not host.busy_cores:
        return host.device if host.machine else NOTHING
    return f"{host.threads} of {','.join(map(str, host.cores))}"


def _reads(member: Member) -> str:
    role = member.role
    return NOTHING if isinstance(role, ModelInfo) or not role.features else f"layers {role.features.layer_names}"


MEMBERS: Sequence[Column[Member]] = (
    Column("member", "its id", 0, lambda member: member.member_id, right=False),
    Column("kind", "verifier, or the kind of drafter", 3, kind, right=False),
    Column("model", "its model or head", 12, lambda member: member.role.model or NOTHING, right=False),
    Column("reads", "hidden states of the target that a head reads", 13, _reads, right=False),
    Column("address", "where others reach it", 6, lambda member: member.address, right=False),
    Column(
        "sessions", "open, of as many as it takes", 2, lambda member: f"{member.load.sessions}/{member.max_sessions}"
    ),
    Column("waiting", "sessions among these that do not fit yet", 4, lambda member: str(member.load.waiting)),
    Column("free pages", "of its KV, of all", 8, _pages),
    Column(
        "steps", "of a verifier, or expansions of a drafter, since its start", 11, lambda member: str(member.load.steps)
    ),
    Column("step ms", "how long one takes, the mean lately", 5, lambda member: f"{member.load.step_ms:.1f}"),
    Column("silent ms", "since its last heartbeat", 10, lambda member: str(member.silent_ms)),
    Column("state", "ready, or draining: it takes no new sessions", 1, _state, right=False),
    Column("weights", "which its model has; - those that it began with", 15, _weights),
    Column("adapters", "LoRA adapters that requests may name", 12, _adapters, right=False),
    Column("build", "its version and commit", 9, lambda member: member.build or NOTHING, right=False),
    Column(
        "machine",
        "a name of it, the same for all members on it",
        14,
        lambda member: member.host.machine or NOTHING,
        right=False,
    ),
    Column("cores", "threads of its model, and the cores they may run on; or its device", 14, _cores, right=False),
    Column("rank", "its number in its group of ranks, from 0", 7, _rank, right=False),
    Column("wave", "what the rank does, in or after which wave of its group", 7, _wave, right=False),
)


def _plan(member: Member) -> str:
    plan: Plan | None = member.plan
    if plan is None:
        return NOTHING
    return f"{plan.num_steps} deep, {plan.num_draft_tokens} tokens" if plan.speculates else "no drafts"


def _number(of: Callable[[SpeculationReport], float], form: str) -> Callable[[Member], str]:
    """A cell of the report in this format; nothing for 0, which stands for what was not seen."""

    def cell(member: Member) -> str:
        value = of(_report(member))
        return format(value, form) if value else NOTHING

    return cell


def _expected(of: Callable[[Estimate], float], form: str) -> Callable[[Member], str]:
    """A cell of the controller's estimate."""

    def cell(member: Member) -> str:
        estimate = _report(member).estimate
        return NOTHING if estimate is None else format(of(estimate), form)

    return cell


def _hit_rate(member: Member) -> str:
    return f"{_report(member).hit_rate:.0%}" if _report(member).accept_length else NOTHING


def _round_trip(pair: Pairing) -> str:
    return f"{pair[1].round_trip_s * 1e3:.1f}" if pair[1].round_trip_s else NOTHING


_accept_length = _number(lambda report: report.accept_length, ".2f")
_step_ms = _number(lambda report: report.step_s * 1e3, ".1f")
_token_us = _number(lambda report: report.token_s * 1e6, ".0f")
_rate = _expected(lambda estimate: estimate.rate, ".0f")
_static_rate = _expected(lambda estimate: estimate.static_rate, ".0f")
_gain = _expected(lambda estimate: estimate.gain, "+.0%")

SPECULATION: Sequence[Column[Member]] = (
    Column("verifier", "its member id", 0, lambda member: member.member_id, right=False),
    Column("controller", "who decides about the plan", 4, lambda member: _report(member).adaptive, right=False),
    Column("plan", "in force, where a request does not say otherwise", 1, _plan, right=False),
    Column("accept length", "tokens that a session commits in a step", 2, _accept_length),
    Column("hit rate", "commits after which the next step had drafts at once", 5, _hit_rate),
    Column("step ms", "how long one takes, the mean lately", 6, _step_ms),
    Column("token us", "how much longer one more token makes a step", 9, _token_us),
    Column("tokens/s", "what the controller expects of its plan", 3, _rate),
    Column("as set", "the same, of the plan of the settings", 8, _static_rate),
    Column("gain", "the first against the second", 7, _gain),
)

DRAFTERS: Sequence[Column[Pairing]] = (
    Column("drafter", "its member id", 0, lambda pair: pair[1].member_id, right=False),
    Column("verifier", "whose drafts these are", 1, lambda pair: pair[0].member_id, right=False),
    Column("sessions", "that it drafts for now", 3, lambda pair: str(pair[1].sessions)),
    Column("steps seen", "how much the rest stands on", 6, lambda pair: f"{pair[1].steps:.0f}"),
    Column("accepted a step", "drafts, the mean", 2, lambda pair: f"{pair[1].accepted:.2f}"),
    Column("held ms a step", "waited for drafts, the mean", 4, lambda pair: f"{pair[1].held_s * 1e3:.1f}"),
    Column("round trip ms", "from a commit to the first drafts after it", 5, _round_trip),
)
