"""Read a mixture of experts from a model's configuration: number, width and choice of experts, and dense layers."""

from theory.configurations.reading import Fields, Reading


def experts(r: Reading, fields: Fields, tokens: int) -> None:
    """Set the network's fields for a mixture of experts, and note properties of the model that these fields lack.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, changed in place.
        tokens: sequence length, which is not used here.

    Raises:
        ValueError: more experts are chosen than there are, or the layers without experts are not the first ones.
    """
    count = r.count("num_local_experts", "num_experts")
    chosen = r.count("num_experts_per_tok")
    if chosen > count:
        raise ValueError(f"num_experts_per_tok must be at most the {count} experts, got {chosen}.")
    fields |= {"experts": count, "experts_per_token": chosen}
    # Over the sum of the chosen where the class does not ask.
    fields["router_norm"] = "sum" if (r.switch("norm_topk_prob") if r.knows("norm_topk_prob") else True) else "none"
    if r.knows("moe_intermediate_size"):
        dense = _dense_layers(r, r.in_file["depth"])
        fields |= {"dense_layers": dense, "dense_ratio": fields["ffn_ratio"]} if dense else {}
        fields["ffn_ratio"] = r.count("moe_intermediate_size") / r.in_file["width"]
    if r.knows("shared_expert_intermediate_size"):
        fields["shared_ratio"] = r.count("shared_expert_intermediate_size") / r.in_file["width"]
        fields["shared_gate"] = "sigmoid"
    if r.knows("shared_intermediate_size"):  # Granite's, without a gate; 0 for none
        fields["shared_ratio"] = r.count("shared_intermediate_size", least=0) / r.in_file["width"]
    if r.left.get("output_router_logits"):
        r.left_out("here, the loss that balances the load of experts is not added", "output_router_logits")
    if "router_aux_loss_coef" in r.in_config:
        r.neutral("it is the weight of a loss that is not added here", "router_aux_loss_coef")
    else:
        r.take("router_aux_loss_coef", default=None)
    r.left_out("here, the router's inputs have no noise, as in evaluation", "router_jitter_noise")


def _dense_layers(r: Reading, depth: int) -> int:
    """Return the number of first layers that have a plain MLP instead of experts.

    Raises:
        ValueError: the layers without experts are not the first ones, or are all layers; or the file's list does not
            consist of layer numbers.
    """
    every, listed = r.count("decoder_sparse_step"), r.take("mlp_only_layers", default=None) or []
    if not isinstance(listed, list) or not all(
        isinstance(layer, int) and not isinstance(layer, bool) and 0 <= layer < depth for layer in listed
    ):
        raise ValueError(f"mlp_only_layers must be a list of layer indices from 0 to {depth - 1}, got {listed!r}.")
    dense = [layer for layer in range(depth) if layer in listed or (layer + 1) % every]
    if dense != list(range(len(dense))) or len(dense) == depth:
        raise ValueError(
            f"mlp_only_layers and decoder_sparse_step must give experts to all layers except the first ones, got "
            f"{listed!r} and {every} of {depth} layers."
        )
    return len(dense)
