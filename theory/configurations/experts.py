"""Read a mixture of experts from a model's configuration: number, width and choice of experts, and dense layers."""

from theory.configurations.reading import Fields, Reading

# The keys of layers without experts, with their smallest values, which leave no layer without.
_DENSE = {
    "first_k_dense_replace": 0, "moe_layer_start_index": 0, "moe_layer_end_index": -1, "moe_layer_interval": 1,
    "decoder_sparse_step": 1,
}  # fmt: skip


def experts(r: Reading, fields: Fields, tokens: int) -> None:
    """Set the network's fields for a mixture of experts, and note properties of the model that these fields lack.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, changed in place.
        tokens: sequence length, which is not used here.

    Raises:
        ValueError: more experts are chosen than there are, or from some of their groups only, or the layers without
            experts are not the first ones.
    """
    count = r.count("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    chosen = r.count("num_experts_per_tok", "moe_topk", "moe_k")
    if chosen > count:
        raise ValueError(f"num_experts_per_tok must be at most the {count} experts, got {chosen}.")
    fields |= {"experts": count, "experts_per_token": chosen}
    # Over the sum of the chosen where the class does not ask.
    fields["router_norm"] = "sum" if (r.switch("norm_topk_prob") if r.knows("norm_topk_prob") else True) else "none"
    if r.knows("routed_scaling_factor"):
        fields["routed_scale"] = r.positive("routed_scaling_factor")
        if (groups := r.count("n_group")) != (kept := r.count("topk_group")):
            raise ValueError(f"topk_group must be n_group = {groups}, got {kept}: a choice of groups has no rule.")
    if r.knows("moe_intermediate_size"):
        dense = _dense_layers(r, r.in_file["depth"])
        fields |= {"dense_layers": dense, "dense_ratio": fields["ffn_ratio"]} if dense else {}
        fields["ffn_ratio"] = r.count("moe_intermediate_size") / r.in_file["width"]
    for name in ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"):  # one MLP of their total width
        if r.knows(name):
            fields["shared_ratio"] = r.count(name, least=0) * fields["ffn_ratio"]
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
    r.neutral("its class has no loss of further tokens", "num_nextn_predict_layers", "num_mtp_layers")


def _dense_layers(r: Reading, depth: int) -> int:
    """Return the number of first layers that have a plain MLP instead of experts.

    Raises:
        ValueError: the layers without experts are not the first ones, or are all layers; or the file's list does not
            consist of layer numbers.
    """
    names = [name for name in ("mlp_layer_types", "mlp_only_layers", *_DENSE) if r.knows(name)]
    given = {name: r.count(name, least=least) if name in names else least for name, least in _DENSE.items()}
    kinds, listed = (
        r.take(name, default=None) if name in names else None for name in ("mlp_layer_types", "mlp_only_layers")
    )
    if not isinstance(listed or [], list) or not all(
        type(layer) is int and 0 <= layer < depth for layer in listed or []
    ):
        raise ValueError(f"mlp_only_layers must be a list of layer indices from 0 to {depth - 1}, got {listed!r}.")
    first, last = max(given["first_k_dense_replace"], given["moe_layer_start_index"]), given["moe_layer_end_index"]
    others = {*(listed or []), *range(first), *(range(last + 1, depth) if last >= 0 else [])}
    every = max(given["decoder_sparse_step"], given["moe_layer_interval"])
    if kinds is None:
        kinds = ["dense" if layer in others or (layer + 1) % every else "sparse" for layer in range(depth)]
    if not isinstance(kinds, list) or len(kinds) != depth or not all(kind in ("dense", "sparse") for kind in kinds):
        raise ValueError(f"mlp_layer_types must be a list of {depth} words dense or sparse, got {kinds!r}.")
    dense = [layer for layer, kind in enumerate(kinds) if kind == "dense"]
    if dense != list(range(len(dense))) or len(dense) == depth:
        raise ValueError(
            f"{' and '.join(names)} must give experts to all layers except the first ones, got dense layers {dense} of "
            f"{depth}, counted from 0."
        )
    return len(dense)
