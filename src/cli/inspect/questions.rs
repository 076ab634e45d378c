//! What people ask about a checkpoint, answered from its config and headers.

use super::{count, runs};
use crate::checkpoint::{Checkpoint, Inventory, Role, RoleSummary, Stored};

/// A question with its answer and what the answer rests on.
pub(super) struct Question {
    pub(super) id: &'static str,
    pub(super) question: &'static str,
    pub(super) answer: &'static str,
    pub(super) evidence: String,
}

/// What the hash layers' tables hold.
#[derive(Default)]
pub(super) struct HashTables {
    pub(super) layers: Vec<usize>,
    /// Layers whose table could not be read or names an unknown expert, and why.
    pub(super) bad: Vec<(usize, String)>,
    /// Tokens sent twice to the same expert.
    pub(super) repeated: usize,
}

impl HashTables {
    pub(super) fn read(c: &Checkpoint) -> Self {
        let mut out = HashTables::default();
        for (l, spec) in c.config().layers.iter().enumerate().filter(|(_, s)| s.hash) {
            out.layers.push(l);
            let name = format!("layers.{l}.ffn.gate.tid2eid");
            // A missing table is reported as a missing tensor.
            if !spec.hash || !c.has(&name) {
                continue;
            }
            match c.load_i64(&name) {
                Ok((_, ids)) => {
                    let rows = ids.chunks(c.config().num_experts_per_tok);
                    out.repeated += rows.filter(|r| (1..r.len()).any(|i| r[..i].contains(&r[i]))).count();
                }
                Err(e) => out.bad.push((l, e.message().to_owned())),
            }
        }
        out
    }
}

