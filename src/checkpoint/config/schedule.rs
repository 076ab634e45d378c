//! Which layer does what: attention kind, ratio, hash routing. Read from the file, never derived.

use serde_json::Value;

use super::keys::{Keys, as_size, brief, contradiction, missing, missing_because, refused, same};
use super::{LayerKind, LayerSpec};
use crate::error::Result;

/// The layer schedule, from either dialect or from both when they agree.
pub(super) fn schedule(keys: &Keys, n: usize) -> Result<Vec<LayerSpec>> {
    let ratios = keys.list("compress_ratios", n)?;
    let types = keys.list("layer_types", n)?;
    let official = ratios
        .map(|list| -> Result<Vec<(LayerKind, usize)>> {
            list.iter()
                .map(|v| {
                    let r = as_size(v)
                        .filter(|r| *r <= MAX_RATIO)
                        .ok_or_else(|| refused("compress_ratios", v, "an integer from 0 to 1048576"))?;
                    Ok((
                        match r {
                            0 => LayerKind::Window,
                            4 => LayerKind::Csa,
                            _ => LayerKind::Hca,
                        },
                        r,
                    ))
                })
                .collect()
        })
        .transpose()?;
    let written = types
        .map(|list| -> Result<Vec<LayerKind>> {
            list.iter()
                .map(|v| match v.as_str() {
                    Some("sliding_attention") => Ok(LayerKind::Window),
                    Some("compressed_sparse_attention") => Ok(LayerKind::Csa),
                    Some("heavily_compressed_attention") => Ok(LayerKind::Hca),
                    _ => Err(refused(
                        "layer_types",
                        v,
                        "sliding_attention, compressed_sparse_attention or heavily_compressed_attention",
                    )),
                })
                .collect()
        })
        .transpose()?;
    let hash = hash_layers(keys, n)?;

    let pairs = match (official, written) {
        (None, None) => {
            return Err(missing_because(
                "compress_ratios",
                "the layer schedule cannot be derived: give `compress_ratios` (release) or `layer_types` (transformers)",
            ));
        }
        (Some(o), None) => o,
        (None, Some(w)) => w
            .into_iter()
            .map(|k| Ok((k, rate(keys, k)?.ok_or_else(|| missing("compress_rates"))?)))
            .collect::<Result<_>>()?,
        (Some(o), Some(w)) => {
            for (l, ((ok, or), wk)) in o.iter().zip(&w).enumerate() {
                let stated = rate(keys, *wk)?;
                if ok != wk || stated.is_some_and(|r| r != *or) {
                    let says = match stated {
                        Some(r) => format!("{} (ratio {r})", wk.name()),
                        None => wk.name().into(),
                    };
                    return Err(contradiction(
                        &format!("compress_ratios[{l}]"),
                        or,
                        &format!("layer_types[{l}]"),
                        &says,
                    ));
                }
            }
            o
        }
    };
    Ok(pairs.into_iter().zip(hash).map(|((kind, ratio), hash)| LayerSpec { kind, ratio, hash }).collect())
}

const MAX_RATIO: usize = 1 << 20;

/// The ratio the transformers dialect gives a kind of layer.
fn rate(keys: &Keys, kind: LayerKind) -> Result<Option<usize>> {
    let (name, legacy) = match kind {
        LayerKind::Window => return Ok(Some(0)),
        LayerKind::Csa => ("compressed_sparse_attention", "compress_rate_csa"),
        LayerKind::Hca => ("heavily_compressed_attention", "compress_rate_hca"),
    };
    let rates = match keys.map.get("compress_rates").filter(|v| !v.is_null()) {
        None => None,
        Some(Value::Object(m)) => m.get(name).filter(|v| !v.is_null()),
        Some(v) => return Err(refused("compress_rates", v, "an object {layer type: ratio}")),
    };
    let legacy_value = keys.map.get(legacy).filter(|v| !v.is_null());
    if let (Some(a), Some(b)) = (rates, legacy_value)
        && !same(a, b)
    {
        return Err(contradiction("compress_rates", &brief(a), legacy, &brief(b)));
    }
    rates
        .or(legacy_value)
        .map(|v| {
            as_size(v)
                .filter(|r| (1..=MAX_RATIO).contains(r))
                .ok_or_else(|| refused("compress_rates", v, "an integer from 1 to 1048576"))
        })
        .transpose()
}

fn hash_layers(keys: &Keys, n: usize) -> Result<Vec<bool>> {
    let count = keys.opt_size(&["num_hash_layers", "n_hash_layers"], 0, 1 << 20)?;
    let types = keys
        .list("mlp_layer_types", n)?
        .map(|list| {
            list.iter()
                .map(|v| match v.as_str() {
                    Some("hash_moe") => Ok(true),
                    Some("moe") => Ok(false),
                    _ => Err(refused("mlp_layer_types", v, "hash_moe or moe")),
                })
                .collect::<Result<Vec<bool>>>()
        })
        .transpose()?;
    match (count, types) {
        (None, None) => Err(missing_because(
            "num_hash_layers",
            "which layers route by token id cannot be guessed: give `num_hash_layers` or `mlp_layer_types`",
        )),
        (Some(c), None) => Ok((0..n).map(|l| l < c).collect()),
        (None, Some(t)) => Ok(t),
        (Some(c), Some(t)) => match t.iter().enumerate().find(|(l, h)| **h != (*l < c)) {
            Some((l, h)) => Err(contradiction(
                "num_hash_layers",
                &c,
                &format!("mlp_layer_types[{l}]"),
                &if *h { "hash_moe" } else { "moe" },
            )),
            None => Ok(t),
        },
    }
}
