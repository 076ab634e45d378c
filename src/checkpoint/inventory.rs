//! What a checkpoint holds, by role, against what its config calls for. Reads headers only.

use std::collections::BTreeMap;

use super::spec::{self, Role};
use super::{Checkpoint, Stored};

/// The result of [`Checkpoint::inventory`].
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Roles that occur, in report order.
    pub roles: Vec<RoleSummary>,
    /// Expected tensors that are absent: how many, and the first [`LISTED`] names.
    pub missing: (usize, Vec<String>),
    /// Expected tensors that are there but unusable, the first [`LISTED`] of them, and how many.
    pub wrong: (usize, Vec<Wrong>),
    /// Tensors (by the name in the file) nobody asked for; `mtp.*` is not among them.
    pub extra: (usize, Vec<String>),
    /// Weights of the trunk, hash tables not counted.
    pub params_total: u64,
    /// Weights a token touches: one embedding row, the routed experts it is sent to, and everything else once.
    pub params_active: u64,
    /// Bytes of all tensors, unused ones included.
    pub bytes_total: u64,
}

/// Names listed of each kind of trouble; the count is always complete.
pub const LISTED: usize = 200;

/// One role's share.
#[derive(Debug, Clone)]
pub struct RoleSummary {
    /// The role.
    pub role: Role,
    /// By storage type.
    pub formats: BTreeMap<Option<Stored>, Share>,
    /// The sum of them.
    pub total: Share,
}

/// A count of tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Logical tensors: a weight with its scales counts once, packed experts count each.
    pub tensors: usize,
    /// Elements.
    pub params: u64,
    /// Bytes, scales included.
    pub bytes: u64,
}

/// A tensor that is there and cannot be used.
#[derive(Debug, Clone)]
pub struct Wrong {
    /// Official name.
    pub name: String,
    /// Why.
    pub message: String,
}

impl Inventory {
    /// Nothing missing, nothing wrong. Extra tensors do no harm.
    pub fn ok(&self) -> bool {
        self.missing.0 == 0 && self.wrong.0 == 0
    }

    /// The summary of one role.
    pub fn role(&self, role: Role) -> Option<&RoleSummary> {
        self.roles.iter().find(|r| r.role == role)
    }
}

pub(super) fn of(c: &Checkpoint) -> Inventory {
    let mut inv = Inventory::default();
    let mut roles: BTreeMap<Role, BTreeMap<Option<Stored>, Share>> = BTreeMap::new();
    let mut add = |role, stored, params: u64, bytes: u64, tensors| {
        let s = roles.entry(role).or_default().entry(stored).or_default();
        s.tensors += tensors;
        s.params += params;
        s.bytes += bytes;
    };
    spec::for_each(&c.config, |name| {
        if !c.has(name) {
            note(&mut inv.missing, || name.to_owned());
            return;
        }
        match c.find(name) {
            Ok(f) => {
                let n = f.expect.shape.iter().product::<usize>() as u64;
                add(f.expect.role, Some(f.stored), if f.expect.ids { 0 } else { n }, f.bytes as u64, 1);
            }
            Err(e) => {
                note(&mut inv.wrong, || Wrong { name: name.to_owned(), message: e.message().to_owned() })
            }
        }
    });
    let mut extras = Vec::new();
    for (name, loc) in &c.tensors {
        if spec::lookup(&c.config, name).is_none() && !is_companion(c, name) {
            extras.push(*loc);
        }
    }
    extras.extend(
        c.packed.iter().filter(|((layer, _), _)| *layer >= c.config.layers.len()).map(|(_, loc)| *loc),
    );
    extras.sort_by_key(|l| (l.file, l.entry));
    for loc in extras {
        let entry = c.entry(loc).1;
        add(Role::Other, None, 0, (entry.end - entry.begin) as u64, 1);
        note(&mut inv.extra, || super::safetensors::short(&entry.name));
    }
    if c.mtp.tensors > 0 {
        add(Role::Mtp, None, c.mtp.params, c.mtp.bytes, c.mtp.tensors);
    }
    inv.bytes_total = c.files.iter().flat_map(|f| f.entries()).map(|e| (e.end - e.begin) as u64).sum();

    for (role, formats) in roles {
        let mut total = Share::default();
        for s in formats.values() {
            total.tensors += s.tensors;
            total.params += s.params;
            total.bytes += s.bytes;
        }
        let (all, active) = match role {
            Role::Mtp | Role::Other => (0, 0),
            Role::Embed => (total.params, total.params / c.config.vocab_size as u64),
            Role::RoutedExperts => {
                let (k, e) = (c.config.num_experts_per_tok as u128, c.config.n_routed_experts as u128);
                (total.params, (u128::from(total.params) * k / e) as u64)
            }
            _ => (total.params, total.params),
        };
        inv.params_total += all;
        inv.params_active += active;
        inv.roles.push(RoleSummary { role, formats, total });
    }
    inv
}

fn note<T>(list: &mut (usize, Vec<T>), item: impl FnOnce() -> T) {
    list.0 += 1;
    if list.1.len() < LISTED {
        list.1.push(item());
    }
}

/// A scale that belongs to a weight which is there.
fn is_companion(c: &Checkpoint, name: &str) -> bool {
    [".scale", ".weight_scale", ".weight_scale_2", ".input_scale"].iter().any(|suffix| {
        name.strip_suffix(suffix).is_some_and(|base| {
            let weight = format!("{base}.weight");
            c.tensors.contains_key(&weight) && spec::lookup(&c.config, &weight).is_some()
        })
    })
}
