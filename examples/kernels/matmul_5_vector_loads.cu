// Step 5: the same register tiles, fed without a pause. What is new:
//  - vector accesses: four words an instruction from B, from shared memory and into C (single words where n is no multiple of 4);
//  - A's tile lies transposed in shared memory, its rows padded by 4 words, and the lanes of a warp are laid out so
//    that no two of them ask one bank for different words;
//  - cp.async copies from global to shared memory past the registers, STAGES - 1 tiles ahead of the arithmetic;
//  - while a thread multiplies one step along k, the numbers of the next are already on their way to its registers.
// What still holds it back: the multipliers themselves, one multiply-add a lane and clock. Matrix units (step 6) do hundreds.
//
// nearpeak: kernel matmul_vector_loads
// nearpeak: op matmul
// nearpeak: precision fp32
// nearpeak: grid ceil(n / 256), ceil(m / 128)
// nearpeak: block 256
// nearpeak: shared 3 * 16 * (128 + 4 + 256) * 4
// nearpeak: args a, b, c, m, n, k

#ifndef BLOCK_M            // rows, columns and k-steps of a block's tile
#define BLOCK_M 128
#define BLOCK_N 256
#endif
#ifndef BLOCK_K
#define BLOCK_K 16
#endif
#ifndef STAGES             // tiles in shared memory at a time
#define STAGES 3
#endif
#ifndef WARP_M             // rows and columns of a warp's part; its 4×8 lanes hold WARP_M/4 × WARP_N/8 outputs each
#define WARP_M 32
#define WARP_N 128
#endif
#ifndef BLOCKS             // blocks that shall fit on a multiprocessor together
#define BLOCKS 1
#endif

constexpr int THREADS = (BLOCK_M / WARP_M) * (BLOCK_N / WARP_N) * 32;
constexpr int OWN_M = WARP_M / 4, OWN_N = WARP_N / 8;
constexpr int A_PITCH = BLOCK_M + 4;                                  // words from one k-step of A's tile to the next
constexpr int A_WORDS = BLOCK_K * A_PITCH, STAGE_WORDS = A_WORDS + BLOCK_K * BLOCK_N;
constexpr int A_ROWS = THREADS / 8, A_COPIES = BLOCK_M / A_ROWS;      // a pass of the block copies A_ROWS × 8 words of A …
constexpr int B_STEPS = THREADS / (BLOCK_N / 4), B_COPIES = BLOCK_K / B_STEPS;  // … and B_STEPS rows of B
static_assert(BLOCK_K % 8 == 0 && BLOCK_M % A_ROWS == 0 && BLOCK_K % B_STEPS == 0, "the copies must cover the tiles");

// Copy to shared memory in the background; with `inside` false, write zeros and read nothing.
__device__ __forceinline__ void copy_4_bytes(unsigned to, const float* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copy_16_bytes(unsigned to, const float* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// One thread's share of the copying: where it reads, where it writes. Rows and columns past the edge are moved onto
// the last one: what is computed from them is never stored. Past the end of k the copies write zeros.
struct Copier {
    const float* a[A_COPIES];
    const float* b;
    unsigned a_to, b_to;
    int a_step, b_step, b_column, n, k;
    bool vectors;

    __device__ __forceinline__ void copy(int stage, int first, bool whole) {
        unsigned to = stage * STAGE_WORDS * 4;
#pragma unroll
        for (int j = 0; j < BLOCK_K; j += 8)
#pragma unroll
            for (int i = 0; i < A_COPIES; ++i)
                copy_4_bytes(to + a_to + (j * A_PITCH + i * A_ROWS) * 4, a[i] + j, whole || first + a_step + j < k);
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            bool inside = whole || first + b_step + i * B_STEPS < k;
            unsigned at = to + b_to + i * B_STEPS * BLOCK_N * 4;
            const float* from = b + (size_t)i * B_STEPS * n;
            if (vectors) {
                copy_16_bytes(at, from, inside);
            } else {
                for (int j = 0; j < 4; ++j) copy_4_bytes(at + j * 4, from + j, inside && b_column + j < n);
            }
        }
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) a[i] += BLOCK_K;
        b += (size_t)BLOCK_K * n;
    }
};

