"""The tables of docs/heads.md and docs/mtp.md, row by row, with the tests that hold each; `python -m scripts.print_heads` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Held:
    """Tests, as pytest names them below tests/model/heads, that compare numbers with somebody's."""

    whose: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What stands in the columns of a table before the last, and what the last one says."""

    cells: tuple[str, ...]
    held: tuple[Held, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests that hold it."""
        return tuple(test for each in self.held for test in each.tests)


@dataclass(frozen=True)
class Table:
    """One of a page of docs, by the name that it has there."""

    page: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def row(*parts: str | Held) -> Row:
    cells = tuple(part for part in parts if isinstance(part, str))
    return Row(cells, tuple(part for part in parts if isinstance(part, Held)))


def heads(*rows: Row) -> Table:
    return Table("heads", ("config.json or tensors", "what is computed"), rows)


def speculators(*folders: str) -> Held:
    """Folders of tests/data/heads with EAGLE-3 heads, and what the library's own models gave."""
    test = {
        "eagle3": "test_logits_on_true_features_and_on_own_states_agree",
        "peagle": "test_logits_behind_masks_agree",
    }
    return Held(
        "speculators", tuple(f"test_speculators.py::{test[each.partition('-')[0]]}[{each}]" for each in folders)
    )


def blocks(*folders: str, chosen: bool = False) -> Held:
    """The same with block drafters. chosen: what is chosen from logits, given the tokens before."""
    test = "test_choices_and_confidence_agree_given_the_text" if chosen else "test_logits_of_every_block_agree"
    return Held("speculators", tuple(f"test_blocks.py::{test}[{each}]" for each in folders))


def z_lab(*folders: str) -> Held:
    """The same in z-lab's layout, with its names of tensors and without."""
    test = "test_blocks.py::test_the_layout_of_z_lab_gives_the_same"
    cases = tuple(f"{test}[{each}-{names}]" for each in folders for names in ("plain", "renamed"))
    return Held("the same in z-lab's layout", cases)


def formula(*layouts: str, tests: tuple[str, ...] = ()) -> Held:
    """Layouts of `LAYOUTS3`, and other tests that hold a formula."""
    test = "test_eagle3_layouts.py::test_every_node_of_a_tree_gets_what_the_formula_gives_on_its_path"
    return Held("the formula", (*(f"{test}[{each}]" for each in layouts), *tests))


def transformers(*layouts: str) -> Held:
    """Layouts of `EVERYBODY`, whose layers run with attention of transformers."""
    test = "test_heads_match_transformers.py::test_every_node_of_a_tree_matches_its_path"
    return Held("transformers", tuple(f"{test}[{each}]" for each in layouts))


def families(*names: str) -> Held:
    """MTP layers of `TARGETS`."""
    test = "test_mtp_families.py::test_every_node_of_a_tree_matches_its_path"
    return Held("the formula", tuple(f"{test}[{each}]" for each in names))


def vllm(*names: str) -> Held:
    """MTP layers of tests/data/mtp, and what vLLM's own gave."""
    test = "test_mtp_vllm.py::test_logits_and_the_next_states_are_those_of_vllm"
    return Held("vLLM", tuple(f"{test}[{each}]" for each in names))


def own_mtp(*names: str) -> Held:
    """MTP layers that transformers runs itself."""
    test = "test_mtp_transformers.py::test_on_the_targets_last_hidden_state_the_logits_are_those_of_transformers"
    return Held("transformers", tuple(f"{test}[{each}]" for each in names))


_VOCABULARY: Final = "test_load.py::TestVocabulary::"
_TAUGHT: Final = "test_blocks.py::test_blocks_that_begin_with_tokens_are_served_as_they_are_learnt[dflash2-taught]"
_SIGHTS: Final = "test_blocks.py::test_what_layers_see_is_read"
_MASKS: Final = "test_blocks.py::test_an_embedding_of_the_masks_own_stands_for_it"

