//! Writers. They compute nothing, and nothing they make is ever seen half-written.

pub mod safetensors_writer;
pub mod temp;
