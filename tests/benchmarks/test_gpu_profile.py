"""What a step's time goes to: kernels by name and by kind, gaps between them, and the table of the budget that a run writes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.gpu.budget import ATTENTION, ELEMENTWISE, FLOOR, HOST, OTHERS, PAGE, PRODUCTS, STEP, measured, written
from benchmarks.gpu.findings import Figure, Findings, Kernel
from benchmarks.gpu.job import DRY, Job
from benchmarks.gpu.profile import gaps_of, kernels_of, kind_of, kinds_of, profile
from benchmarks.gpu.table import report
from benchmarks.gpu.trace import ON_DEVICE, ON_HOST, Span, innermost, spans
from benchmarks.lab.ledger import covered_s

ROOT = Path(__file__).parents[2]


def event(kind: str, start: float, length: float, name: str = "") -> dict[str, object]:
    return {"cat": kind, "ts": start, "dur": length, "name": name}


EVENTS = [
    event("kernel", 0, 10, "gemm"),
    event("gpu_memcpy", 5, 10),
    event("cpu_op", 0, 100, "aten::linear"),
    event("cpu_op", 10, 20, "aten::mm"),
    event("cpu_op", 12, 3, "aten::resolve_conj"),
    event("cpu_op", 30, 5, "aten::add"),
    event("kernel", 20, 1, "gemm"),
    event("gpu_memset", 20.25, 0.5),
    event("kernel", 30, 2, "_rms_norm"),
]


def test_what_a_device_did_at_once_counts_once_and_gaps_are_where_it_did_nothing() -> None:
    found = sorted(spans(EVENTS, ON_DEVICE))
    assert covered_s([(span.start, span.end) for span in found]) == 18.0
    assert gaps_of(found) == [5.0, 9.0]
    assert gaps_of(found[:1]) == []


def test_of_operators_that_call_others_only_those_count_that_compute() -> None:
    assert innermost(spans(EVENTS, ON_HOST)) == [Span(10, 30, "aten::mm"), Span(30, 35, "aten::add")]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            PRODUCTS,
            [
                "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
                "void gemv2T_kernel_val<int, int, __nv_bfloat16>",
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
                "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>",
                "void cublasLt::splitKreduce_kernel<32, 16, int>",
                "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "mkldnn::_linear_pointwise",
            ],
        ),
        (
            ATTENTION,
            [
                "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits>",
                "void cutlass::device_kernel<flashinfer::PrefillWithKVCacheKernel>",
                "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u>",
                "attend", "merge",
                "aten::_scaled_dot_product_flash_attention_for_cpu",
            ],
        ),
        (
            OTHERS,
            ["Memcpy HtoD (Pinned -> Device)", "Memset (Device)", "_best_of_block", "_largest_of_part", "_walk", "_compact", "aten::copy_"],
        ),
        (
            ELEMENTWISE,
            [
                "_rms_norm", "_gated", "_rotate",
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
                "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
                "triton_poi_fused_add_mul_0", "aten::mul", "aten::silu",
            ],
        ),
    ],
)  # fmt: skip
def test_kernels_are_told_apart_by_their_names(kind: str, names: list[str]) -> None:
    assert {name: kind_of(name) for name in names} == dict.fromkeys(names, kind)


def test_kernels_are_counted_and_those_that_take_most_come_first() -> None:
    found = [Span(0, 10, "gemm"), Span(10, 12, "_gated"), Span(12, 20, "gemm")]
    assert kernels_of(found) == [Kernel("gemm", PRODUCTS, 2, 18.0, 0.9), Kernel("_gated", ELEMENTWISE, 1, 2.0, 0.1)]
    assert kinds_of(found) == {PRODUCTS: 0.018, ELEMENTWISE: 0.002, ATTENTION: 0.0, OTHERS: 0.0}
    many = kernels_of([Span(0, 100 - number, f"k{number}") for number in range(32)])
    assert (len(many), many[-1].name, many[-1].count, many[-1].us) == (31, "2 others", 2, 70.0 + 69.0)
    assert sum(each.share for each in many) == pytest.approx(1.0)


def test_a_step_is_looked_at_and_its_time_is_shared_out() -> None:
    findings = Findings("profile")
    profile(Job("cpu", DRY, ROOT / "models" / "pocket", time.monotonic() + 100, findings))
    assert findings.skips == []
    found = measured(findings)
    assert {*found} == {FLOOR, PRODUCTS, ELEMENTWISE, ATTENTION, OTHERS, HOST, STEP}
    assert found[PRODUCTS] > 0 and found[ELEMENTWISE] > 0 and found[FLOOR] > 0
    counted = findings.find("profile", "8B", "kernels and copies of a step")
    assert counted is not None and sum(each.count for each in findings.kernels) == counted.value > 10
    text = report(findings, {}, {}, cpu=True).markdown()
    assert "## One step of 1 token of 8B, kernel by kernel" in text and f"| {PRODUCTS} |" in text
    assert all(f"| {each.name} | {each.kind} | {each.count} |" in text for each in findings.kernels[:3])


def test_another_process_reads_the_kernels_that_a_part_has_found(tmp_path: Path) -> None:
    path, kernel = tmp_path / "found.jsonl", Kernel("gemm", PRODUCTS, 2, 18.0, 0.9)
    Findings.writing_to(path, "profile").kernel(kernel)
    reader = Findings()
    reader.take(path.read_text().splitlines())
    assert reader.kernels == [kernel]


def test_a_run_writes_what_it_measured_into_the_table_of_the_budget_and_nothing_else() -> None:
    page = (ROOT / PAGE).read_text()
    filled = written(page, {FLOOR: 4.96, STEP: 6.123})
    lines = [line for line in filled.splitlines() if line not in page.splitlines()]
    assert [line.split(" | ")[0] + " | " + line.split(" | ")[-1] for line in lines] == [
        "| memory floor | 4.96 |",
        "| step | 6.12 |",
    ]
    assert written(filled, {}) == written(page, {})
    with pytest.raises(ValueError, match="has no block of the budget"):
        written("# A page", {})


def test_the_page_says_what_the_latest_run_has_measured() -> None:
    results, findings = ROOT / "docs/results/gpu.json", Findings()
    rows = json.loads(results.read_text())["rows"] if results.exists() else []
    findings.figures += [Figure(row["part"], row["what"], row["name"], row["value"]) for row in rows]
    page = (ROOT / PAGE).read_text()
    assert written(page, measured(findings)) == page
