"""Where settings come from, and what is refused."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pydantic
import pytest

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureFormat
from specsplit.settings import CoordinatorSettings, DrafterSettings, Settings, TransportSettings, VerifierSettings
from specsplit.values import Adaptive, DrafterKind, Plan

TARGET = Path("models/target")
HEAD = Path("models/head")
CLASSES = [CoordinatorSettings, VerifierSettings, DrafterSettings, TransportSettings]


def refusal(cls: type[Settings], **values: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        cls(**values)
    return caught.value


def test_settings_cannot_be_changed() -> None:
    settings = VerifierSettings(model=TARGET)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        settings.topk = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_the_constructor_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSPLIT_VERIFIER_TOPK", "7")
    assert VerifierSettings(model=TARGET).topk == 4


def test_an_override_beats_the_environment_which_beats_the_file_which_beats_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "verifier.toml"
    file.write_text('model = "from-file"\ntopk = 1\nnum_steps = 1\nmax_sessions = 1\n')
    monkeypatch.setenv("SPECSPLIT_VERIFIER_TOPK", "2")
    monkeypatch.setenv("SPECSPLIT_VERIFIER_NUM_STEPS", "2")
    settings = VerifierSettings.load(file, num_steps=3)
    assert (settings.model, settings.max_sessions, settings.topk, settings.num_steps) == (Path("from-file"), 1, 2, 3)
    assert settings.num_draft_tokens == 16


def test_each_service_reads_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSPLIT_DRAFTER_KIND", "ngram")
    monkeypatch.setenv("SPECSPLIT_VERIFIER_MODEL", "models/target")
    assert DrafterSettings.load().kind is DrafterKind.NGRAM
    assert VerifierSettings.load().model == TARGET


def test_an_empty_environment_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSPLIT_VERIFIER_TOPK", "")
    assert VerifierSettings.load(model=TARGET).topk == 4


def test_an_unknown_name_is_an_error_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert refusal(VerifierSettings, model=TARGET, top_k=4).field == "top_k"
    file = tmp_path / "verifier.toml"
    file.write_text('model = "x"\nkv_tokenz = 1\n')
    with pytest.raises(InvalidRequest, match=r"kv_tokenz in .*verifier\.toml: there is no such setting"):
        VerifierSettings.load(file)
    monkeypatch.setenv("SPECSPLIT_VERIFIER_KV_TOKENZ", "1")
    with pytest.raises(
        InvalidRequest, match="SPECSPLIT_VERIFIER_KV_TOKENZ: this environment variable names no setting"
    ):
        VerifierSettings.load(model=TARGET)


def test_a_setting_that_is_gone_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = refusal(DrafterSettings, kind=DrafterKind.NGRAM, push_survival=0.01)
    assert gone.field == "push_survival"
    assert gone.problem.startswith("there is no such setting any more") and "node_us" in gone.problem
    monkeypatch.setenv("SPECSPLIT_DRAFTER_EXPAND_SURVIVAL", "0.01")
    with pytest.raises(
        InvalidRequest, match=r"SPECSPLIT_DRAFTER_EXPAND_SURVIVAL: there is no such setting any more.*node_us"
    ):
        DrafterSettings.load(kind=DrafterKind.NGRAM)


def test_a_file_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="config: there is no file"):
        VerifierSettings.load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("model = \n")
    with pytest.raises(InvalidRequest, match="is not valid TOML"):
        VerifierSettings.load(broken)


def test_a_wrong_value_is_blamed_on_the_variable_or_the_file_that_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "verifier.toml"
    file.write_text('model = "x"\ntopk = "many"\n')
    with pytest.raises(InvalidRequest) as in_file:
        VerifierSettings.load(file)
    assert in_file.value.field == f"topk in {file}"
    monkeypatch.setenv("SPECSPLIT_VERIFIER_TOPK", "lots")
    with pytest.raises(InvalidRequest) as in_environment:
        VerifierSettings.load(file)
    assert str(in_environment.value).startswith("SPECSPLIT_VERIFIER_TOPK: is 'lots'")
    with pytest.raises(InvalidRequest) as given:
        VerifierSettings.load(file, topk="some")
    assert given.value.field == "topk"
    assert VerifierSettings.load(file, topk=3).topk == 3


def test_a_misspelt_name_is_told_before_what_is_missing_for_it(tmp_path: Path) -> None:
    file = tmp_path / "verifier.toml"
    file.write_text('modell = "x"\n')
    with pytest.raises(InvalidRequest, match=r"modell in .*: there is no such setting"):
        VerifierSettings.load(file)


@pytest.mark.parametrize("cls", [CoordinatorSettings, VerifierSettings, DrafterSettings])
@pytest.mark.parametrize("table", ["coordinator", "verifier", "specsplit"])
def test_a_file_with_a_table_is_refused_by_the_name_of_the_table(
    cls: type[Settings], table: str, tmp_path: Path
) -> None:
    file = tmp_path / "service.toml"
    file.write_text(f'[{table}]\nmodel = "x"\n')
    with pytest.raises(InvalidRequest, match=rf"config: .* has the table \[{table}\]"):
        cls.load(file)


def test_a_file_may_be_a_pipe_and_not_a_folder(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write('model = "from-pipe"\n')
    try:
        assert VerifierSettings.load(Path(f"/dev/fd/{reading}")).model == Path("from-pipe")
    finally:
        os.close(reading)
    with pytest.raises(InvalidRequest, match="cannot be read: Is a directory"):
        VerifierSettings.load(tmp_path)


def test_a_wrong_value_is_named_with_what_was_expected() -> None:
    assert str(refusal(VerifierSettings, model=TARGET, kv_tokens="many")).startswith(
        "kv_tokens: is 'many': input should be"
    )
    assert str(refusal(VerifierSettings)) == "model: is required"
    unknown = str(refusal(DrafterSettings, kind="clever"))
    assert all(repr(kind.value) in unknown for kind in DrafterKind)


@pytest.mark.parametrize(
    ("cls", "field"),
    [(cls, name) for cls in CLASSES for name, field in cls.model_fields.items() if field.annotation is float],
)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", math.inf])
def test_numbers_without_end_and_what_is_no_number_are_refused(
    cls: type[Settings], field: str, value: str | float
) -> None:
    required = {name: TARGET for name, each in cls.model_fields.items() if each.is_required()}
    refused = refusal(cls, **required, **{field: value})
    assert refused.field == field and "should be a finite number" in refused.problem


def test_the_default_plan_is_checked_at_start() -> None:
    assert VerifierSettings(model=TARGET, num_steps=0, wait_budget_us=5).plan == Plan(num_steps=0, wait_budget_us=5)
    assert refusal(VerifierSettings, model=TARGET, topk=0).field == "topk"
    assert refusal(VerifierSettings, model=TARGET, max_nodes=3).field == "max_nodes"


def test_ranks_that_step_together_try_no_rests() -> None:
    problem = refusal(VerifierSettings, model=TARGET, dp_size=2, rest_trials=True)
    assert "rest_trials: does not go with dp_size = 2" in str(problem) and "leave one of them out" in str(problem)
    assert VerifierSettings.load(model=TARGET, rest_trials=True).rest_trials
    assert VerifierSettings.load(model=TARGET, dp_size=2).rest_trials, (
        "what nobody asked for is passed over, as by the planner"
    )


def test_a_step_of_a_rank_may_last_until_another_is_taken_for_lost() -> None:
    assert VerifierSettings.load(model=TARGET, step_timeout_s=20).step_timeout_s == 20, (
        "one that is alone waits for nobody"
    )
    problem = refusal(VerifierSettings, model=TARGET, dp_size=2, step_timeout_s=20, rank_timeout_s=20)
    assert problem.field == "step_timeout_s"
    assert "rank_timeout_s = 20" in str(problem)
    assert VerifierSettings.load(model=TARGET, dp_size=2, step_timeout_s=20, rank_timeout_s=19)


@pytest.mark.parametrize(("field", "value"), [("inflate_layers", 12), ("random_weights", True)])
def test_a_target_that_is_split_is_a_real_one(field: str, value: int) -> None:
    problem = refusal(VerifierSettings, model=TARGET, tp_size=4, **{field: value})
    assert problem.field == "tp_size"
    assert problem.problem == f"is 4 and {field} is {value}, which do not go together; leave one of them out"
    assert VerifierSettings.load(model=TARGET, tp_size=4).tp_size == 4


def test_each_rank_of_a_group_may_be_several_processes() -> None:
    sizes = [(1, 1), (3, 1), (1, 2), (3, 2)]
    together = [VerifierSettings.load(model=TARGET, dp_size=dp, tp_size=tp).started_together for dp, tp in sizes]
    assert together == [("dp_size", 1), ("dp_size", 3), ("tp_size", 2), ("dp_size * tp_size", 6)]
    problem = refusal(VerifierSettings, model=TARGET, dp_size=3, tp_size=2, compile="regional")
    assert "processes that share a model (dp_size * tp_size = 6)" in problem.problem


def test_a_step_of_a_split_target_may_last_until_a_process_is_taken_for_lost() -> None:
    assert refusal(VerifierSettings, model=TARGET, tp_size=2, step_timeout_s=20).field == "step_timeout_s"


HEADS = [kind for kind in DrafterKind if kind.is_head]


@pytest.mark.parametrize("kind", [kind for kind in DrafterKind if kind.needs_model])
def test_every_drafter_with_a_model_needs_its_folder(kind: DrafterKind) -> None:
    given = {"kind": kind, "target": TARGET if kind.is_head else None}
    problem = refusal(DrafterSettings, **given)
    assert (problem.field, problem.problem) == (
        "model",
        f"is required for drafter kind {kind.value}: the folder of the draft model or head",
    )
    assert DrafterSettings.load(model=HEAD, **given).model == HEAD


@pytest.mark.parametrize(
    ("field", "value"), [("ngram_shares", "all"), ("ngram_shared_tokens", 0), ("ngram_identities", 1)]
)
def test_only_an_ngram_drafter_has_outputs_to_share(field: str, value: object) -> None:
    options: dict[str, Any] = {field: value}
    assert getattr(DrafterSettings(kind=DrafterKind.NGRAM, **options), field) == value
    refused = refusal(DrafterSettings, model=TARGET, **options)
    assert (refused.field, refused.problem) == (field, "drafter kind standalone drafts from no outputs; leave it out")


def test_an_ngram_drafter_takes_no_model() -> None:
    assert refusal(DrafterSettings, kind="ngram", model=TARGET).field == "model"
    assert DrafterSettings(kind=DrafterKind.NGRAM).max_sessions == 64


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_needs_its_target_and_may_choose_how_features_travel(kind: DrafterKind) -> None:
    if kind is not DrafterKind.MULTI_LAYER_EAGLE:  # whose layers may lie in the target's folder
        assert refusal(DrafterSettings, kind=kind, model=HEAD).field == "target"
    settings = DrafterSettings(kind=kind, model=HEAD, target=TARGET)
    assert (settings.feature_format, settings.feature_projection) == (FeatureFormat.TARGET, False)
    for chosen in FeatureFormat:
        assert DrafterSettings.load(None, **settings.resolved() | {"feature_format": chosen}).feature_format is chosen
    unknown = str(refusal(DrafterSettings, kind=kind, model=HEAD, target=TARGET, feature_format="int4"))
    assert all(repr(known.value) in unknown for known in FeatureFormat)


@pytest.mark.parametrize("given", [{"kind": "ngram"}, {"kind": "standalone", "model": HEAD}])
@pytest.mark.parametrize(
    ("field", "value"), [("target", TARGET), ("feature_format", "bfloat16"), ("feature_projection", True)]
)
def test_a_drafter_that_reads_no_features_takes_no_setting_of_them(
    given: dict[str, object], field: str, value: object
) -> None:
    problem = refusal(DrafterSettings, **given, **{field: value})
    assert problem.field == field
    assert f"drafter kind {given['kind']}" in problem.problem


@pytest.mark.parametrize("kind", HEADS)
def test_only_an_eagle3_head_has_a_projection_of_features(kind: DrafterKind) -> None:
    values = {"kind": kind, "model": HEAD, "target": TARGET, "feature_projection": True}
    if kind is DrafterKind.EAGLE3:
        assert DrafterSettings.load(**values).feature_projection
    else:
        assert refusal(DrafterSettings, **values).field == "feature_projection"


def test_the_features_kept_for_a_session_are_at_least_those_of_one_step() -> None:
    bounds = {"model": TARGET, "step_token_budget": 100, "num_draft_tokens": 16}
    assert VerifierSettings.load(**bounds, feature_retention=116).feature_retention == 116
    problem = refusal(VerifierSettings, **bounds, feature_retention=115)
    assert problem.field == "feature_retention"
    assert "is 115, too few for one step of step_token_budget = 100 and num_draft_tokens = 16" in problem.problem
    assert refusal(VerifierSettings, model=TARGET, feature_retention=0).field == "feature_retention"
    assert refusal(VerifierSettings, model=TARGET, feature_window=0).field == "feature_window"


def test_the_settings_of_a_head_come_from_a_file_and_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "drafter.toml"
    file.write_text('kind = "eagle3"\nmodel = "head"\ntarget = "models/target"\nfeature_projection = true\n')
    monkeypatch.setenv("SPECSPLIT_DRAFTER_FEATURE_FORMAT", "fp8_e4m3")
    settings = DrafterSettings.load(file)
    assert (settings.kind, settings.target, settings.feature_projection) == (DrafterKind.EAGLE3, TARGET, True)
    assert settings.feature_format is FeatureFormat.FP8_E4M3


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50051", "host.example:50051"])
def test_listening_beyond_this_machine_without_tls_must_be_spelled_out(listen: str) -> None:
    assert "insecure" in refusal(VerifierSettings, model=TARGET, listen=listen).problem
    assert VerifierSettings(model=TARGET, listen=listen, insecure=True).listen == listen
    assert VerifierSettings(model=TARGET, listen=listen, tls_cert=Path("cert"), tls_key=Path("key")).secured


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:1", "[::1]:65535", "127.1.2.3:80"])
def test_loopback_needs_neither_tls_nor_permission(listen: str) -> None:
    assert VerifierSettings(model=TARGET, listen=listen).listen == listen


@pytest.mark.parametrize("listen", ["", "50051", ":50051", "localhost:", "localhost:70000", "localhost:http"])
def test_an_address_that_is_not_host_and_port_is_refused(listen: str) -> None:
    assert refusal(VerifierSettings, model=TARGET, listen=listen).field == "listen"


def test_a_certificate_without_its_key_is_refused() -> None:
    assert refusal(VerifierSettings, model=TARGET, tls_cert=Path("cert")).field == "tls_cert"


def test_a_member_that_nobody_could_dial_is_refused() -> None:
    everywhere = {"model": TARGET, "listen": "0.0.0.0:0", "insecure": True}
    assert refusal(VerifierSettings, **everywhere, coordinator="10.0.0.1:50050").field == "advertise"
    settings = VerifierSettings.load(**everywhere, coordinator="10.0.0.1:50050", advertise="10.0.0.2:50051")
    assert settings.advertise == "10.0.0.2:50051"


def test_a_member_must_have_time_for_a_heartbeat_before_it_is_lost() -> None:
    assert refusal(CoordinatorSettings, model=TARGET, heartbeat_ms=500, lost_after_ms=500).field == "lost_after_ms"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_setting_says_what_it_is(cls: type[Settings]) -> None:
    assert [name for name, field in cls.model_fields.items() if not field.description] == []


def test_resolved_settings_hold_every_setting_as_plain_values() -> None:
    resolved = DrafterSettings(model=TARGET).resolved()
    assert resolved["model"] == "models/target"
    assert resolved["kind"] == "standalone"
    assert set(resolved) == set(DrafterSettings.model_fields)


def test_goodput_decides_unless_somebody_is_named_or_a_size_is_set() -> None:
    assert VerifierSettings(model=TARGET).controller is Adaptive.GOODPUT
    assert VerifierSettings(model=TARGET, wait_budget_us=5).controller is Adaptive.GOODPUT
    assert VerifierSettings(model=TARGET, num_draft_tokens=8).controller is Adaptive.STATIC
    assert VerifierSettings(model=TARGET, num_steps=3, adaptive=Adaptive.EMA).controller is Adaptive.EMA


def test_ports_of_adapters_are_named_each_once() -> None:
    settings = CoordinatorSettings(model=TARGET, adapter_listen="sql=127.0.0.1:0, a=b=[::1]:7")
    assert settings.adapter_listens == {"sql": "127.0.0.1:0", "a=b": "[::1]:7"}
    assert CoordinatorSettings(model=TARGET).adapter_listens == {}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("127.0.0.1:1", "has '127.0.0.1:1', expected NAME=host:port"),
        ("=127.0.0.1:1", "has '=127.0.0.1:1', expected NAME=host:port"),
        ("sql=127.0.0.1:1,", "has '', expected NAME=host:port"),
        ("sql=127.0.0.1", "is '127.0.0.1', expected host:port"),
        ("sql=127.0.0.1:1,sql=127.0.0.1:2", "names sql twice"),
        (f"{TARGET.name}=127.0.0.1:1", f"names {TARGET.name}, which the target is called"),
        ("sql=10.0.0.1:1", "can be reached from other machines and there is no TLS"),
    ],
)
def test_a_port_of_an_adapter_that_is_no_good_is_refused(value: str, problem: str) -> None:
    error = refusal(CoordinatorSettings, model=TARGET, adapter_listen=value)
    assert error.field == "adapter_listen" and problem in str(error)


def test_metrics_name_no_more_clients_than_a_few() -> None:
    names = ",".join(f" client-{number}" for number in range(32))
    assert len(CoordinatorSettings(model=TARGET, metrics_clients=names).named_clients) == 32
    assert CoordinatorSettings(model=TARGET).named_clients == ()
    assert refusal(CoordinatorSettings, model=TARGET, metrics_clients=f"{names},one").field == "metrics_clients"


@pytest.mark.parametrize("cls", [VerifierSettings, DrafterSettings])
def test_a_share_for_kv_is_for_a_gpu_and_for_nobody_who_says_how_many_tokens(
    cls: type[VerifierSettings | DrafterSettings],
) -> None:
    assert str(refusal(cls, model=TARGET, kv_share=0.5)).startswith(
        "kv_share: has no effect, since device = cpu is no GPU"
    )
    assert str(refusal(cls, model=TARGET, kv_share=0.5, device="cuda", kv_tokens=64)).startswith(
        "kv_share: has no effect, since kv_tokens = 64 is set"
    )
    assert cls(model=TARGET, device="cuda", kv_share=0.5).kv_tokens is None


def test_a_drafter_without_a_model_has_no_kv_to_share_out() -> None:
    error = refusal(DrafterSettings, kind=DrafterKind.NGRAM, device="cuda", kv_share=0.5)
    assert str(error).startswith("kv_share: drafter kind ngram keeps no KV; leave it out")
