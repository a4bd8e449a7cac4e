"""Keys of a config.json that are passed over in silence.

They change neither shapes nor how much is computed (dropout, token ids, the base of rotary positions); or they are
sizes that only some families use, whose own code asks for them. Any other key that nobody asked for is in the notes.
"""

from __future__ import annotations

_KEYS = """
    _name_or_path _sliding_window_pattern activation_dropout activation_function add_cross_attention
    apply_spec_augment architectures attention_dropout attention_probs_dropout_prob attn_logit_softcapping
    attn_pdrop attn_scale attn_temperature_tuning auto_map aux_loss_alpha batch_norm_eps batch_norm_momentum
    begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout classifier_proj_size
    cls_token_id decoder_layerdrop decoder_start_token_id dense_act_fn depthwise_padding do_sample
    drop_connect_rate drop_path_rate dropout dropout_rate dtype emb_pdrop embd_pdrop embedding_dropout
    embedding_fraction encoder_layerdrop encoder_stride eos_token_id ep_size experts_per_token
    final_logit_softcapping first_last_layers_bf16 floor_scale forced_decoder_ids full_attn_idxs
    gradient_checkpointing hidden_act hidden_activation hidden_dropout_prob id2label init_device init_std
    initial_context_length initializer_factor initializer_range intermediate_size intermediate_size_mlp
    is_encoder_decoder is_gated_act label2id layer_norm_eps layer_norm_epsilon logit_scale mask_feature_length
    mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob max_length
    max_window_layers median_filter_width model_type n_group no_rope_layer_interval no_rope_layers norm_eps
    norm_epsilon norm_topk_prob norm_type num_key_value_heads num_nextn_predict_layers num_return_sequences
    num_stages original_max_position_embeddings out_features out_indices output_attentions output_hidden_states
    output_past output_router_logits pad_token_id partial_rotary_factor pooler_act pooling_type
    position_embedding_type pretraining_tp problem_type qk_head_dim quantization_config query_pre_attn_scalar
    reorder_and_upcast_attn resid_pdrop residual_dropout return_dict rms_norm_eps rope_interleave rope_interleaved
    rope_parameters rope_scaling rope_theta routed_scaling_factor router_aux_loss_coef router_jitter_noise
    scale_attn_by_inverse_layer_idx scale_attn_weights scale_decoder_outputs scale_embedding scoring_func
    sep_token_id seq_aux sliding_window sliding_window_pattern stage_names summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens swiglu_limit
    task_specific_params temperature tie_word_embeddings tokenizer_class top_k top_k_experts top_p topk_group
    topk_method torch_dtype transformers_version unsloth_fixed unsloth_version use_cache use_qk_norm
    use_sliding_window use_weighted_layer_sum verbose vocab_size_per_layer_input
"""
NO_MATTER = frozenset(_KEYS.split())
