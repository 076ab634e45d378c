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
    bring_queries(smem_address(smem), q + ((u64)token * heads + head0) * DIM);
    copies_commit();
    u32 *slots = (u32 *)(smem + SLOTS_AT);
    for (int i = threadIdx.x; i < (n + TILE - 1) / TILE * TILE; i += THREADS) {
        u32 slot = NO_KEY;
        if (i < nw) slot = row_slot(from + i);
        else if (i < n) {
            const int id = ids ? ids[(u64)token * nc + i - nw] : i - nw;
            if (id >= 0) slot = row_slot(id) | SECOND;
        }
        slots[i] = slot;
    }
    __syncthreads();
    float acc[MT2][8][4] = {};
    Softmax state = {NEG_INF, 0.0f};
    attend(smem, kv, comp, n, scale, acc, state);
    __syncthreads();
    const u64 out0 = (u64)token * heads + head0;
    const int row = threadIdx.x / TPR;
    if (row < HEADS && threadIdx.x % TPR == 0) {
        // A token sees itself, so there is always a key.
        const float2 s = with_sink(own_lse(state), sinks ? sinks[head0 + row] : NEG_INF);
        ((float *)(smem + F_AT))[row] = s.x / state.l;
        lse[out0 + row] = s.y;
    }
    __syncthreads();
    put_sums(smem, acc);
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < HEADS * 128; i += THREADS) {
        const int r = i >> 7, dim = (i & 127) * 4;
        *(uint2 *)(out + (out0 + r) * DIM + dim) = bf16x4_of(*(const float4 *)((const float *)smem + r * O_STRIDE + dim));
    }
}