template <int COUNT> __device__ __forceinline__ void read_quads(float (&to)[COUNT], const float* from, int apart) {
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) {
        float4 quad = *reinterpret_cast<const float4*>(from + i * apart);
        to[4 * i] = quad.x, to[4 * i + 1] = quad.y, to[4 * i + 2] = quad.z, to[4 * i + 3] = quad.w;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
matmul_vector_loads(const float* a, const float* b, float* c, int m, int n, int k) {
    extern __shared__ __align__(16) float tiles[];
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int first_row = blockIdx.y * BLOCK_M, first_column = blockIdx.x * BLOCK_N;

    // Lanes: 4 down, 8 across, the row taken from bits 1 and 4 of the lane's number: reads of A agree between lanes
    // that differ in bit 0, reads of B between lanes that differ in bit 1, so half a warp is served at once.
    int lane_row = (lane >> 1 & 1) | (lane >> 4 << 1), lane_column = (lane & 1) | (lane >> 1 & 6);
    int own_row = warp / (BLOCK_N / WARP_N) * WARP_M + lane_row * 4;
    int own_column = warp % (BLOCK_N / WARP_N) * WARP_N + lane_column * 4;

    Copier copier;
    unsigned base = (unsigned)__cvta_generic_to_shared(tiles);
    copier.n = n, copier.k = k;
    copier.vectors = n % 4 == 0 && (size_t)b % 16 == 0;
    copier.a_step = thread % 8;
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i)
        copier.a[i] = a + (size_t)min(first_row + thread / 8 + i * A_ROWS, m - 1) * k + copier.a_step;
    copier.a_to = base + (copier.a_step * A_PITCH + thread / 8) * 4;
    copier.b_step = thread / (BLOCK_N / 4);
    int column_in_tile = thread % (BLOCK_N / 4) * 4;
    copier.b_column = copier.vectors ? min(first_column + column_in_tile, n - 4) : first_column + column_in_tile;
    copier.b = b + (size_t)copier.b_step * n + copier.b_column;
    copier.b_to = base + (A_WORDS + copier.b_step * BLOCK_N + column_in_tile) * 4;

    int rounds = (k + BLOCK_K - 1) / BLOCK_K;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < rounds) copier.copy(i, i * BLOCK_K, (i + 1) * BLOCK_K <= k);
        close_group();
    }
    wait_for_groups<STAGES - 2>();
    __syncthreads();

    float sums[OWN_M][OWN_N] = {};
    float a_own[2][OWN_M], b_own[2][OWN_N];
    const float* a_tile = tiles + own_row;
    const float* b_tile = tiles + A_WORDS + own_column;
    read_quads(a_own[0], a_tile, 16);
    read_quads(b_own[0], b_tile, 32);

    int stage = 0, free_stage = STAGES - 1;
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int step = 0; step < BLOCK_K; ++step) {
            if (step == BLOCK_K - 1) {                       // the next tile must be here, and everybody done with this one
                wait_for_groups<STAGES - 2>();
                __syncthreads();
                stage = stage == STAGES - 1 ? 0 : stage + 1;
                a_tile = tiles + stage * STAGE_WORDS + own_row;
                b_tile = tiles + stage * STAGE_WORDS + A_WORDS + own_column;
            }
            int next = (step + 1) % BLOCK_K;                 // after the last round this reads a stale tile, and nobody uses it
            read_quads(a_own[(step + 1) % 2], a_tile + next * A_PITCH, 16);
            read_quads(b_own[(step + 1) % 2], b_tile + next * BLOCK_N, 32);
            if (step == 0) {
                int ahead = round + STAGES - 1;
                if ((ahead + 1) * BLOCK_K <= k) copier.copy(free_stage, 0, true);
                else if (ahead < rounds) copier.copy(free_stage, ahead * BLOCK_K, false);
                close_group();
                free_stage = free_stage == STAGES - 1 ? 0 : free_stage + 1;
            }
#pragma unroll
            for (int i = 0; i < OWN_M; ++i)
#pragma unroll
                for (int j = 0; j < OWN_N; ++j) sums[i][j] += a_own[step % 2][i] * b_own[step % 2][j];
        }
    }

    bool vectors = n % 4 == 0 && (size_t)c % 16 == 0;
#pragma unroll
    for (int i = 0; i < OWN_M; ++i) {
        int row = first_row + own_row + i / 4 * 16 + i % 4;
        if (row >= m) continue;
#pragma unroll
        for (int j = 0; j < OWN_N; j += 4) {
            int column = first_column + own_column + j * 8;
            float* to = c + (size_t)row * n + column;
            if (vectors) {
                if (column < n) *reinterpret_cast<float4*>(to) = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            } else {
#pragma unroll
                for (int l = 0; l < 4; ++l)
                    if (column + l < n) to[l] = sums[i][j + l];
            }
        }
    }
}
