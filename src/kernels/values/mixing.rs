//! Knob types of attention, its cache, the compressor and the hyper-connections.

use super::KnobValue;

words! {
    /// How the attention sink enters the softmax.
    Sink {
        /// Once, in the denominator.
        Once = "once",
        /// Never.
        Dropped = "dropped",
        /// Twice.
        Twice = "twice",
        /// Once in every split, so `splits` times.
        PerSplit = "per_split",
        /// Multiplied by the softmax scale.
        Scaled = "scaled",
        /// The second half of the heads reads the sinks of the first half, as a second tensor-parallel rank does that
        /// slices from the start.
        RankSlice = "rank_slice",
    }
}

words! {
    /// The window a token may see.
    Window {
        /// The last `sliding_window` positions, itself included.
        Exact = "exact",
        /// One position fewer.
        OneShort = "one_short",
        /// One position more.
        OneLong = "one_long",
        /// One position of the future, where the call holds it.
        OneFuture = "one_future",
        /// Everything before it.
        Unlimited = "unlimited",
    }
}

words! {
    /// Pairing of rotary dimensions.
    Pairing {
        /// Adjacent pairs `(2i, 2i+1)`, as the model was trained.
        Interleaved = "interleaved",
        /// Halves `(i, i + r/2)`.
        HalfSplit = "half_split",
        /// No rotation.
        Off = "off",
    }
}

words! {
    /// Position used to rotate a compressed entry.
    EntryPosition {
        /// The first token of its window, `ratio · j`.
        First = "first",
        /// The entry number `j` itself.
        Index = "index",
        /// The last token of its window.
        Last = "last",
    }
}

words! {
    /// Where the previous window enters the overlapping compressor.
    Overlap {
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
        /// The two series of columns change places.
        Swapped = "swapped",
    }
}

words! {
    /// Which rotary table a layer uses.
    RopeTableChoice {
        /// The one its kind is configured with.
        Config = "config",
        /// The other kind's.
        Swapped = "swapped",
        /// That of window layers with the family's YaRN scaling on top.
        Yarn = "yarn",
    }
}

words! {
    /// Which of the two indices of the mHC mixing matrix is contracted.
    Comb {
        /// The first: `X'[k] = Σ_j C[j][k] X[j]`.
        Exact = "exact",
        /// The second.
        Transposed = "transposed",
    }
}

words! {
    /// How the key list of attention is cut into splits.
    SplitRule {
        /// Into `splits` equal runs of slots.
        Even = "even",
        /// Into runs of `chunk` slots, however many that gives.
        Chunk = "chunk",
        /// Into `splits` runs of whole pages of 64 slots; the last ones may be empty.
        Page = "page",
    }
}

words! {
    /// Base of exponentials and logarithms.
    Base {
        /// Natural.
        E = "e",
        /// Two, with `log2 e` folded into the softmax scale.
        Two = "two",
    }
}

words! {
    /// The log-sum-exp of a split that saw no key.
    Empty {
        /// −inf: it takes no part.
        NegInf = "neg_inf",
        /// +inf, as a marker that the merge does not know.
        PosInf = "pos_inf",
        /// 0, the buffer's initial value: a masked split counts as valid.
        Zero = "zero",
    }
}

words! {
    /// What a slot with index −1 does.
    Invalid {
        /// Nothing.
        Masked = "masked",
        /// It reads entry 0.
        EntryZero = "entry_zero",
    }
}

words! {
    /// Lanes of the last tile that lie beyond the length.
    Lanes {
        /// They are masked.
        Masked = "masked",
        /// They take part with what their buffer holds: the tile before, or zeros.
        Garbage = "garbage",
    }
}

words! {
    /// How window and compressed entries are read.
    Passes {
        /// As one key list.
        One = "one",
        /// In two passes merged by their log-sum-exp.
        Two = "two",
    }
}

words! {
    /// The softmax scale.
    SoftmaxScale {
        /// `C^-0.5`.
        Exact = "exact",
        /// Times the square of YaRN's attention factor, `(0.1 ln 16 + 1)²`, which this family does not have.
        Mscale = "mscale",
    }
}

words! {
    /// How cache entries lie between writing and reading.
    Layout {
        /// As rows of values: no bytes are made.
        Rows = "rows",
        /// As bytes in pages of 64 entries: every data record, then every scale record.
        Paged = "paged",
        /// Written so, read as 64 whole records of data and scales.
        Interleaved = "interleaved",
    }
}

words! {
    /// How an fp8 block and its power-of-two scale are made and read.
    Quant {
        /// Scale first, then values by that scale.
        Exact = "exact",
        /// Values by the unrounded scale `amax/448`, the stored scale rounded up afterwards.
        ThenCeil = "then_ceil",
        /// The exponent byte is read as a number.
        ByteAsValue = "byte_as_value",
        /// The e4m3 bits are read as e4m3fnuz: half the value, and NaN for −0.
        FnuzBits = "fnuz_bits",
    }
}

words! {
    /// An entry whose window closes at a multiple of 128 tokens.
    Boundary {
        /// It is pooled like any other.
        Exact = "exact",
        /// It is never written and reads as zeros.
        Zero = "zero",
        /// It is 0/0.
        Nan = "nan",
    }
}

words! {
    /// The factor on the sigmoid of `post`.
    PostFactor {
        /// 2.
        Two = "two",
        /// 1.
        One = "one",
    }
}

words! {
    /// The epsilon of the hyper-connections.
    HcEps {
        /// As configured.
        Config = "config",
        /// None.
        Zero = "zero",
        /// 1e-3.
        Large = "large",
    }
}

words! {
    /// Where the RMS factor multiplies in the mixing product.
    NormSite {
        /// On the product.
        After = "after",
        /// On the input.
        Before = "before",
    }
}
