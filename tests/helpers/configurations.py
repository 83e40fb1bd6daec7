"""Small configuration files of families, as dicts."""

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96,
    "intermediate_size": 160,
}  # fmt: skip
BERT = LLAMA | {"model_type": "bert"}
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "num_key_value_heads": 4}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 96}
T5 = {
    "model_type": "t5", "is_encoder_decoder": True, "d_model": 64, "d_ff": 256, "d_kv": 16, "num_heads": 4,
    "num_layers": 3, "vocab_size": 96, "dropout_rate": 0.1, "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
}  # fmt: skip
