//! The JSON form, schema `dsv4.inspect/1`.

use serde_json::{Value, json};

use super::Facts;
use crate::checkpoint::{Config, Rope, Share};

impl Facts<'_> {
    pub(super) fn json(&self) -> Value {
        let inv = &self.inventory;
        let c = self.config;
        let share = |s: &Share| json!({"tensors": s.tensors, "params": s.params, "bytes": s.bytes});
        let roles: Vec<Value> = inv
            .roles
            .iter()
            .map(|r| {
                let formats: Vec<Value> = r
                    .formats
                    .iter()
                    .map(|(f, s)| {
                        let mut v = share(s);
                        v["stored"] = f.map(|f| f.to_string()).into();
                        v
                    })
                    .collect();
                let mut v = share(&r.total);
                v["role"] = r.role.name().into();
                v["formats"] = formats.into();
                v
            })
            .collect();
        json!({
            "schema": "dsv4.inspect/1",
            "verdict": {"status": if self.ok() { "ok" } else { "incomplete" }, "summary": self.verdict()},
            "source": self.checkpoint.source(),
            "fingerprint": self.checkpoint.fingerprint(),
            "config": config_json(c),
            "schedule": c.layers.iter().enumerate().map(|(l, s)| json!({
                "layer": l, "kind": s.kind.name(), "ratio": s.ratio, "hash": s.hash,
            })).collect::<Vec<_>>(),
            "horizon_tokens": c.horizon(),
            "params": {"total": inv.params_total, "active_per_token": inv.params_active},
            "bytes": inv.bytes_total,
            "roles": roles,
            "questions": self.questions.iter().map(|q| json!({
                "id": q.id, "question": q.question, "answer": q.answer, "evidence": q.evidence,
            })).collect::<Vec<_>>(),
            "missing": {"count": inv.missing.0, "names": inv.missing.1},
            "wrong": {"count": inv.wrong.0, "tensors": inv.wrong.1.iter().map(|w| json!({
                "name": w.name, "message": w.message,
            })).collect::<Vec<_>>()},
            "extra": {"count": inv.extra.0, "names": inv.extra.1},
        })
    }
}

fn config_json(c: &Config) -> Value {
    let rope = |r: &Rope| {
        json!({
            "theta": r.theta,
            "yarn": r.yarn.map(|y| json!({
                "factor": y.factor,
                "original_max_position_embeddings": y.original_max_position_embeddings,
                "beta_fast": y.beta_fast,
                "beta_slow": y.beta_slow,
            })),
        })
    };
    json!({
        "model_type": c.model_type,
        "dialect": c.dialect,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "head_dim": c.head_dim,
        "qk_rope_head_dim": c.qk_rope_head_dim,
        "q_lora_rank": c.q_lora_rank,
        "o_groups": c.o_groups,
        "o_lora_rank": c.o_lora_rank,
        "sliding_window": c.sliding_window,
        "rope_main": rope(&c.rope_main),
        "rope_compress": rope(&c.rope_compress),
        "index_n_heads": c.index_n_heads,
        "index_head_dim": c.index_head_dim,
        "index_topk": c.index_topk,
        "hc_mult": c.hc_mult,
        "hc_sinkhorn_iters": c.hc_sinkhorn_iters,
        "hc_eps": exactly(c.hc_eps),
        "rms_norm_eps": exactly(c.rms_norm_eps),
        "moe_intermediate_size": c.moe_intermediate_size,
        "n_routed_experts": c.n_routed_experts,
        "n_shared_experts": c.n_shared_experts,
        "num_experts_per_tok": c.num_experts_per_tok,
        "routed_scaling_factor": exactly(c.routed_scaling_factor),
        "swiglu_limit": c.swiglu_limit.map(exactly),
        "max_position_embeddings": c.max_position_embeddings,
        "bos_token_id": c.bos_token_id,
        "eos_token_ids": c.eos_token_ids,
        "num_nextn_predict_layers": c.num_nextn_predict_layers,
        "unknown_keys": c.unknown_keys,
    })
}

/// An f32 as the shortest decimal that reads back as it: 1e-6, not 9.999999974752427e-7.
fn exactly(x: f32) -> Value {
    format!("{x:e}").parse::<f64>().map_or(Value::Null, Value::from)
}
