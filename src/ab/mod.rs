//! A/B of kernel toggles: which of them, alone or together, breaks what must hold.

pub mod cmp;
pub mod config;
pub mod gate;
pub mod judge;
pub mod measure;
pub mod recall;
pub mod table;
pub mod toggles;
