//! Number formats and rounding: bf16, e4m3, e2m1, e8m0, block scales. Knows nothing of models.
