"""The compile-time choices every kernel is shipped with. compile_kernels.py builds all of them, bench.py runs them."""

from dataclasses import dataclass, field

ARCHS = ("sm_80", "sm_90", "sm_120")


@dataclass(frozen=True)
class Variant:
    """A kernel file with its macros, and the architectures it is for."""

    file: str
    macros: dict = field(default_factory=dict)
    archs: tuple = ARCHS


VARIANTS = [
    *(
        Variant("sparse_mla_decode.cu", {"HEADS": h, "TILE": t, "K_BUFFERS": k})
        for h, t, k in ((64, 64, 1), (64, 32, 2), (32, 64, 1), (32, 32, 2), (16, 64, 2), (16, 32, 2), (16, 32, 1))
    ),
    *(
        Variant("sparse_mla_decode.cu", {"HEADS": h, "TILE": t, "K_BUFFERS": k, "CLUSTER": c}, ("sm_90", "sm_120"))
        for h, t, k, c in (
            *((64, 64, 1, 2), (64, 64, 1, 8), (64, 32, 2, 2), (32, 64, 1, 4), (32, 64, 1, 8)),
            *((32, 32, 2, 8), (16, 64, 2, 4), (16, 64, 2, 8), (16, 32, 2, 4), (16, 32, 2, 8)),
        )
    ),
    *(Variant("indexer.cu", {"QUERY_FP8": q, "KEYS_FP8": k}) for q, k in ((0, 0), (0, 1), (1, 1))),
    Variant("mhc.cu"),
    *(
        Variant("moe.cu", {"FORMAT": f, "NT": n, "KW": k, "STEPS": s})
        for f in (0, 1, 2)
        for n, k, s in ((1, 1, 4), (1, 2, 4), (1, 4, 8), (1, 8, 8), (2, 4, 8), (8, 4, 4))
    ),
    *(Variant("linear_fp8.cu", {"NT": n, "KW": k}) for n, k in ((1, 8), (2, 8), (8, 4))),
    # For many tokens. On sm_120 the compiler runs out of registers.
    Variant("linear_fp8.cu", {"NT": 12, "KW": 1}, ("sm_80", "sm_90")),
    *(Variant("sparse_prefill.cu", {"HEADS": h, "TILE": 32}) for h in (64, 16)),
]
