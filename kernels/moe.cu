// Routed experts at decode batches: gate and up, SwiGLU with clamp, down, weighted sum.
// Must match `routed` of src/kernels/moe.rs with experts.{in_dtype = bf16, w_dtype = bf16 | mxfp4 | nvfp4,
// out_dtype = bf16} and weight_site = before_w2, after_w2 or factor_on_sum. For in_dtype = fp8_128 (the official recipe)
// run moe_round_fp8 over the inputs before gate/up and over the activations before down: the rounded values are exact
// in bf16. nvfp4 is W4A16 here: input_scale is not read.
//
// Routes (token, expert, weight) are sorted by expert; a task is up to 8·NT routes of one expert. gate_up and down:
// grid (rows / rows of a block, tasks), 256 threads.

#include "common.cuh"
#include "stream.cuh"

// Of one kind of matrix, [experts, rows, dims]: bytes, block scales, and (nvfp4) a scale an expert.
struct Matrix {
    const u8 *weights;
    const u8 *scales;
    const float *scale_2;
};

#define WEIGHT_BYTES(n) (FORMAT == 0 ? (u64)(n) * 2 : (u64)(n) / 2)
#define SCALE_BYTES(n) (FORMAT == 1 ? (u64)(n) / 32 : (u64)(n) / 16)

__device__ __forceinline__ const u8 *weight_row(const Matrix &m, int expert, int rows, int row, int dims) {
    return m.weights + WEIGHT_BYTES(((u64)expert * rows + row) * dims);
}
__device__ __forceinline__ const u8 *scale_row(const Matrix &m, int expert, int rows, int row, int dims) {
    return FORMAT == 0 ? m.weights : m.scales + SCALE_BYTES(((u64)expert * rows + row) * dims);
}
__device__ __forceinline__ float bf16_round(float x) { return f32_of(bf16_of(x)); }

// Gate rows in the lower halves of the tiles, up rows in the upper ones: a thread then holds gate and up of the same
// output and token. A block has 16 · ROW_WARPS outputs.
extern "C" __global__ void __launch_bounds__(256, NT > 4 ? 1 : 2)
    moe_gate_up(const u16 *x, // [tokens, dims] bf16
                Matrix gate, Matrix up,
                const int4 *tasks,                                // [tasks]: expert, first route, routes, unused
                const int *route_token, const float *route_weight, // [routes]
                u16 *h,                                           // [routes, inner] bf16
                int dims, int inner, float limit, int weigh) {    // limit: +inf for none; weigh: weight_site = before_w2
    extern __shared__ __align__(128) u8 smem[];
    __shared__ int token[TOKEN_ROWS];
    const int4 task = tasks[blockIdx.y];
    const int tid = threadIdx.x, warp = tid >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first = blockIdx.x * (16 * ROW_WARPS) + warp / KW * 16 + g;
    if (tid < TOKEN_ROWS) token[tid] = tid < task.z ? route_token[task.y + tid] : -1;
    __syncthreads();
    Rows rows;
#pragma unroll
    for (int m = 0; m < MW; ++m) {
        const int row = first + m * 8;
        rows.weights[m][0] = weight_row(gate, task.x, inner, row, dims);
        rows.weights[m][1] = weight_row(up, task.x, inner, row, dims);
        rows.scales[m][0] = scale_row(gate, task.x, inner, row, dims);
        rows.scales[m][1] = scale_row(up, task.x, inner, row, dims);
    }
    float acc[MW][NT][4] = {};
    stream(smem, x, token, dims, rows, acc);
    if (warp % KW) return;
    const float fg = LEFT_OVER * (FORMAT == 2 ? gate.scale_2[task.x] : 1.0f);
    const float fu = LEFT_OVER * (FORMAT == 2 ? up.scale_2[task.x] : 1.0f);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = n * 8 + t * 2 + i;
            if (r >= task.z) continue;
            const float w = weigh ? route_weight[task.y + r] : 1.0f;
#pragma unroll
            for (int m = 0; m < MW; ++m) {
                const float a = fminf(bf16_round(acc[m][n][i] * fg), limit);
                const float u = fmaxf(fminf(bf16_round(acc[m][n][2 + i] * fu), limit), -limit);
                h[(u64)(task.y + r) * inner + first + m * 8] = bf16_of(a / (1.0f + expf(-a)) * u * w);
            }
        }
}

