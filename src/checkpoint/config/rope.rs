//! The two rotary tables, from flat (release), nested (transformers) or scalar (inference) keys.

use serde_json::{Map, Value};

use super::keys::{Keys, contradiction, missing, missing_because, refused};
use super::{Rope, Yarn};
use crate::error::{Error, Result};

/// Rotary dims: `qk_rope_head_dim`, or head_dim times `partial_rotary_factor` with Python's truncation.
pub(super) fn rope_dims(keys: &Keys, head_dim: usize) -> Result<usize> {
    let stated = keys.opt_size(&["qk_rope_head_dim", "rope_head_dim"], 1, 1 << 14)?;
    let mut factor = keys.opt_float(&["partial_rotary_factor"], f64::MIN_POSITIVE, 1.0)?;
    if factor.is_none() && stated.is_none() {
        let nested = keys.map.get("rope_parameters").and_then(|r| r.get("main"));
        factor = nested.and_then(|m| m.get("partial_rotary_factor")).and_then(Value::as_f64);
    }
    let derived = factor.map(|f| (head_dim as f64 * f) as usize);
    match (stated, derived) {
        (Some(a), Some(b)) if a != b => Err(contradiction(
            "qk_rope_head_dim",
            &a,
            "partial_rotary_factor",
            &format!("{} of head_dim {head_dim} = {b}", factor.unwrap_or_default()),
        )),
        (Some(a), _) => Ok(a),
        (None, Some(0)) => Err(Error::input("`partial_rotary_factor` leaves no rotary dims")
            .hint("it is the rotary share of head_dim, 0.125 in released models")),
        (None, Some(b)) => Ok(b),
        (None, None) => Err(missing("qk_rope_head_dim")),
    }
}

/// Both rotary tables.
pub(super) fn ropes(keys: &Keys, compressed: bool, head_dim: usize, dims: usize) -> Result<(Rope, Rope)> {
    let theta_main = keys.opt_float(&["rope_theta"], f64::MIN_POSITIVE, 1e18)?;
    let theta_compress = keys.opt_float(&["compress_rope_theta"], f64::MIN_POSITIVE, 1e18)?;
    let params = keys.object("rope_parameters")?;
    let nested = params.filter(|p| p.contains_key("main") || p.contains_key("compress"));
    let flat = params.filter(|_| nested.is_none());
    let scaling = keys.object("rope_scaling")?;

    // Flat forms describe compressed layers only: window layers never scale.
    let mut yarn_flat: Option<(&str, Option<Yarn>)> = None;
    for (name, table) in [("rope_scaling", scaling), ("rope_parameters", flat)] {
        let Some(table) = table else { continue };
        let yarn = yarn(table, name, false)?;
        if let Some((first, other)) = &yarn_flat
            && *other != yarn
        {
            return Err(contradiction(first, &"one YaRN", name, &"another"));
        }
        yarn_flat = Some((name, yarn));
    }
    if let Some(orig) = keys.opt_size(&["original_seq_len"], 0, 1 << 40)? {
        let yarn = if orig == 0 {
            None
        } else {
            let yarn = Yarn {
                factor: keys.float(&["rope_factor"], 1.0, 1e9)?,
                original_max_position_embeddings: orig,
                beta_fast: keys.float(&["beta_fast"], f64::MIN_POSITIVE, 1e9)?,
                beta_slow: keys.float(&["beta_slow"], f64::MIN_POSITIVE, 1e9)?,
            };
            check_betas(&yarn, "beta_fast")?;
            Some(yarn)
        };
        if let Some((first, other)) = &yarn_flat
            && *other != yarn
        {
            return Err(contradiction(first, &"one YaRN", "original_seq_len", &"another"));
        }
        yarn_flat = Some(("original_seq_len", yarn));
    }
    let Some(nested) = nested else {
        let main = Rope { theta: theta_main.ok_or_else(|| missing("rope_theta"))?, yarn: None };
        if !compressed {
            return Ok((main, Rope { theta: theta_compress.unwrap_or(main.theta), yarn: None }));
        }
        let theta = theta_compress.ok_or_else(|| missing("compress_rope_theta"))?;
        let said = yarn_flat.map(|(_, y)| y);
        let yarn = match said {
            Some(y) => y,
            None if keys.map.get("rope_scaling").is_some_and(Value::is_null) => None,
            None => {
                return Err(missing_because(
                    "rope_scaling",
                    "compressed layers use YaRN in every released model; write \"rope_scaling\": null if this one has none",
                ));
            }
        };
        return Ok((main, Rope { theta, yarn }));
    };

    let table = |label: &str, top: Option<f64>, top_name: &str| -> Result<Option<Rope>> {
        let name = format!("rope_parameters.{label}");
        let Some(v) = nested.get(label).filter(|v| !v.is_null()) else { return Ok(None) };
        let Value::Object(t) = v else { return Err(refused(&name, v, "an object")) };
        let sub = Keys { map: t };
        let own = sub.opt_float(&["rope_theta"], f64::MIN_POSITIVE, 1e18)?;
        if let (Some(a), Some(b)) = (own, top)
            && a != b
        {
            return Err(contradiction(&format!("{name}.rope_theta"), &a, top_name, &b));
        }
        if let Some(f) = sub.opt_float(&["partial_rotary_factor"], f64::MIN_POSITIVE, 1.0)? {
            let d = (head_dim as f64 * f) as usize;
            if d != dims {
                return Err(contradiction(
                    &format!("{name}.partial_rotary_factor"),
                    &format!("{f} (= {d} dims)"),
                    "qk_rope_head_dim",
                    &dims,
                ));
            }
        }
        let theta = own.or(top).ok_or_else(|| missing(&format!("{name}.rope_theta")))?;
        Ok(Some(Rope { theta, yarn: yarn(t, &name, true)? }))
    };
    for k in nested.keys() {
        if !matches!(
            k.as_str(),
            "main" | "compress" | "rope_type" | "type" | "rope_theta" | "partial_rotary_factor"
        ) {
            return Err(Error::input(format!("`rope_parameters.{k}` stands beside `main` and `compress`"))
                .hint("transformers drops such a key; move it into `main` or `compress`"));
        }
    }
    let main = table("main", theta_main, "rope_theta")?.ok_or_else(|| missing("rope_parameters.main"))?;
    let compress = match table("compress", theta_compress, "compress_rope_theta")? {
        Some(r) => r,
        None if compressed => return Err(missing("rope_parameters.compress")),
        None => Rope { theta: theta_compress.unwrap_or(main.theta), yarn: None },
    };
    if let Some((name, yarn)) = yarn_flat
        && yarn != compress.yarn
    {
        return Err(contradiction(name, &"one YaRN", "rope_parameters.compress", &"another"));
    }
    Ok((main, compress))
}

