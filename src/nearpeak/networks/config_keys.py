"""A config.json read key by key: each one is asked for, known not to change the mathematics, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearpeak.records.errors import UserError

MAX_SIZE = 1 << 24
# Of training, of generation, of other tasks, or bookkeeping: a forward pass without dropout does not depend on them.
HARMLESS = frozenset({
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens",
    "initializer_range", "initializer_factor", "use_cache", "cache_implementation", "attention_dropout",
    "attention_probs_dropout_prob", "hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "resid_dropout", "embd_dropout", "dropout", "classifier_dropout", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "id2label", "label2id", "num_labels",
    "problem_type", "finetuning_task", "task_specific_params", "output_attentions", "output_hidden_states",
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "return_dict", "torchscript",
    "use_bfloat16", "chunk_size_feed_forward", "gradient_checkpointing", "is_decoder",
    "tie_encoder_decoder", "tokenizer_class", "prefix",
    "keys_to_ignore_at_inference", "pretraining_tp", "remove_invalid_values", "min_length",
    "max_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature",
    "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "exponential_decay_length_penalty", "tf_legacy_loss", "unsloth_version", "unsloth_fixed", "transformers.js_config",
    "n_ctx", "vocab_file", "_attn_implementation", "attn_implementation", "_attn_implementation_autoset",
    "_flash_attn_2_enabled", "use_flash_attention", "is_llama_config", "quantization_config",
    "neftune_noise_alpha", "hidden_act_param", "kernel_options", "encoder", "max_window_layers",
})  # fmt: skip


class ConfigKeys:
    """The keys of one config, with a family's defaults. Every reading raises UserError naming file and key."""

    def __init__(
        self,
        values: Mapping[str, object],
        where: str,
        defaults: Mapping[str, object],
        harmless: frozenset[str] = frozenset(),
    ) -> None:
        self.values, self.where, self.defaults = values, where, defaults
        self.harmless = HARMLESS | harmless
        self.asked: set[str] = set()

    def find(self, key: str) -> object:
        """What stands there, or the family's default where nothing does."""
        self.asked.add(key)
        return self.values[key] if key in self.values else self.defaults.get(key)

    def size(self, key: str) -> int:
        """A whole number from 1."""
        value = self.find(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self.error(key, f"is {_shown(value)}; a whole number from 1 to {MAX_SIZE:,} is expected")
        return value

    def size_or(self, key: str, otherwise: int | None) -> int | None:
        """Likewise, or `otherwise` where it is null or not there."""
        return otherwise if self.find(key) is None else self.size(key)

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self.find(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, f"is {_shown(value)}; a number above 0 is expected")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.find(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """True or false; null is false."""
        value = self.find(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"is {_shown(value)}; true or false is expected")
        return bool(value)

    def text(self, key: str) -> str:
        value = self.find(key)
        if not isinstance(value, str):
            raise self.error(key, f"is {_shown(value)}; a text is expected")
        return value

    def part(self, key: str) -> Mapping[str, object] | None:
        """An object with keys of its own; None where it is null or not there."""
        value = self.find(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, f"is {_shown(value)}; an object is expected")
        return value

    def listed(self, key: str, length: int) -> list[object] | None:
        """A list with one entry a layer; None where it is null or not there."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) < length:
            raise self.error(key, f"is {_shown(value)}; a list of {length} entries is expected")
        return list(value[:length])

    def must_be(self, key: str, *computed: object) -> None:
        """Refuse any other value; one that is null or not there is fine."""
        value = self.find(key)
        if value is not None and value not in computed:
            raise self.error(key, f"is {_shown(value)}; only {' or '.join(map(_shown, computed))} is computed")

    def nothing_left(self) -> None:
        """Refuse what nobody asked for, unless it is known not to matter, or off: null, false, or an empty list."""
        for key, value in self.values.items():
            off = value is None or value is False or value in ([], {})  # 0 is a number, and may be one to compute with
            a_name = key.startswith("_") and isinstance(value, str)  # where a checkpoint came from
            if key not in self.asked and key not in self.harmless and not off and not a_name:
                raise self.error(key, f"is {_shown(value)}, which may change what is computed, and is not known here")

    def error(self, key: str, what: str) -> UserError:
        """An error that names file and key."""
        return UserError(f"{self.where}: key {str(key)[:80]} {what}. nearpeak does not run this model.")


def _shown(value: object) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
