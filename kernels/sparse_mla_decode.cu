// Decode of sparse latent attention, split over the key list, on the paged fp8 cache.
// Must match src/kernels/attention_split.rs with attn.{qk_dtype=bf16, p_dtype=bf16, exp_base=two, tile=TILE,
// splits=S, split_rule=even, sink_in_max=on, out_dtype=bf16} on keys read by src/kernels/kv_pages.rs.
//
// sparse_mla_decode: grid (heads / HEADS, splits, batch), 256 threads. Keys are the window ids, then the compressed ids;
// split s takes ids [s·per, (s+1)·per) of that list, per = ceil((nw + nc) / splits). With one split the result is
// complete; with more, normalised f32 partials and their natural LSE (−inf: no key, and then no partial is written) go
// to `part` and `part_lse`, and sparse_mla_merge adds them in ascending order of splits. With CLUSTER = splits (2, 4 or 8;
// sm_90 and later) the blocks of a cluster read each other's partials, in that order, and nothing is left to merge.

#include "common.cuh"
#include "mla.cuh"

#ifndef CLUSTER
#define CLUSTER 1
#endif

// The slot of entry `id` of sequence `b`: through the page table, or as it is without one.
__device__ __forceinline__ u32 slot_of(int id, const int *table, int pages, int b, u32 mark) {
    if (id < 0) return NO_KEY;
    if (table) id = table[(u64)b * pages + (id >> 6)] * 64 + (id & 63);
    return paged_slot(id) | mark;
}

#if CLUSTER > 1
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ u32 in_block(u32 at, int rank) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
    return r;
}
__device__ __forceinline__ float load_remote(u32 at) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float4 load_remote4(u32 at) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

// Each block merges HEADS / CLUSTER rows of all blocks of its cluster.
__device__ __forceinline__ void merge_cluster(u8 *smem, const float *sinks, u16 *out, float *lse, int split) {
    const u32 base = smem_address(smem);
    const int rows = HEADS / CLUSTER, row0 = split * rows;
    float *weights = (float *)(smem + F_AT); // [rows][CLUSTER]
    cluster_sync();
    if (threadIdx.x < rows) {
        const int row = row0 + threadIdx.x;
        const float sink = sinks ? sinks[row] : NEG_INF;
        float own[CLUSTER], m = sink;
#pragma unroll
        for (int s = 0; s < CLUSTER; ++s) {
            own[s] = load_remote(in_block(base + LSE_AT + row * 4, s));
            m = fmaxf(m, own[s]);
        }
        float den = sink == NEG_INF ? 0.0f : exp2_fast((sink - m) * LOG2E);
#pragma unroll
        for (int s = 0; s < CLUSTER; ++s) {
            own[s] = own[s] == NEG_INF ? 0.0f : exp2_fast((own[s] - m) * LOG2E);
            den += own[s];
        }
#pragma unroll
        for (int s = 0; s < CLUSTER; ++s) weights[threadIdx.x * CLUSTER + s] = den == 0.0f ? 0.0f : own[s] / den;
        lse[row] = den == 0.0f ? NEG_INF : m + logf(den);
    }
    __syncthreads();
#pragma unroll 2
    for (int i = threadIdx.x; i < rows * 128; i += THREADS) {
        const int r = i >> 7, dim = (i & 127) * 4;
        float4 v[CLUSTER], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int s = 0; s < CLUSTER; ++s) v[s] = load_remote4(in_block(base + ((row0 + r) * O_STRIDE + dim) * 4, s));
#pragma unroll
        for (int s = 0; s < CLUSTER; ++s) {
            const float w = weights[r * CLUSTER + s];
            sum.x = fmaf(w, v[s].x, sum.x);
            sum.y = fmaf(w, v[s].y, sum.y);
            sum.z = fmaf(w, v[s].z, sum.z);
            sum.w = fmaf(w, v[s].w, sum.w);
        }
        *(uint2 *)(out + (u64)(row0 + r) * DIM + dim) = bf16x4_of(in_order(sum, dim));
    }
    cluster_sync(); // nobody leaves while its shared memory is read
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
    __cluster_dims__(1, CLUSTER, 1)