// A block has 32 · ROW_WARPS outputs.
extern "C" __global__ void __launch_bounds__(256, NT > 4 ? 1 : 2)
    moe_down(const u16 *h, // [routes, inner] bf16
             Matrix down, const int4 *tasks,
             u16 *y, // [routes, dims] bf16
             int inner, int dims) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ int token[TOKEN_ROWS];
    const int4 task = tasks[blockIdx.y];
    const int tid = threadIdx.x, warp = tid >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first = blockIdx.x * (32 * ROW_WARPS) + warp / KW * 32 + g;
    if (tid < TOKEN_ROWS) token[tid] = tid < task.z ? task.y + tid : -1;
    __syncthreads();
    Rows rows;
#pragma unroll
    for (int m = 0; m < MW; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            rows.weights[m][half] = weight_row(down, task.x, dims, first + m * 16 + half * 8, inner);
            rows.scales[m][half] = scale_row(down, task.x, dims, first + m * 16 + half * 8, inner);
        }
    float acc[MW][NT][4] = {};
    stream(smem, h, token, inner, rows, acc);
    if (warp % KW) return;
    const float f = LEFT_OVER * (FORMAT == 2 ? down.scale_2[task.x] : 1.0f);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = n * 8 + t * 2 + (i & 1);
            if (r >= task.z) continue;
#pragma unroll
            for (int m = 0; m < MW; ++m)
                y[(u64)(task.y + r) * dims + first + m * 16 + (i >> 1) * 8] = bf16_of(acc[m][n][i] * f);
        }
}

// out = bf16(factor · bf16(Σ_i weight_i · y_i)) over the routes of a token in the given order (ascending expert id).
// weight_site = factor_on_sum: weights without the factor. Otherwise factor = 1, and the inner rounding is the only one.
// before_w2: weights are null. grid (tokens), 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    moe_combine(const u16 *y, const int *token_routes, const float *weights, // [tokens, k]; a route < 0 is none
                u16 *out, int k, int dims, float factor) {
    for (int d = threadIdx.x * 2; d < dims; d += 512) {
        float lo = 0.0f, hi = 0.0f;
        for (int i = 0; i < k; ++i) {
            const int route = token_routes[blockIdx.x * k + i];
            if (route < 0) continue;
            const float w = weights ? weights[blockIdx.x * k + i] : 1.0f;
            const u32 p = *(const u32 *)(y + (u64)route * dims + d);
            lo = fmaf(w, f32_lo(p), lo);
            hi = fmaf(w, f32_hi(p), hi);
        }
        *(u32 *)(out + (u64)blockIdx.x * dims + d) = bf16x2_of(bf16_round(lo) * factor, bf16_round(hi) * factor);
    }
}

// Rounds bf16 values to e4m3 with a power-of-two scale per 128, in place: a warp a block of 128.
extern "C" __global__ void __launch_bounds__(256) moe_round_fp8(u16 *x, int blocks) {
    const int block = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (block >= blocks) return;
    uint2 *at = (uint2 *)(x + (u64)block * 128) + (threadIdx.x & 31);
    const uint2 p = *at;
    const float v[4] = {f32_lo(p.x), f32_hi(p.x), f32_lo(p.y), f32_hi(p.y)};
    float top = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    for (int d = 1; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    const int k = fp8_scale_exponent(top);
    const float s = pow2i(k), inv = pow2i(-k);
    *at = make_uint2(bf16x2_of(e4m3_round(v[0] * inv) * s, e4m3_round(v[1] * inv) * s),
                     bf16x2_of(e4m3_round(v[2] * inv) * s, e4m3_round(v[3] * inv) * s));
}
