//! Three naming dialects and a mixture of them → official names.
//!
//! `official`: layers.3.attn.wq_a.weight. `live`: model.layers.3.self_attn.q_a_proj.weight. `saved` (what transformers writes):
//! official leaves under `model.`, with `attn.norm` for kv_norm. Mapping goes segment by segment, so mixtures work too.

/// What a name in a file means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// One tensor, by its official name.
    Plain(String),
    /// All experts of a layer in one tensor: `gate_up_proj [E, 2I, D]` (w1 rows, then w3 rows) or `down_proj [E, D, I]`.
    Packed { layer: usize, down: bool },
    /// A drafter's tensor, never needed here.
    Mtp,
}

/// The official name of `raw`. Unknown names come back unchanged, without the leading `model.`.
pub(super) fn canonical(raw: &str) -> Name {
    let name = raw.strip_prefix("model.").unwrap_or(raw);
    if name.starts_with("mtp.") {
        return Name::Mtp;
    }
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        ["embed_tokens", rest @ ..] => plain(&["embed"], rest),
        ["lm_head", rest @ ..] => plain(&["head"], rest),
        ["hc_head", leaf @ ("hc_fn" | "hc_base" | "hc_scale")] => {
            Name::Plain(leaf.replacen("hc_", "hc_head_", 1))
        }
        ["layers", n, rest @ ..] => layer(n, rest),
        _ => Name::Plain(name.into()),
    }
}

fn layer(n: &str, rest: &[&str]) -> Name {
    let at = |head: &[&str], tail: &[&str]| {
        let mut all = vec!["layers", n];
        all.extend_from_slice(head);
        plain(&all, tail)
    };
    match rest {
        ["input_layernorm", tail @ ..] => at(&["attn_norm"], tail),
        ["post_attention_layernorm", tail @ ..] => at(&["ffn_norm"], tail),
        ["attn_hc", leaf] => at(&[&format!("hc_attn_{leaf}")], &[]),
        ["ffn_hc", leaf] => at(&[&format!("hc_ffn_{leaf}")], &[]),
        ["attn" | "self_attn", tail @ ..] => {
            let (head, tail) = attn(tail);
            let mut all = vec!["attn"];
            all.extend(head);
            at(&all, tail)
        }
        ["ffn" | "mlp", "experts", packed @ ("gate_up_proj" | "down_proj")]
        | ["ffn" | "mlp", "experts", packed @ ("gate_up_proj" | "down_proj"), "weight"] => match n.parse() {
            Ok(layer) => Name::Packed { layer, down: *packed == "down_proj" },
            Err(_) => at(rest, &[]),
        },
        ["ffn" | "mlp", "experts", e, leaf, tail @ ..] => at(&["ffn", "experts", e, expert(leaf)], tail),
        ["ffn" | "mlp", "shared_experts", leaf, tail @ ..] => {
            at(&["ffn", "shared_experts", expert(leaf)], tail)
        }
        ["ffn" | "mlp", "gate", "e_score_correction_bias"] => at(&["ffn", "gate", "bias"], &[]),
        ["ffn" | "mlp", tail @ ..] => at(&["ffn"], tail),
        _ => at(&[], rest),
    }
}

fn expert(leaf: &str) -> &str {
    match leaf {
        "gate_proj" => "w1",
        "up_proj" => "w3",
        "down_proj" => "w2",
        other => other,
    }
}

