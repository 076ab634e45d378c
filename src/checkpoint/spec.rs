//! Which tensors a configuration calls for, and of what shape. The one place that knows.

use super::config::{Config, LayerKind};

/// What a tensor is for; `inspect` groups by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Role {
    Embed,
    Mhc,
    Norms,
    Attention,
    Compressor,
    Indexer,
    Router,
    RoutedExperts,
    SharedExperts,
    Head,
    Mtp,
    Other,
}

impl Role {
    /// Every role, in the order of a report.
    pub const ALL: [Role; 12] = [
        Role::Embed,
        Role::Mhc,
        Role::Norms,
        Role::Attention,
        Role::Compressor,
        Role::Indexer,
        Role::Router,
        Role::RoutedExperts,
        Role::SharedExperts,
        Role::Head,
        Role::Mtp,
        Role::Other,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Role::Embed => "embed",
            Role::Mhc => "mhc",
            Role::Norms => "norms",
            Role::Attention => "attention",
            Role::Compressor => "compressor",
            Role::Indexer => "indexer",
            Role::Router => "router",
            Role::RoutedExperts => "routed experts",
            Role::SharedExperts => "shared experts",
            Role::Head => "head",
            Role::Mtp => "mtp (unused)",
            Role::Other => "other",
        }
    }
}

/// An expected tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expect {
    pub role: Role,
    pub shape: Vec<usize>,
    /// The shape in words of the config.
    pub formula: &'static str,
    /// Integer ids, not weights.
    pub ids: bool,
}

/// What `name` (official) must look like, or `None` if the architecture has no such tensor.
pub(super) fn lookup(c: &Config, name: &str) -> Option<Expect> {
    let e =
        |role, shape: &[usize], formula| Some(Expect { role, shape: shape.to_vec(), formula, ids: false });
    let (v, d, s) = (c.vocab_size, c.hidden_size, c.hc_mult);
    let parts: Vec<&str> = name.split('.').collect();
    let (layer, rest) = match parts.as_slice() {
        ["embed", "weight"] => return e(Role::Embed, &[v, d], "[vocab_size, hidden_size]"),
        ["head", "weight"] => return e(Role::Head, &[v, d], "[vocab_size, hidden_size]"),
        ["norm", "weight"] => return e(Role::Norms, &[d], "[hidden_size]"),
        ["hc_head_fn"] => return e(Role::Mhc, &[s, s * d], "[hc_mult, hc_mult * hidden_size]"),
        ["hc_head_base"] => return e(Role::Mhc, &[s], "[hc_mult]"),
        ["hc_head_scale"] => return e(Role::Mhc, &[1], "[1]"),
        ["layers", n, rest @ ..] => (*c.layers.get(index(n)?)?, rest),
        _ => return None,
    };
    let (h, hd, q) = (c.num_attention_heads, c.head_dim, c.q_lora_rank);
    let (g, r) = (c.o_groups, c.o_lora_rank);
    let (hi, ci) = (c.index_n_heads, c.index_head_dim);
    let (n_experts, i) = (c.n_routed_experts, c.moe_intermediate_size);
    let csa = layer.kind == LayerKind::Csa;
    let w = |role, rows, cols, formula| e(role, &[rows, cols], formula);
    match rest {
        ["attn_norm" | "ffn_norm", "weight"] => e(Role::Norms, &[d], "[hidden_size]"),
        ["hc_attn_fn" | "hc_ffn_fn"] => {
            w(Role::Mhc, c.hc_rows(), s * d, "[(2 + hc_mult) * hc_mult, hc_mult * hidden_size]")
        }
        ["hc_attn_base" | "hc_ffn_base"] => e(Role::Mhc, &[c.hc_rows()], "[(2 + hc_mult) * hc_mult]"),
        ["hc_attn_scale" | "hc_ffn_scale"] => e(Role::Mhc, &[3], "[3]"),
        ["attn", "attn_sink"] => e(Role::Attention, &[h], "[num_attention_heads]"),
        ["attn", "q_norm", "weight"] => e(Role::Norms, &[q], "[q_lora_rank]"),
        ["attn", "kv_norm", "weight"] => e(Role::Norms, &[hd], "[head_dim]"),
        ["attn", "wq_a", "weight"] => w(Role::Attention, q, d, "[q_lora_rank, hidden_size]"),
        ["attn", "wq_b", "weight"] => {
            w(Role::Attention, h * hd, q, "[num_attention_heads * head_dim, q_lora_rank]")
        }
        ["attn", "wkv", "weight"] => w(Role::Attention, hd, d, "[head_dim, hidden_size]"),
        ["attn", "wo_a", "weight"] => w(
            Role::Attention,
            g * r,
            h * hd / g,
            "[o_groups * o_lora_rank, num_attention_heads * head_dim / o_groups]",
        ),
        ["attn", "wo_b", "weight"] => w(Role::Attention, d, g * r, "[hidden_size, o_groups * o_lora_rank]"),
        ["attn", "compressor", tail @ ..] if layer.kind != LayerKind::Window => {
            let cols = if csa { 2 * hd } else { hd };
            match tail {
                ["wkv" | "wgate", "weight"] => {
                    w(Role::Compressor, cols, d, "[head_dim (twice that for CSA), hidden_size]")
                }
                ["ape"] => w(Role::Compressor, layer.ratio, cols, "[ratio, head_dim (twice that for CSA)]"),
                ["norm", "weight"] => e(Role::Norms, &[hd], "[head_dim]"),
                _ => None,
            }
        }
        ["attn", "indexer", tail @ ..] if csa => match tail {
            ["wq_b", "weight"] => {
                w(Role::Indexer, hi * ci, q, "[index_n_heads * index_head_dim, q_lora_rank]")
            }
            ["weights_proj", "weight"] => w(Role::Indexer, hi, d, "[index_n_heads, hidden_size]"),
            ["compressor", "wkv" | "wgate", "weight"] => {
                w(Role::Indexer, 2 * ci, d, "[2 * index_head_dim, hidden_size]")
            }
            ["compressor", "ape"] => w(Role::Indexer, layer.ratio, 2 * ci, "[ratio, 2 * index_head_dim]"),
            ["compressor", "norm", "weight"] => e(Role::Norms, &[ci], "[index_head_dim]"),
            _ => None,
        },
        ["ffn", "gate", "weight"] => w(Role::Router, n_experts, d, "[n_routed_experts, hidden_size]"),
        ["ffn", "gate", "bias"] if !layer.hash => e(Role::Router, &[n_experts], "[n_routed_experts]"),
        ["ffn", "gate", "tid2eid"] if layer.hash => Some(Expect {
            role: Role::Router,
            shape: vec![v, c.num_experts_per_tok],
            formula: "[vocab_size, num_experts_per_tok]",
            ids: true,
        }),
        ["ffn", "shared_experts", p, "weight"] => expert(Role::SharedExperts, p, i, d),
        ["ffn", "experts", n, p, "weight"] if index(n)? < n_experts => expert(Role::RoutedExperts, p, i, d),
        _ => None,
    }
}

