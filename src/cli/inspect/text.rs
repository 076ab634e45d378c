//! The form for people: 80 columns, no colour.

use std::fmt::Write as _;

use super::{Facts, runs};
use crate::checkpoint::{Config, LayerKind, Rope};

impl Facts<'_> {
    pub(super) fn text(&self) -> String {
        let c = self.config;
        let inv = &self.inventory;
        let mut t = String::new();
        wrapped(&mut t, 0, &self.verdict());
        t.push('\n');
        line(&mut t, "model", self.checkpoint.source());
        line(&mut t, "architecture", &format!("{} ({} config)", c.model_type, c.dialect));
        line(&mut t, "fingerprint", &self.checkpoint.fingerprint());
        line(
            &mut t,
            "size",
            &format!(
                "{} parameters, {} active per token, {}",
                si(inv.params_total, ""),
                si(inv.params_active, ""),
                si(inv.bytes_total, "B")
            ),
        );
        line(
            &mut t,
            "dimensions",
            &format!(
                "hidden {}, {} heads x {} ({} rotary), q latent {}, output {} groups x {}, window {}, vocabulary {}",
                c.hidden_size,
                c.num_attention_heads,
                c.head_dim,
                c.qk_rope_head_dim,
                c.q_lora_rank,
                c.o_groups,
                c.o_lora_rank,
                c.sliding_window,
                c.vocab_size
            ),
        );
        line(
            &mut t,
            "mhc",
            &format!(
                "{} streams, {} Sinkhorn iterations, eps {:e}",
                c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps
            ),
        );
        line(
            &mut t,
            "experts",
            &format!(
                "{} routed (top {}) + {} shared, width {}",
                c.n_routed_experts, c.num_experts_per_tok, c.n_shared_experts, c.moe_intermediate_size
            ),
        );
        line(&mut t, "schedule", &schedule(c));
        line(&mut t, "rope", &ropes(c));
        t.push('\n');
        self.role_table(&mut t);
        t.push('\n');
        for q in &self.questions {
            wrapped(&mut t, 0, q.question);
            wrapped(&mut t, 2, &format!("{}: {}", q.answer, q.evidence));
        }
        list(&mut t, "missing", inv.missing.0, inv.missing.1.iter().map(|n| (n.as_str(), "")));
        list(
            &mut t,
            "unusable",
            inv.wrong.0,
            inv.wrong.1.iter().map(|w| (w.name.as_str(), w.message.as_str())),
        );
        list(&mut t, "extra", inv.extra.0, inv.extra.1.iter().map(|n| (n.as_str(), "")));
        t
    }

    fn role_table(&self, t: &mut String) {
        let _ = writeln!(t, "{:<15} {:>8} {:>9} {:>9}  stored as", "role", "tensors", "params", "size");
        for r in &self.inventory.roles {
            let head = format!(
                "{:<15} {:>8} {:>9} {:>9}  ",
                r.role.name(),
                r.total.tensors,
                si(r.total.params, ""),
                si(r.total.bytes, "B")
            );
            let mut first = true;
            for (f, s) in &r.formats {
                let lead = if first { head.clone() } else { " ".repeat(head.len()) };
                first = false;
                let what = f.map_or("-".into(), |f| f.to_string());
                let share = if r.formats.len() > 1 { format!(" ({})", s.tensors) } else { String::new() };
                let _ = writeln!(t, "{}", format!("{lead}{what}{share}").trim_end());
            }
        }
    }
}

/// "window 0-1; csa ratio 4: 2,4..42 (21); hca ratio 128: 3,5..41 (20); hash-routed 0-2".
fn schedule(c: &Config) -> String {
    let mut groups: Vec<((LayerKind, usize), Vec<usize>)> = Vec::new();
    for (l, s) in c.layers.iter().enumerate() {
        match groups.iter_mut().find(|(key, _)| *key == (s.kind, s.ratio)) {
            Some((_, list)) => list.push(l),
            None => groups.push(((s.kind, s.ratio), vec![l])),
        }
    }
    let mut parts: Vec<String> = groups
        .iter()
        .map(|((kind, ratio), list)| {
            let ratio = if *kind == LayerKind::Window { String::new() } else { format!(" ratio {ratio}") };
            format!("{}{ratio}: {} ({})", kind.name(), runs(list), list.len())
        })
        .collect();
    let hash: Vec<usize> = c.layers.iter().enumerate().filter(|(_, s)| s.hash).map(|(l, _)| l).collect();
    parts.push(if hash.is_empty() {
        "hash-routed: none".into()
    } else {
        format!("hash-routed: {}", runs(&hash))
    });
    format!("{} layers; {}", c.layers.len(), parts.join("; "))
}

fn ropes(c: &Config) -> String {
    let one = |r: &Rope| match r.yarn {
        None => format!("theta {}", r.theta),
        Some(y) => format!(
            "theta {} with YaRN x{} over {} (beta {}/{})",
            r.theta, y.factor, y.original_max_position_embeddings, y.beta_fast, y.beta_slow
        ),
    };
    let compress = if c.has_compressed() {
        format!("; compressed layers {}", one(&c.rope_compress))
    } else {
        String::new()
    };
    format!("window layers {}{compress}", one(&c.rope_main))
}

fn list<'a>(t: &mut String, what: &str, total: usize, items: impl Iterator<Item = (&'a str, &'a str)>) {
    const SHOWN: usize = 20;
    if total == 0 {
        return;
    }
    let _ = writeln!(t, "\n{what} ({total}):");
    for (name, why) in items.take(SHOWN) {
        let _ = writeln!(t, "  {name}");
        if !why.is_empty() {
            wrapped(t, 4, why);
        }
    }
    if total > SHOWN {
        let _ = writeln!(t, "  and {} more (--json lists up to 200)", total - SHOWN);
    }
}

/// Decimal units, three digits: "10.9 MB".
fn si(n: u64, unit: &str) -> String {
    let mut x = n as f64;
    let mut prefix = "";
    for p in ["k", "M", "G", "T"] {
        if x < 999.5 {
            break;
        }
        x /= 1000.0;
        prefix = p;
    }
    let digits = if prefix.is_empty() || x >= 99.95 {
        0
    } else if x >= 9.995 {
        1
    } else {
        2
    };
    format!("{x:.digits$} {prefix}{unit}").trim_end().to_owned()
}

/// A label and its text, wrapped to 80 columns beside it.
fn line(t: &mut String, label: &str, text: &str) {
    let start = t.len();
    wrapped(t, 14, text);
    t.replace_range(start..start + label.len(), label);
}

/// Words up to column 80, every line indented.
fn wrapped(t: &mut String, indent: usize, text: &str) {
    let mut column = 0;
    for word in text.split(' ') {
        let n = word.chars().count();
        if column > 0 && column + 1 + n > 80 {
            t.push('\n');
            column = 0;
        }
        if column == 0 {
            t.push_str(&" ".repeat(indent));
            column = indent;
        } else {
            t.push(' ');
            column += 1;
        }
        t.push_str(word);
        column += n;
    }
    t.push('\n');
}
