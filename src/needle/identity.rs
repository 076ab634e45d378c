//! What makes two runs the same run: everything that decides over a row of its files.

use super::grid::Grid;
use super::record::Width;
use serde::{Deserialize, Serialize};

/// Identity of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The checkpoint as it was named.
    pub model: String,
    /// Fingerprint of its content.
    pub fingerprint: String,
    /// Hash of every prompt of every haystack.
    pub prompts: String,
    /// How prompts are spelled.
    pub style: String,
    /// Golden.
    pub golden: String,
    /// Candidates in canonical spelling, besides golden.
    pub kernels: Vec<String>,
    /// Selection widths.
    pub topk: Vec<String>,
    /// The prompts.
    pub grid: Grid,
    /// Recall that counts as reliable.
    pub reliable: f64,
    /// Whether the smallest sufficient width is confirmed by a second pass.
    pub confirm: bool,
    /// `index_topk` of the checkpoint.
    pub index_topk: usize,
    /// Tokens an index entry summarises; 0 without an index.
    pub ratio: usize,
    /// Layers with an index.
    pub csa_layers: Vec<usize>,
}

impl Identity {
    /// The identity horizon in tokens: up to it everything visible is selected.
    pub fn horizon(&self, width: Width) -> Option<usize> {
        (self.ratio > 0).then(|| width.entries(self.index_topk).saturating_mul(self.ratio))
    }
    /// Paths in the order of every file: name and width.
    pub fn paths(&self) -> Vec<(String, Width)> {
        let names = std::iter::once("golden".to_string()).chain(self.kernels.iter().cloned());
        let widths: Vec<Width> = self.topk.iter().filter_map(|w| Width::parse(w)).collect();
        names.flat_map(|n| widths.iter().map(move |w| (n.clone(), *w)).collect::<Vec<_>>()).collect()
    }
    /// Names the first field in which `other` differs, with both values. `model` is a name, not an identity.
    pub fn difference(&self, other: &Identity) -> Option<(String, String, String)> {
        let object = |i: &Identity| serde_json::to_value(i).unwrap_or_default();
        let (a, b) = (object(self), object(other));
        let fields = a.as_object()?.keys().filter(|k| *k != "model" && *k != "prompts");
        // What the prompts were made from says more than their hash.
        for key in fields.map(String::as_str).chain(["prompts"]) {
            if a[key] != b[key] {
                if key == "grid" {
                    let inner = a[key].as_object()?.keys().find(|k| a[key][*k] != b[key][*k]);
                    if let Some(k) = inner {
                        return Some((k.clone(), a[key][k].to_string(), b[key][k].to_string()));
                    }
                }
                return Some((key.into(), a[key].to_string(), b[key].to_string()));
            }
        }
        None
    }
}