/// A rope dictionary's scaling. `nested`: transformers reads this table as it stands, so a missing attention_factor would be
/// derived there (0.1·ln(factor)+1) while the official graph multiplies by nothing: ambiguous, hence refused.
fn yarn(table: &Map<String, Value>, name: &str, nested: bool) -> Result<Option<Yarn>> {
    let keys = Keys { map: table };
    let at = |k: &str| format!("{name}.{k}");
    let kind = keys.opt(&["rope_type", "type"])?;
    match kind.map(|(_, v)| v.as_str()) {
        None if table.contains_key("factor") => return Err(missing(&at("rope_type"))),
        None | Some(Some("default")) => return Ok(None),
        Some(Some("yarn")) => {}
        Some(_) => {
            let (key, v) = kind.expect("matched above");
            return Err(refused(&at(key), v, "\"default\" or \"yarn\""));
        }
    }
    match keys.opt(&["attention_factor"])? {
        Some((key, v)) if v.as_f64() != Some(1.0) => {
            return Err(refused(&at(key), v, "1.0 (cos and sin are never scaled)"));
        }
        None if nested => {
            return Err(missing_because(
                &at("attention_factor"),
                "transformers would scale cos and sin by 0.1*ln(factor)+1 here, the official graph does not; \
                 write \"attention_factor\": 1.0",
            ));
        }
        _ => {}
    }
    if let Some((key, v)) = keys.opt(&["truncate"])?
        && v.as_bool() != Some(true)
    {
        return Err(refused(&at(key), v, "true (the correction range is rounded outwards)"));
    }
    let within = |e: Error| {
        Error::input(format!("in `{name}`: {}", e.message())).hint("see the model's original config.json")
    };
    let yarn = Yarn {
        factor: keys.float(&["factor"], 1.0, 1e9).map_err(within)?,
        original_max_position_embeddings: keys
            .size(&["original_max_position_embeddings"], 1, 1 << 40)
            .map_err(within)?,
        // 32 and 1 are what both the official code and transformers take when the file is silent.
        beta_fast: keys.opt_float(&["beta_fast"], f64::MIN_POSITIVE, 1e9).map_err(within)?.unwrap_or(32.0),
        beta_slow: keys.opt_float(&["beta_slow"], f64::MIN_POSITIVE, 1e9).map_err(within)?.unwrap_or(1.0),
    };
    check_betas(&yarn, &at("beta_fast"))?;
    Ok(Some(yarn))
}

fn check_betas(yarn: &Yarn, name: &str) -> Result<()> {
    if yarn.beta_fast < yarn.beta_slow {
        return Err(Error::input(format!(
            "`{name}` {} is smaller than beta_slow {}",
            yarn.beta_fast, yarn.beta_slow
        ))
        .hint("beta_fast bounds the fast end of the YaRN ramp; released models have 32 and 1"));
    }
    Ok(())
}