/// Below `attn.`: the renamed leading segments and the rest.
fn attn<'a, 'b>(parts: &'b [&'a str]) -> (Vec<&'a str>, &'b [&'a str]) {
    let compressor = |leaf: &'a str| match leaf {
        "kv_proj" => "wkv",
        "gate_proj" => "wgate",
        "position_bias" => "ape",
        "kv_norm" => "norm",
        other => other,
    };
    let indexer = |tail: &'b [&'a str]| -> (Vec<&'a str>, &'b [&'a str]) {
        match tail {
            ["q_b_proj" | "wq_b", tail @ ..] => (vec!["indexer", "wq_b"], tail),
            ["scorer", "weights_proj", tail @ ..] | ["weights_proj", tail @ ..] => {
                (vec!["indexer", "weights_proj"], tail)
            }
            ["compressor", leaf, tail @ ..] => (vec!["indexer", "compressor", compressor(leaf)], tail),
            [leaf, tail @ ..] => (vec!["indexer", "compressor", compressor(leaf)], tail),
            [] => (vec!["indexer"], tail),
        }
    };
    match parts {
        ["indexer", tail @ ..] | ["compressor", "indexer", tail @ ..] => indexer(tail),
        ["compressor", leaf, tail @ ..] => (vec!["compressor", compressor(leaf)], tail),
        [leaf, tail @ ..] => {
            let leaf = match *leaf {
                "sinks" => "attn_sink",
                "q_a_proj" => "wq_a",
                "q_a_norm" => "q_norm",
                "q_b_proj" => "wq_b",
                "kv_proj" => "wkv",
                "norm" => "kv_norm",
                "o_a_proj" => "wo_a",
                "o_b_proj" => "wo_b",
                other => other,
            };
            (vec![leaf], tail)
        }
        [] => (Vec::new(), parts),
    }
}

