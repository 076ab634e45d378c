//! Error, overlap, logits, intervals: pure functions over slices. Knows nothing of models.
