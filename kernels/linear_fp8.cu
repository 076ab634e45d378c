// y = x·Wᵀ with e4m3 weights in blocks of 128x128 under power-of-two scales, and activations rounded to e4m3 per 128.
// Must match src/kernels/gemm.rs `linear` on operands of linear.{in_dtype = fp8_128, w_dtype = fp8_128, out_dtype = bf16}
// (src/numeric/fp8_block.rs, act_fp8.rs). Scales are powers of two and codes have 4 significant bits, so both operands
// are exact in bf16 and the products are the ones of an fp8 kernel.
//
// linear_round_fp8: rounds the activations (a warp a block of 128). linear_fp8: grid (rows / (32 · 8 / KW), ceil(tokens /
// (8 · NT))), 256 threads; few tokens read the weights once, more read them once per 8 · NT tokens, then from the cache.

#define FORMAT 3
#include "common.cuh"
#include "stream.cuh"

extern "C" __global__ void __launch_bounds__(256) linear_round_fp8(const u16 *x, u16 *out, int blocks) {
    const int block = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (block >= blocks) return;
    const u64 at = (u64)block * 32 + (threadIdx.x & 31);
    const uint2 p = ((const uint2 *)x)[at];
    const float v[4] = {f32_lo(p.x), f32_hi(p.x), f32_lo(p.y), f32_hi(p.y)};
    float top = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    for (int d = 1; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    const int k = fp8_scale_exponent(top);
    const float s = pow2i(k), inv = pow2i(-k);
    ((uint2 *)out)[at] = make_uint2(bf16x2_of(e4m3_round(v[0] * inv) * s, e4m3_round(v[1] * inv) * s),
                                    bf16x2_of(e4m3_round(v[2] * inv) * s, e4m3_round(v[3] * inv) * s));
}

extern "C" __global__ void __launch_bounds__(256, NT > 4 ? 1 : 2)
    linear_fp8(const u16 *x,                        // [tokens, dims] bf16, already rounded to fp8_128
               const u8 *weights, const u8 *scales, // [rows, dims] e4m3, [ceil(rows / 128), dims / 128] e8m0
               u16 *y,                              // [tokens, rows] bf16
               int tokens, int rows, int dims) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ int token[TOKEN_ROWS];
    const int tid = threadIdx.x, warp = tid >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first = blockIdx.x * (32 * ROW_WARPS) + warp / KW * 32 + g, token0 = blockIdx.y * TOKEN_ROWS;
    if (tid < TOKEN_ROWS) token[tid] = token0 + tid < tokens ? token0 + tid : -1;
    __syncthreads();
    Rows at;
#pragma unroll
    for (int m = 0; m < MW; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // Rows beyond the last repeat it; what they give is not written.
            const int row = min(first + m * 16 + half * 8, rows - 1);
            at.weights[m][half] = weights + (u64)row * dims;
            at.scales[m][half] = scales + (u64)(row >> 7) * (dims >> 7);
        }
    float acc[MW][NT][4] = {};
    stream(smem, x, token, dims, at, acc);
    if (warp % KW) return;
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = token0 + n * 8 + t * 2 + (i & 1);
            if (r >= tokens) continue;
#pragma unroll
            for (int m = 0; m < MW; ++m) {
                const int row = first + m * 16 + (i >> 1) * 8;
                if (row < rows) y[(u64)r * rows + row] = bf16_of(acc[m][n][i]);
            }
        }
}
