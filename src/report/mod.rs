//! Writers. They compute nothing, and nothing they make is ever seen half-written.

pub mod chart;
pub mod layers;
pub mod needle;
pub mod plots;
pub mod run_dir;
pub mod safetensors_writer;
pub mod temp;
