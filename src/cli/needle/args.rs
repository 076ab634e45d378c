//! The flags of `dsv4 needle`.

use super::files::Shard;
use crate::checkpoint::BUILTINS;
use crate::kernels::{Golden, Spec};
use crate::needle::Kind;
use std::path::PathBuf;

/// Recall of planted facts by context length, depth and index_topk, and why a fact is lost
#[derive(Debug, Clone, clap::Args)]
pub struct NeedleArgs {
    /// A directory with config.json, tokenizer.json and *.safetensors, or builtin:pico
    #[arg(long, value_name = "MODEL", default_value = BUILTINS[0])]
    pub model: String,
    /// Context lengths: 4k; 2k,8k; 2k..32k (doubling); 2k..32k:+2k (steps); k is 1024
    /// [default: the identity horizon and 2k..32k]
    #[arg(long, value_name = "LENGTHS", help_heading = "Prompts")]
    pub ctx: Option<String>,
    /// Run each length N also as N+1, … so that every remainder modulo M is there (4: the entries of the index)
    #[arg(long, value_name = "M", num_args = 0..=1, default_missing_value = "4", value_parser = clap::value_parser!(u16).range(2..=128), help_heading = "Prompts")]
    pub phase_sweep: Option<u16>,
    /// Where in the context the fact stands, as shares of it
    #[arg(long, value_name = "LIST", default_value = "0.1,0.3,0.5,0.7,0.9", help_heading = "Prompts")]
    pub depth: String,
    /// Trials a cell (length × depth)
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Prompts")]
    pub trials: u32,
    /// Questions a cell asks of one haystack; haystacks = trials / questions [default: 3, own text: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Prompts")]
    pub questions: Option<u32>,
    /// passkey: one question; multi: several in one prompt; turns: earlier turns ask and answer
    #[arg(long, value_name = "KIND", default_value = "passkey", value_parser = parse_kind, help_heading = "Prompts")]
    pub kind: Kind,
    /// Seed of the haystacks
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Prompts")]
    pub seed: u64,
    /// A text file to hide your own needle in
    #[arg(long, value_name = "FILE", requires_all = ["needle", "question", "answer"], conflicts_with = "kind", help_heading = "Own text")]
    pub haystack: Option<PathBuf>,
    /// The sentence that is hidden
    #[arg(long, value_name = "TEXT", requires = "haystack", help_heading = "Own text")]
    pub needle: Option<String>,
    /// The question behind the haystack
    #[arg(long, value_name = "TEXT", requires = "haystack", help_heading = "Own text")]
    pub question: Option<String>,
    /// The right answer
    #[arg(long, value_name = "TEXT", requires = "haystack", help_heading = "Own text")]
    pub answer: Option<String>,
    /// Selection widths, as numbers, `native` or `all` [default: a quarter of index_topk, native, twice]
    #[arg(long, value_name = "LIST", help_heading = "Paths")]
    pub topk: Option<String>,
    /// A candidate beside golden; `dsv4 kernels list` shows presets, faults and knobs
    #[arg(
        long,
        value_name = "SPEC",
        env = "DSV4_KERNELS",
        allow_hyphen_values = true,
        help_heading = "Paths"
    )]
    pub kernels: Option<Spec>,
    /// A second candidate
    #[arg(
        long,
        value_name = "SPEC",
        allow_hyphen_values = true,
        requires = "kernels",
        help_heading = "Paths"
    )]
    pub vs: Option<Spec>,
    /// Exact path: ideal (all f32) or qat (the official script's fake quantisation)
    #[arg(long, value_name = "ideal|qat", default_value = "ideal", value_parser = Golden::parse, help_heading = "Paths")]
    pub golden: Golden,
    /// Recall that counts as reliable
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = parse_share, help_heading = "Paths")]
    pub reliable: f64,
    /// Run golden once more at the smallest width whose estimated ceiling is reliable
    #[arg(long, conflicts_with = "shard", help_heading = "Paths")]
    pub confirm: bool,
    /// Bytes for streams and caches, like 8G: haystacks are cut into as few passes as fit
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Run")]
    pub memory: Option<u64>,
    /// Show what would be run, and stop
    #[arg(long, help_heading = "Run")]
    pub plan: bool,
    /// Run directory [default: dsv4-runs/needle-HASH, a hash of the run]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub out: Option<PathBuf>,
    /// Complete an interrupted run, to the same bytes
    #[arg(long, help_heading = "Run")]
    pub resume: bool,
    /// Only part I of N (haystacks are shared out); `dsv4 merge` puts the parts together
    #[arg(long, value_name = "I/N", value_parser = Shard::parse, help_heading = "Run")]
    pub shard: Option<Shard>,
    /// Print one JSON object (schema dsv4.needle/1) instead of tables
    #[arg(long, help_heading = "Run")]
    pub json: bool,
}

fn parse_kind(s: &str) -> std::result::Result<Kind, String> {
    let all = [Kind::Passkey, Kind::Multi, Kind::Turns];
    all.into_iter().find(|k| k.name() == s).ok_or_else(|| "it is passkey, multi or turns".into())
}

fn parse_share(s: &str) -> std::result::Result<f64, String> {
    s.parse()
        .ok()
        .filter(|v| *v > 0.0 && *v < 1.0)
        .ok_or_else(|| "it is a share between 0 and 1, like 0.9".into())
}

fn parse_bytes(s: &str) -> std::result::Result<u64, String> {
    let t = s.trim().trim_end_matches(['B', 'b']).trim_end_matches('i');
    let shift = match t.as_bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        Some(b't' | b'T') => 40,
        _ => 0,
    };
    let digits = if shift > 0 { &t[..t.len() - 1] } else { t };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).filter(|n| *n > 0);
    number.ok_or_else(|| "it is a number of bytes, like 900M or 8G".into())
}