TABLES: Final[Mapping[str, Table]] = {
    "EAGLE": heads(
        row(
            "`fc`, `layers.0.*`",
            "one decoder layer on `fc` of [embedding; state], with no norm in front of its attention. Embeddings and LM head are the "
            "target's, whatever copies lie there",
            transformers("eagle"),
        ),
        row("`fc.bias`, or none", "is added", transformers("eagle", "eagle, no fc.bias")),
        row(
            "`qkv_bias` with `model_type: llama`",
            "the layer of Qwen2, with its biases",
            transformers("eagle of a qwen2"),
        ),
    ),
    "EAGLE-3": heads(
        row(
            "`midlayer.*` or `layers.0.*`",
            "the first decoder layer reads [norm of the embedding; norm of the state], 2 H wide, and adds to the state",
            speculators("eagle3-llama", "eagle3-all-at-once"),
            transformers("eagle3", "eagle3, specforge", "eagle3, speculators"),
        ),
        row(
            "`num_hidden_layers` above 1: `layers.1.*`, ...",
            "decoder layers behind it, of the same kind, that read H",
            speculators("eagle3-two-blocks"),
        ),
        row(
            "`model_type`: llama, qwen2, qwen3, mistral, ...",
            "the layer that transformers has for it, with its biases, norms of queries and keys (`q_norm`, `k_norm`), windows "
            "(`layer_types`) and scaled positions; one that is built otherwise is refused",
            speculators("eagle3-biases", "eagle3-qwen3", "eagle3-windows", "eagle3-yarn"),
            formula("windows"),
        ),
        row(
            "`model_type: deepseek_v3` or `kimi_k2`: `kv_a_proj_with_mqa`, ...",
            "multi-head latent attention, whose first projections read 2 H; the MLP is dense",
            formula("latents", "latents, two layers, plain queries", "modelopt, latents"),
        ),
        row(
            "`norm_before_residual`",
            "the first layer adds to the normed state. Where it is absent: true if `speculators_model_type` is eagle3, as vLLM reads it, "
            "else false",
            speculators("eagle3-norm-before-residual", "eagle3-llama"),
            transformers("eagle3", "eagle3, speculators"),
        ),
        row(
            "`norm_before_fc`: `input_norm`",
            "one norm of the whole feature before `fc`",
            speculators("eagle3-norm-before-fc"),
            formula("modelopt, norm_before_fc"),
        ),
        row("`fc_norm`: `fc_norm.{i}`", "a norm for each hidden state of a feature", speculators("eagle3-fc-norm")),
        row("`norm_output`", "the state that is handed on is behind `norm`", speculators("eagle3-norm-output")),
        row("`fc.bias`", "is added", formula("modelopt")),
        row("`logit_scale`", "logits are multiplied by it", formula("logit_scale")),
        row(
            "`eagle_aux_hidden_state_layer_ids`, `num_aux_hidden_states`",
            "any number of hidden states. At the top the ids name inputs of layers counted from 0, in `eagle_config` outputs. Absent: 2, "
            "L // 2 and L - 3 of a target of L layers",
            speculators("eagle3-two-states", "eagle3-five-states"),
            formula("modelopt"),
        ),
        row(
            "`target_hidden_size`, `embed_tokens`",
            "hidden states of another width than the head's; it needs embeddings of its own then. With its own, those of the target may be "
            "quantised or scaled",
            formula("a wider target"),
        ),
        row(
            "`draft_vocab_size`, `d2t`",
            "fewer tokens than the target's; with all of them `d2t` may be absent",
            speculators("eagle3-llama", "eagle3-whole-vocabulary"),
        ),
        row(
            "`lm_head` absent",
            "the target's, if `draft_vocab_size` is absent or says all of its tokens",
            formula(tests=(f"{_VOCABULARY}test_a_head_of_the_whole_vocabulary_has_no_tables",)),
        ),
        row(
            "`speculators_model_type: peagle`, or `mask_hidden` with `mask_token_id`, `pard_token` or `ptd_token_id`",
            "P-EAGLE: behind the last true feature every row sees the embedding of the mask and the state of `mask_hidden`. Nodes are "
            "computed level by level, as with other heads: the children of all nodes of a level are the same",
            speculators("peagle-llama", "peagle-qwen3", "peagle-fc-norm"),
            formula("p-eagle"),
        ),
    ),
    "Block drafters": heads(
        row(
            "`speculators_model_type: dflash`, `dflash2` or `dspark`; else `dflash_config`, or `markov_head.*` for DSpark",
            "tells the layout",
            blocks("dflash", "dflash2", "dspark"),
            z_lab("dflash", "dflash-whole-vocabulary", "dflash-windows"),
        ),
        row(
            "`aux_hidden_state_layer_ids`, or `target_layer_ids`",
            "the hidden states of a feature; the first count inputs of layers from 0, the second outputs",
            blocks("dflash", "dflash-from-anchor"),
            z_lab("dflash"),
        ),
        row(
            "`block_size`, `mask_token_id`",
            "tokens of a block, the committed one included, and the token of the mask",
            blocks("dflash"),
        ),
        row(
            "`mask_embedding`, as a tensor or in `mask_embedding.pt`",
            "stands for the mask's row of the embeddings",
            Held("the formula", (f"{_MASKS}[tensor]", f"{_MASKS}[file]")),
        ),
        row(
            "`sample_from_anchor`",
            "the committed token's position predicts the next token; else the first mask's does. Absent: true for DSpark",
            blocks("dflash", "dflash-from-anchor"),
            blocks("dspark", "dspark-whole-vocabulary", chosen=True),
        ),
        row(
            "`layer_types`, `sliding_window`; `use_swa`, `swa_window_size`",
            "layers that see the last committed tokens alone",
            blocks("dflash-windows"),
        ),
        row(
            "`sliding_window_non_causal`",
            "`speculators`: in layers with a window a token of the block sees those before it unless this is set (DFlash 2 sets it if it "
            "is absent); in other layers it always sees all of the block",
            blocks("dflash-windows", "dflash-windows-both-ways"),
        ),
        row(
            "`is_causal`, `dflash_config.causal`",
            "of all layers; absent, of those with a window, in layouts other than `speculators`' own",
            Held("speculators, as train-head has it", (_TAUGHT,)),
            formula(tests=tuple(f"{_SIGHTS}[more{case}-expected{case}]" for case in range(4))),
        ),
        row(
            "`draft_vocab_size`, `d2t`, `lm_head`",
            "fewer tokens than the target's; without `lm_head` the target's",
            blocks("dflash", "dflash-whole-vocabulary"),
        ),
        row(
            "`conv_kernel_size`, `conv_group_size`: `attention_conv`, `mlp_conv`",
            "DFlash 2: convolutions over the block around attention and MLP",
            blocks("dflash2", "dflash2-three-taps"),
        ),
        row(
            "`selector_rank`, `selector_top_k`: `candidate_selector`",
            "DFlash 2: the likeliest tokens of a position are scored anew, given the one before",
            blocks("dflash2", "dflash2-three-taps", chosen=True),
        ),
        row(
            "`markov_rank`, `markov_head_type` (vanilla, gated, rnn): `markov_head`",
            "DSpark: logits get a bias by the token before",
            blocks("dspark", "dspark-gated", "dspark-rnn", chosen=True),
        ),
        row(
            "`confidence_head`, `confidence_head_with_markov`",
            "DSpark: the probability that a position is accepted",
            blocks("dspark", "dspark-gated", chosen=True),
        ),
    ),
    "MTP layers": Table(
        "mtp",
        ("`model_type`", "layers", "decoder layer", "peculiar"),
        (
            row(
                "`mimo`",
                "`model.mtp_layers.{i}`",
                "qwen2",
                "the state stands before the embedding",
                formula(tests=transformers("mimo", "mimo, one layer as eagle").tests),
                vllm("mimo"),
            ),
            row(
                "`deepseek_v3`, `glm4_moe`, `glm4_moe_lite`",
                "`model.layers.{L + i}`, behind the target's L",
                "the target's, with experts",
                "copies of embeddings and LM head are not read",
                formula(tests=transformers("deepseek", "deepseek, one layer as eagle").tests),
                families("glm4_moe", "glm4_moe_lite"),
                vllm("deepseek_v3", "glm4_moe"),
                own_mtp("deepseek_v3", "glm4_moe"),
            ),
            row(
                "`deepseek_v32`, `glm_moe_dsa`",
                "as deepseek_v3",
                "deepseek_v3's",
                "the indexer is not read (below)",
                families("deepseek_v32", "glm_moe_dsa"),
            ),
            row(
                "`mimo_v2_flash`",
                "`model.mtp.layers.{i}`, three of them",
                "a window, sinks, a dense MLP",
                "the next step reads the state behind the norm",
                families("mimo_v2_flash"),
                vllm("mimo_v2_flash"),
            ),
            row(
                "`step3p5`, `step3p7`",
                "`model.layers.{L + i}.transformer`, three of them",
                "window or not, by layer; a dense MLP",
                "an LM head of its own in every layer; reads the target's state in front of its last norm, "
                "and hands on its own in front of that norm",
                families("step3p5", "step3p7"),
            ),
            row(
                "`qwen3_next`, `qwen3_5`, `qwen3_5_text`, `qwen3_5_moe`, `qwen3_5_moe_text`",
                "`mtp.layers.{i}` with `mtp.fc`, `mtp.norm`",
                "the target's full attention",
                "",
                families("qwen3_next", "qwen3_5", "qwen3_5_moe"),
                vllm("qwen3_next"),
            ),
            row(
                "`exaone_moe`",
                "as qwen3_next",
                "a dense MLP; rotary positions always",
                "",
                families("exaone_moe", "exaone_moe, a window"),
                vllm("exaone_moe", "exaone_moe-window"),
            ),
            row(
                "`exaone4_5`",
                "as qwen3_next",
                "exaone4, whose norms stand behind attention and MLP",
                "",
                families("exaone4_5"),
            ),
            row(
                "`ernie4_5`, `ernie4_5_moe`",
                "`model.mtp_block.{i}`",
                "a dense MLP",
                "zeros in the place of the first embedding; no norm before the LM head",
                families("ernie4_5", "ernie4_5_moe"),
                vllm("ernie4_5_moe"),
            ),
            row(
                "`hy_v3`",
                "`model.layers.{L + i}`",
                "the target's, with experts",
                "zeros in the place of the first embedding; `final_layernorm`; the checkpoint's `shared_head` is not read",
                families("hy_v3"),
                vllm("hy_v3"),
            ),
            row(
                "`bailing_hybrid`",
                "`model.layers.{L + i}`",
                "latents and experts",
                "`final_layernorm`",
                families("bailing_hybrid"),
            ),
            row(
                "`nemotron_h`",
                "`mtp.layers.0` and `.1`",
                "an attention mixer, then experts (`*E`)",
                "no other `mtp_hybrid_override_pattern`",
                families("nemotron_h"),
            ),
            row(
                "`longcat_flash`",
                "`model.mtp.layers.0`",
                "latents and a dense MLP",
                "embeddings of its own",
                families("longcat_flash"),
            ),
        ),
    ),
}
