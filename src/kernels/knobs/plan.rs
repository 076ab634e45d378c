//! Knob settings of a whole run: overrides by layer and phase.

use super::{Class, Knobs, Phase};
use crate::error::Result;

/// One override of the base point.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// Layers it applies to; `None` = all (and the head).
    pub layers: Option<Vec<usize>>,
    /// Phase it applies to; `None` = both.
    pub phase: Option<Phase>,
    /// Knob settings, `(site.knob, value)`.
    pub settings: Vec<(String, String)>,
}

/// Knob settings of a whole run: golden `ideal` plus overrides, later ones winning.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KnobPlan {
    /// The overrides, in the order they apply.
    pub overrides: Vec<Override>,
}

impl Knobs {
    /// True if `site.knob` declares a number format, which the floor pays for.
    pub fn declares_format(path: &str) -> bool {
        Knobs::defs().iter().any(|d| d.class == Class::Format && path == format!("{}.{}", d.site, d.name))
    }
}

impl KnobPlan {
    /// The point in force at `layer` (`None` = embedding and head) in `phase`.
    pub fn at(&self, layer: Option<usize>, phase: Phase) -> Knobs {
        let mut k = Knobs::default();
        for o in &self.overrides {
            let layer_ok = match (&o.layers, layer) {
                (None, _) => true,
                (Some(ls), Some(l)) => ls.contains(&l),
                (Some(_), None) => false,
            };
            if layer_ok && o.phase.is_none_or(|p| p == phase) {
                for (path, value) in &o.settings {
                    k.set(path, value).expect("plans hold checked settings only");
                }
            }
        }
        k
    }
    /// Appends settings for all layers and phases, checking every name and value.
    pub fn push(
        &mut self,
        layers: Option<Vec<usize>>,
        phase: Option<Phase>,
        settings: &[(String, String)],
    ) -> Result<()> {
        let mut probe = Knobs::default();
        for (p, v) in settings {
            probe.set(p, v)?;
        }
        self.overrides.push(Override { layers, phase, settings: settings.to_vec() });
        Ok(())
    }
}

impl KnobPlan {
    /// True if any override sets `site.knob`.
    pub fn mentions(&self, path: &str) -> bool {
        self.overrides.iter().any(|o| o.settings.iter().any(|(p, _)| p == path))
    }
    /// The plan with every setting that declares no format taken away: what an ideal kernel with
    /// the same formats does. Golden's own settings stay.
    pub fn formats_only(&self, golden: &KnobPlan) -> KnobPlan {
        let mut out = golden.clone();
        for o in &self.overrides {
            let settings: Vec<_> =
                o.settings.iter().filter(|(p, _)| Knobs::declares_format(p)).cloned().collect();
            if !settings.is_empty() {
                out.overrides.push(Override { settings, ..o.clone() });
            }
        }
        out
    }
}