fn expert(role: Role, projection: &str, i: usize, d: usize) -> Option<Expect> {
    let (shape, formula) = match projection {
        "w1" | "w3" => (vec![i, d], "[moe_intermediate_size, hidden_size]"),
        "w2" => (vec![d, i], "[hidden_size, moe_intermediate_size]"),
        _ => return None,
    };
    Some(Expect { role, shape, formula, ids: false })
}

/// A decimal index in its only spelling: "07" and "+7" are other names.
pub(super) fn index(s: &str) -> Option<usize> {
    let n: usize = s.parse().ok()?;
    (n.to_string() == s).then_some(n)
}

/// Calls `f` with every expected name. Names are not collected: a config alone must not decide how much memory we take.
pub(super) fn for_each(c: &Config, mut f: impl FnMut(&str)) {
    for n in ["embed.weight", "hc_head_fn", "hc_head_base", "hc_head_scale", "norm.weight", "head.weight"] {
        f(n);
    }
    const EVERY: &[&str] = &[
        "hc_attn_fn",
        "hc_attn_base",
        "hc_attn_scale",
        "attn_norm.weight",
        "attn.wq_a.weight",
        "attn.q_norm.weight",
        "attn.wq_b.weight",
        "attn.wkv.weight",
        "attn.kv_norm.weight",
        "attn.attn_sink",
        "attn.wo_a.weight",
        "attn.wo_b.weight",
        "attn.compressor.wkv.weight",
        "attn.compressor.wgate.weight",
        "attn.compressor.ape",
        "attn.compressor.norm.weight",
        "attn.indexer.wq_b.weight",
        "attn.indexer.weights_proj.weight",
        "attn.indexer.compressor.wkv.weight",
        "attn.indexer.compressor.wgate.weight",
        "attn.indexer.compressor.ape",
        "attn.indexer.compressor.norm.weight",
        "hc_ffn_fn",
        "hc_ffn_base",
        "hc_ffn_scale",
        "ffn_norm.weight",
        "ffn.gate.weight",
        "ffn.gate.bias",
        "ffn.gate.tid2eid",
        "ffn.shared_experts.w1.weight",
        "ffn.shared_experts.w2.weight",
        "ffn.shared_experts.w3.weight",
    ];
    for l in 0..c.layers.len() {
        for leaf in EVERY {
            let name = format!("layers.{l}.{leaf}");
            if lookup(c, &name).is_some() {
                f(&name);
            }
        }
        for x in 0..c.n_routed_experts {
            for p in ["w1", "w2", "w3"] {
                f(&format!("layers.{l}.ffn.experts.{x}.{p}.weight"));
            }
        }
    }
}