#endif
        sparse_mla_decode(const u16 *q,                                                     // [batch, heads, 512] bf16
                          const u8 *window, const int *window_table, const int *window_ids, // pages, [batch, w_pages], [batch, nw]
                          const u8 *comp, const int *comp_table, const int *comp_ids,       // pages, [batch, c_pages], [batch, nc]
                          const float *sinks,                                               // [heads] or null
                          u16 *out, float *lse,                                             // [batch, heads, 512], [batch, heads]
                          float *part, float *part_lse,                                     // [batch, splits, heads, 512], […, heads]
                          int heads, int nw, int nc, int w_pages, int c_pages, float scale) {
    extern __shared__ __align__(128) u8 smem[];
    const int head0 = blockIdx.x * HEADS, split = blockIdx.y, splits = gridDim.y, b = blockIdx.z;
    const int total = nw + nc, per = (total + splits - 1) / splits;
    const int from = min(split * per, total), n = min(from + per, total) - from;
    const u64 out0 = (u64)b * heads + head0, row0 = ((u64)b * splits + split) * heads + head0;
    bring_queries(smem_address(smem), q + out0 * DIM);
    copies_commit();
    u32 *slots = (u32 *)(smem + SLOTS_AT);
    bool any = false;
    for (int i = threadIdx.x; i < (n + TILE - 1) / TILE * TILE; i += THREADS) {
        const int j = from + i;
        u32 slot = NO_KEY;
        if (i < n) {
            if (j < nw) slot = slot_of(window_ids[(u64)b * nw + j], window_table, w_pages, b, 0);
            else slot = slot_of(comp_ids[(u64)b * nc + j - nw], comp_table, c_pages, b, SECOND);
        }
        slots[i] = slot;
        any |= slot != NO_KEY;
    }
    const bool keys = __syncthreads_or(any);
    if (CLUSTER == 1 && !keys && splits > 1) {
        copies_wait<0>();
        if (threadIdx.x < HEADS) part_lse[row0 + threadIdx.x] = NEG_INF;
        return;
    }
    float acc[MT2][8][4] = {};
    Softmax state = {NEG_INF, 0.0f};
    if (keys) attend(smem, window, comp, n, scale, acc, state);
    copies_wait<0>();
    __syncthreads();
    const int row = threadIdx.x / TPR;
    if (row < HEADS && threadIdx.x % TPR == 0) {
        const float own = own_lse(state);
        float f = state.l == 0.0f ? 0.0f : 1.0f / state.l;
        if (splits == 1) {
            const float2 s = with_sink(own, sinks ? sinks[head0 + row] : NEG_INF);
            f *= s.x;
            lse[out0 + row] = s.y;
        } else if (CLUSTER == 1) {
            part_lse[row0 + row] = own;
        }
        ((float *)(smem + F_AT))[row] = f;
        ((float *)(smem + LSE_AT))[row] = own;
    }
    __syncthreads();
    put_sums(smem, acc);
#if CLUSTER > 1
    merge_cluster(smem, sinks ? sinks + head0 : sinks, out + out0 * DIM, lse + out0, split);
#else
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < HEADS * 128; i += THREADS) {
        const int r = i >> 7, dim = (i & 127) * 4;
        const float4 v = in_order(*(const float4 *)((const float *)smem + r * O_STRIDE + dim), dim);
        if (splits == 1) *(uint2 *)(out + (out0 + r) * DIM + dim) = bf16x4_of(v);
        else *(float4 *)(part + (row0 + r) * DIM + dim) = v;
    }
#endif
}

// Merges up to 32 splits: grid (heads, batch), 128 threads, four dims a thread.
extern "C" __global__ void __launch_bounds__(128)
    sparse_mla_merge(const float *part, const float *part_lse, const float *sinks, u16 *out, float *lse, int heads,
                     int splits) {
    const int head = blockIdx.x, b = blockIdx.y, lane = threadIdx.x & 31;
    const u64 row0 = (u64)b * splits * heads + head;
    const float own = lane < splits ? part_lse[row0 + (u64)lane * heads] : NEG_INF;
    const float sink = sinks ? sinks[head] : NEG_INF;
    float m = own;
    for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
    m = fmaxf(m, sink);
    const float w = own == NEG_INF ? 0.0f : exp2_fast((own - m) * LOG2E);
    float den = sink == NEG_INF ? 0.0f : exp2_fast((sink - m) * LOG2E);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    // An empty split has written no partial: its place holds whatever was there and is not read.
    for (int s0 = 0; s0 < splits; s0 += 8) {
        float4 v[8];
        float ws[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            ws[i] = __shfl_sync(0xffffffffu, w, (s0 + i) & 31);
            const bool there = s0 + i < splits && ws[i] != 0.0f;
            if (!there) ws[i] = 0.0f;
            v[i] = there ? *(const float4 *)(part + (row0 + (u64)(s0 + i) * heads) * DIM + threadIdx.x * 4)
                         : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            den += ws[i];
            sum.x = fmaf(ws[i], v[i].x, sum.x);
            sum.y = fmaf(ws[i], v[i].y, sum.y);
            sum.z = fmaf(ws[i], v[i].z, sum.z);
            sum.w = fmaf(ws[i], v[i].w, sum.w);
        }
    }
    const float f = den == 0.0f ? 0.0f : 1.0f / den;
    u16 *to = out + ((u64)b * heads + head) * DIM + threadIdx.x * 4;
    *(uint2 *)to = bf16x4_of(make_float4(sum.x * f, sum.y * f, sum.z * f, sum.w * f));
    if (threadIdx.x == 0) lse[(u64)b * heads + head] = den == 0.0f ? NEG_INF : m + logf(den);
}