pub(super) fn questions(c: &Checkpoint, inv: &Inventory, hash: &HashTables) -> Vec<Question> {
    let cfg = c.config();
    let mut out = Vec::new();
    let mut ask = |id, question, yes: bool, evidence: String| {
        out.push(Question { id, question, answer: if yes { "yes" } else { "no" }, evidence });
    };

    let mut mixing: Vec<(Option<Stored>, usize)> = Vec::new();
    let names = (0..cfg.layers.len()).flat_map(|l| ["attn", "ffn"].map(|s| format!("layers.{l}.hc_{s}_fn")));
    for name in names.chain(["hc_head_fn".to_owned()]) {
        let s = c.stored(&name);
        match mixing.iter_mut().find(|(f, _)| *f == s) {
            Some((_, n)) => *n += 1,
            None => mixing.push((s, 1)),
        }
    }
    let said: Vec<String> = mixing
        .iter()
        .map(|(f, n)| format!("{n} hc_*_fn as {}", f.map_or("missing or unusable".into(), |f| f.to_string())))
        .collect();
    ask(
        "mhc_f32",
        "Are the mHC mixing weights stored in f32?",
        mixing.iter().all(|(f, _)| matches!(f, Some(Stored::F32 | Stored::F64))),
        said.join(", "),
    );

    ask(
        "routed_sum",
        "Will the routed weights of any token sum to the scaling factor?",
        true,
        format!(
            "norm_topk_prob holds (the architecture has no other form) and routed_scaling_factor is {s}: \
         the {} weights of any token sum to {s}",
            cfg.num_experts_per_tok,
            s = cfg.routed_scaling_factor
        ),
    );

    match cfg.horizon() {
        Some(h) => ask(
            "horizon",
            "Can the indexer's ranking change a result?",
            cfg.max_position_embeddings > h,
            format!(
                "identity horizon {h} tokens = index_topk {} x ratio {}; up to there every entry is selected and a broken \
             indexer is invisible; the model claims {} positions",
                cfg.index_topk,
                cfg.csa_ratio().unwrap_or(0),
                cfg.max_position_embeddings
            ),
        ),
        None => ask(
            "horizon",
            "Can the indexer's ranking change a result?",
            false,
            "no CSA layer, hence no indexer and no identity horizon".into(),
        ),
    }

    ask(
        "clamp",
        "Are expert activations clamped?",
        cfg.swiglu_limit.is_some(),
        match cfg.swiglu_limit {
            Some(l) => format!(
                "swiglu_limit {l}: gate at most {l}, up within -{l} and {l}, routed and shared experts alike"
            ),
            None => "swiglu_limit is null".into(),
        },
    );

    let wrong_tables = hash.bad.first().map(|(l, why)| format!("layer {l}: {why}"));
    let absent = hash.layers.iter().filter(|l| !c.has(&format!("layers.{l}.ffn.gate.tid2eid"))).count();
    ask(
        "hash_layers",
        "Are there hash-routed layers, and are their expert ids in range?",
        !hash.layers.is_empty() && hash.bad.is_empty() && absent == 0,
        if hash.layers.is_empty() {
            "no hash-routed layer".into()
        } else if let Some(w) = wrong_tables {
            format!("layers {}; {w}", runs(&hash.layers))
        } else if absent > 0 {
            format!("layers {}; {absent} without its table", runs(&hash.layers))
        } else {
            format!(
                "layers {}: all ids below {}; {} sent twice to one expert",
                runs(&hash.layers),
                cfg.n_routed_experts,
                count(hash.repeated, "token")
            )
        },
    );

    let quantised: Vec<String> = inv
        .roles
        .iter()
        .filter_map(|r| {
            let forms: Vec<String> = quantised_forms(r).map(|f| f.to_string()).collect();
            (!forms.is_empty()).then(|| format!("{} {}", r.role.name(), forms.join(" and ")))
        })
        .collect();
    ask(
        "quantised",
        "Are any weights quantised?",
        !quantised.is_empty(),
        if quantised.is_empty() {
            "every role is stored in a plain float type".into()
        } else {
            quantised.join("; ")
        },
    );

    let nv = inv.role(Role::RoutedExperts).is_some_and(|r| r.formats.contains_key(&Some(Stored::NvFp4)));
    if nv {
        let first = cfg
            .layers
            .iter()
            .enumerate()
            .flat_map(|(l, _)| (0..cfg.n_routed_experts).map(move |e| (l, e)))
            .map(|(l, e)| format!("layers.{l}.ffn.experts.{e}.w1.weight"))
            .find(|n| c.stored(n) == Some(Stored::NvFp4));
        let scale = first.and_then(|n| c.input_scale(&n).ok().flatten());
        ask(
            "input_scale",
            "Do the NVFP4 experts carry activation scales?",
            scale.is_some(),
            match scale {
                Some(s) => format!(
                    "the first NVFP4 expert has input_scale {s:e}; W4A4 kernels use it, W4A16 kernels do not"
                ),
                None => "the first NVFP4 expert has no input_scale; only W4A16 kernels can run it".into(),
            },
        );
    }

    ask(
        "complete",
        "Is every tensor the config calls for there and usable?",
        inv.ok(),
        format!("{} missing, {} of wrong shape or type", inv.missing.0, inv.wrong.0),
    );
    let mtp = inv.role(Role::Mtp).map_or(0, |r| r.total.tensors);
    ask(
        "extra",
        "Are there tensors nobody reads?",
        inv.extra.0 + mtp > 0,
        format!("{} unknown, {mtp} of the drafter (mtp.*); neither changes the result", inv.extra.0),
    );
    ask(
        "keys",
        "Is every key of the config understood?",
        cfg.unknown_keys.is_empty(),
        if cfg.unknown_keys.is_empty() {
            "none is left over".into()
        } else {
            let some: Vec<&str> = cfg.unknown_keys.iter().take(12).map(String::as_str).collect();
            let more = cfg.unknown_keys.len() - some.len();
            format!(
                "not understood and ignored: {}{}",
                some.join(", "),
                if more > 0 { format!(" and {more} more") } else { String::new() }
            )
        },
    );
    out
}

fn quantised_forms(r: &RoleSummary) -> impl Iterator<Item = Stored> + '_ {
    r.formats.keys().flatten().copied().filter(|f| f.is_quantised())
}
