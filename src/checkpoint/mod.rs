//! Checkpoints: config, shard index, names, lazily decoded tensors.
