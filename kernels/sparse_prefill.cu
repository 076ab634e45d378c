// Sparse latent attention of a prefill: every token's window positions and its chosen compressed entries, bf16 rows.
// Must match src/kernels/attention_split.rs with attn.{qk_dtype = bf16, p_dtype = bf16, exp_base = two, tile = TILE,
// sink_in_max = on, out_dtype = bf16}, one split. grid (heads / HEADS, tokens), 256 threads.

#define PAGED 0
#ifndef TILE
#define TILE 32
#endif
#include "common.cuh"
#include "mla.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sparse_prefill(const u16 *q,      // [tokens, heads, 512] bf16
                   const u8 *kv,      // [rows, 512] bf16: row p is position p
                   const u8 *comp,    // [entries, 512] bf16
                   const int *ids,    // [tokens, nc] chosen entries, −1 is none; or null: all visible ones
                   const float *sinks, // [heads] or null
                   u16 *out, float *lse, // [tokens, heads, 512] bf16, [tokens, heads]
                   int heads, int pos0, int window, int nc, int ratio, float scale) {
    extern __shared__ __align__(128) u8 smem[];
    const int head0 = blockIdx.x * HEADS, token = blockIdx.y, pos = pos0 + token;
    const int from = max(pos + 1 - window, 0), nw = pos + 1 - from;
    // Without ids: the entries whose tokens end at or before this position, nc at most.
    const int chosen = ids ? nc : ratio ? min((pos + 1) / ratio, nc) : 0;
    const int n = nw + chosen;
    int *slots = (int *)(smem + SLOTS_AT);
    for (int i = threadIdx.x; i < (n + TILE - 1) / TILE * TILE; i += THREADS) {
        int slot = -1;
        if (i < nw) slot = from + i;
        else if (i < n) {
            const int id = ids ? ids[(u64)token * nc + i - nw] : i - nw;
            if (id >= 0) slot = id | SECOND;
        }
        slots[i] = slot;
    }
    __syncthreads();
    float acc[MT2][8][4] = {};
    Softmax state = {NEG_INF, 0.0f};
    attend(smem, q + ((u64)token * heads + head0) * DIM, kv, comp, n, scale, acc, state);
    __syncthreads();
    float *factor = (float *)(smem + F_AT);
    const int row = threadIdx.x / TPR;
    if (row < HEADS && threadIdx.x % TPR == 0) {
        // A token sees itself, so there is always a key.
        const float own = (state.m + log2f(state.l)) * LN2, sink = sinks ? sinks[head0 + row] : NEG_INF;
        const float m = fmaxf(own, sink), w = exp2_fast((own - m) * LOG2E), den = w + exp2_fast((sink - m) * LOG2E);
        factor[row] = w / den / state.l;
        lse[(u64)token * heads + head0 + row] = m + logf(den);
    }
    __syncthreads();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < MT2; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = m * 16 + half * 8 + (lane >> 2);
            const float f = factor[r];
#pragma unroll
            for (int n8 = 0; n8 < 8; ++n8)
                *(u32 *)(out + ((u64)token * heads + head0 + r) * DIM + warp * 64 + n8 * 8 + (lane & 3) * 2) =
                    bf16x2_of(acc[m][n8][2 * half] * f, acc[m][n8][2 * half + 1] * f);
        }
}