fn plain(head: &[&str], tail: &[&str]) -> Name {
    let mut out = head.join(".");
    for t in tail {
        if !out.is_empty() {
            out.push('.');
        }
        out.push_str(if *t == "weight_scale_inv" { "scale" } else { t });
    }
    Name::Plain(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row of the three-dialect table: official, live module name, name in a file saved by transformers.
    #[test]
    fn a_row_of_the_name_table_maps_wrongly() {
        let rows = [
            ("embed.weight", "model.embed_tokens.weight", "model.embed_tokens.weight"),
            ("head.weight", "lm_head.weight", "head.weight"),
            ("norm.weight", "model.norm.weight", "model.norm.weight"),
            ("hc_head_fn", "model.hc_head.hc_fn", "model.hc_head.hc_fn"),
            ("hc_head_base", "model.hc_head.hc_base", "model.hc_head.hc_base"),
            ("hc_head_scale", "model.hc_head.hc_scale", "model.hc_head.hc_scale"),
            (
                "layers.7.attn_norm.weight",
                "model.layers.7.input_layernorm.weight",
                "model.layers.7.attn_norm.weight",
            ),
            (
                "layers.7.ffn_norm.weight",
                "model.layers.7.post_attention_layernorm.weight",
                "model.layers.7.ffn_norm.weight",
            ),
            ("layers.7.hc_attn_fn", "model.layers.7.attn_hc.fn", "model.layers.7.hc_attn_fn"),
            ("layers.7.hc_attn_scale", "model.layers.7.attn_hc.scale", "model.layers.7.hc_attn_scale"),
            ("layers.7.hc_ffn_base", "model.layers.7.ffn_hc.base", "model.layers.7.hc_ffn_base"),
            ("layers.7.attn.attn_sink", "model.layers.7.self_attn.sinks", "model.layers.7.attn.attn_sink"),
            (
                "layers.7.attn.wq_a.weight",
                "model.layers.7.self_attn.q_a_proj.weight",
                "model.layers.7.attn.wq_a.weight",
            ),
            (
                "layers.7.attn.q_norm.weight",
                "model.layers.7.self_attn.q_a_norm.weight",
                "model.layers.7.attn.q_norm.weight",
            ),
            (
                "layers.7.attn.wq_b.weight",
                "model.layers.7.self_attn.q_b_proj.weight",
                "model.layers.7.attn.wq_b.weight",
            ),
            (
                "layers.7.attn.wkv.weight",
                "model.layers.7.self_attn.kv_proj.weight",
                "model.layers.7.attn.wkv.weight",
            ),
            (
                "layers.7.attn.kv_norm.weight",
                "model.layers.7.self_attn.kv_norm.weight",
                "model.layers.7.attn.norm.weight",
            ),
            (
                "layers.7.attn.wo_a.weight",
                "model.layers.7.self_attn.o_a_proj.weight",
                "model.layers.7.attn.wo_a.weight",
            ),
            (
                "layers.7.attn.wo_b.weight",
                "model.layers.7.self_attn.o_b_proj.weight",
                "model.layers.7.attn.wo_b.weight",
            ),
            (
                "layers.7.attn.compressor.wkv.weight",
                "model.layers.7.self_attn.compressor.kv_proj.weight",
                "model.layers.7.attn.compressor.wkv.weight",
            ),
            (
                "layers.7.attn.compressor.wgate.weight",
                "model.layers.7.self_attn.compressor.gate_proj.weight",
                "model.layers.7.attn.compressor.wgate.weight",
            ),
            (
                "layers.7.attn.compressor.ape",
                "model.layers.7.self_attn.compressor.position_bias",
                "model.layers.7.attn.compressor.ape",
            ),
            (
                "layers.7.attn.compressor.norm.weight",
                "model.layers.7.self_attn.compressor.kv_norm.weight",
                "model.layers.7.attn.compressor.norm.weight",
            ),
            (
                "layers.7.attn.indexer.compressor.wkv.weight",
                "model.layers.7.self_attn.compressor.indexer.kv_proj.weight",
                "model.layers.7.attn.indexer.compressor.wkv.weight",
            ),
            (
                "layers.7.attn.indexer.compressor.ape",
                "model.layers.7.self_attn.compressor.indexer.position_bias",
                "model.layers.7.attn.indexer.compressor.ape",
            ),
            (
                "layers.7.attn.indexer.compressor.norm.weight",
                "model.layers.7.self_attn.compressor.indexer.kv_norm.weight",
                "model.layers.7.attn.indexer.compressor.norm.weight",
            ),
            (
                "layers.7.attn.indexer.wq_b.weight",
                "model.layers.7.self_attn.compressor.indexer.q_b_proj.weight",
                "model.layers.7.attn.indexer.wq_b.weight",
            ),
            (
                "layers.7.attn.indexer.weights_proj.weight",
                "model.layers.7.self_attn.compressor.indexer.scorer.weights_proj.weight",
                "model.layers.7.attn.indexer.weights_proj.weight",
            ),
            ("layers.7.ffn.gate.weight", "model.layers.7.mlp.gate.weight", "model.layers.7.ffn.gate.weight"),
            (
                "layers.7.ffn.gate.bias",
                "model.layers.7.mlp.gate.e_score_correction_bias",
                "model.layers.7.ffn.gate.bias",
            ),
            (
                "layers.7.ffn.gate.tid2eid",
                "model.layers.7.mlp.gate.tid2eid",
                "model.layers.7.ffn.gate.tid2eid",
            ),
            (
                "layers.7.ffn.shared_experts.w3.weight",
                "model.layers.7.mlp.shared_experts.up_proj.weight",
                "model.layers.7.ffn.shared_experts.w3.weight",
            ),
            (
                "layers.7.ffn.experts.5.w2.weight",
                "model.layers.7.mlp.experts.5.down_proj.weight",
                "model.layers.7.ffn.experts.5.w2.weight",
            ),
        ];
        for (official, live, saved) in rows {
            for raw in [official, live, saved, &format!("model.{official}")] {
                assert_eq!(canonical(raw), Name::Plain(official.into()), "{raw}");
            }
        }
    }

    #[test]
    fn a_scale_suffix_is_not_recognised() {
        let scale = Name::Plain("layers.0.attn.wq_a.scale".into());
        assert_eq!(canonical("layers.0.attn.wq_a.scale"), scale);
        assert_eq!(canonical("model.layers.0.self_attn.q_a_proj.weight_scale_inv"), scale);
        for suffix in ["weight_scale", "weight_scale_2", "input_scale"] {
            assert_eq!(
                canonical(&format!("layers.0.ffn.experts.3.w1.{suffix}")),
                Name::Plain(format!("layers.0.ffn.experts.3.w1.{suffix}"))
            );
        }
    }

    #[test]
    fn packed_experts_or_drafter_names_are_mistaken() {
        assert_eq!(
            canonical("model.layers.4.mlp.experts.gate_up_proj"),
            Name::Packed { layer: 4, down: false }
        );
        assert_eq!(canonical("layers.4.mlp.experts.down_proj"), Name::Packed { layer: 4, down: true });
        assert_eq!(canonical("mtp.0.attn.wq_a.weight"), Name::Mtp);
        assert_eq!(canonical("model.mtp.2.hc_head_fn"), Name::Mtp);
    }
}
