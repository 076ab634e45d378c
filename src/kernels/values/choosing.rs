//! Knob types of indexer, top-k, router and experts.

use super::KnobValue;

words! {
    /// On which side of the index product the Hadamard rotation is applied.
    Hadamard {
        /// On neither side.
        None = "none",
        /// On queries and keys: scores are unchanged but for quantisation.
        Both = "both",
        /// On queries only: the ranking carries no information.
        QOnly = "q_only",
        /// On keys only.
        KOnly = "k_only",
    }
}

words! {
    /// Which compressed entries are visible to position `t`.
    Visible {
        /// `j < (t+1) / ratio`.
        Exact = "exact",
        /// `j < t / ratio`: the entry closing at `t` is hidden.
        QDivR = "q_div_r",
        /// `j <= (t+1) / ratio`: one entry of the future.
        OneFuture = "one_future",
        /// `1 <= j <= (t+1) / ratio`: both ends one too late.
        Shifted = "shifted",
        /// `j <= t`: the raw length in place of the compressed one, as far as entries exist.
        RawLength = "raw_length",
    }
}

words! {
    /// How often `routed_scaling_factor` reaches the routed sum.
    Scale {
        /// Once.
        Once = "once",
        /// Not at all.
        Never = "never",
        /// Twice.
        Twice = "twice",
    }
}

words! {
    /// Where the routing weight (with its factor) multiplies a routed expert's output.
    WeightSite {
        /// On the activation, before `w2` (the official script).
        BeforeW2 = "before_w2",
        /// On the rounded output of `w2`.
        AfterW2 = "after_w2",
        /// Normalised weight after `w2`; the factor on the rounded routed sum.
        FactorOnSum = "factor_on_sum",
    }
}

words! {
    /// Which SwiGLU inputs are clamped.
    Clamp {
        /// Up to ±limit, gate from above, in routed and shared experts.
        Exact = "exact",
        /// No clamp in the shared expert.
        OffShared = "off_shared",
        /// No clamp in the routed experts.
        OffRouted = "off_routed",
        /// The activated gate is clamped, not the gate.
        AfterSilu = "after_silu",
        /// The gate is clamped from below, too.
        Symmetric = "symmetric",
        /// The gate is not clamped.
        GateOff = "gate_off",
        /// The up projection is not clamped.
        UpOff = "up_off",
    }
}

words! {
    /// Order of equal scores at the cut of top-k.
    Tie {
        /// The lower entry index wins.
        Low = "low",
        /// The higher entry index wins.
        High = "high",
        /// An order drawn from the seed wins, as when threads arrive.
        Arrival = "arrival",
    }
}

words! {
    /// How hash-table expert ids are stored.
    TableDtype {
        /// Integers.
        Int = "int",
        /// Rounded to bfloat16: exact up to 256.
        Bf16 = "bf16",
        /// A type whose exact range ends at half the experts, as bfloat16's does at 256 of 512: shows on a model of any
        /// size.
        Coarse = "coarse",
    }
}

words! {
    /// The last block of 64 keys in the scoring loop.
    EarlyExit {
        /// It is scored.
        None = "none",
        /// The loop ends one block early: the block stays at −inf.
        OneBlock = "one_block",
        /// The loop ends one block early: the buffer still holds the scores of the block before.
        StaleBuffer = "stale_buffer",
        /// The loop ends one block early on a buffer of zeros.
        ZeroBuffer = "zero_buffer",
    }
}

words! {
    /// The stored score of an entry that is not visible.
    Sentinel {
        /// −inf.
        NegInf = "neg_inf",
        /// 0, which beats negative scores.
        Zero = "zero",
    }
}

words! {
    /// How the values of an index key lie.
    KeyLayout {
        /// In order.
        Rows = "rows",
        /// Written in order, read as if even and odd values lay apart.
        Interleaved = "interleaved",
    }
}

words! {
    /// Whose selection a token uses.
    Reuse {
        /// Its own.
        None = "none",
        /// The previous token's.
        Token = "token",
        /// Its own at the previous CSA layer.
        Layer = "layer",
    }
}

words! {
    /// When every entry is taken without ranking.
    ShortPath {
        /// Where a token sees no more entries than are kept.
        Exact = "exact",
        /// For every token of a call whose first token sees no more than are kept.
        BatchMin = "batch_min",
    }
}

words! {
    /// How the chosen ids are written.
    Output {
        /// Valid ids first, −1 after the last.
        Exact = "exact",
        /// One id in the middle becomes −1.
        SentinelInside = "sentinel_inside",
        /// Slots after the last valid id are not written: they hold old ids.
        UninitialisedTail = "uninitialised_tail",
        /// Every eighth row of scores is NaN, and the lowest ids are taken there.
        NanRows = "nan_rows",
    }
}

words! {
    /// How softplus is evaluated.
    Softplus {
        /// Without overflow.
        Stable = "stable",
        /// As `ln(1 + e^x)` in f32: inf above 88.
        Naive = "naive",
        /// As `ln(1 + e^x)` in f16: inf above 11.
        NaiveF16 = "naive_f16",
    }
}

words! {
    /// The per-tensor scales of the gate and up products.
    Alpha {
        /// Each its own.
        Exact = "exact",
        /// Gate and up have each other's.
        Swapped = "swapped",
        /// Each times the input's global scale once more.
        InputScaleTwice = "input_scale_twice",
    }
}
