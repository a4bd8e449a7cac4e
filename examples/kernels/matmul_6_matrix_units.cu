// Step 6: matrix units (Hopper's wgmma), bf16 inputs, sums in fp32, and B stored as a linear layer stores its weights:
// (n, k), so C = A·Bᵀ. A warp group (128 threads) orders a 64×128×16 product with one instruction; the units read
// A and B from shared memory by themselves. They want the tiles in a "128-byte swizzle": row r of a tile takes 128
// bytes, and its 16-byte chunk number i lies at place i XOR (r mod 8), so that 8 rows of one chunk meet 8 different groups of banks.
// Why it is faster: one instruction does 131 072 multiply-adds, a thread's fused multiply-add one.
// What still holds it back: load, wait, multiply, wait. The units idle while a tile is loaded, but for what the
// second block on the same multiprocessor fills in.
//
// nearpeak: kernel matmul_matrix_units
// nearpeak: op matmul_nt
// nearpeak: precision bf16
// nearpeak: grid ceil(n / 128), ceil(m / 128)
// nearpeak: block 256
// nearpeak: shared 1024 + 2 * 128 * 128
// nearpeak: args a, b, c, m, n, k

typedef unsigned short bf16;          // the bit pattern: the upper half of an fp32
typedef unsigned long long u64;

constexpr int TILE = 128;             // rows and columns of C for a block: two warp groups, 64 rows each
constexpr int DEPTH = 64;             // steps along k for one tile: 64 bf16 are the 128 bytes of the swizzle
constexpr int THREADS = 256;

// Where a matrix lies in shared memory: address ÷ 16, 1024 bytes ÷ 16 from 8 rows to the next 8, 128-byte swizzle.
__device__ __forceinline__ u64 describe(unsigned address) {
    return (u64)(address >> 4 & 0x3FFF) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS16(i) SUMS4(i), SUMS4(i + 4), SUMS4(i + 8), SUMS4(i + 12)

// d (64×128, spread over the warp group) += A (64×16) · B (128×16)ᵀ, in the background.
__device__ __forceinline__ void multiply(float (&d)[64], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48)
        : "l"(a), "l"(b));
}

__device__ __forceinline__ void wait_for_products(float (&d)[64]) {   // naming d keeps the compiler from reading it earlier
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48)::"memory");
}

__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Copy TILE rows × DEPTH columns of x (rows, k), from (first_row, first) on, into a swizzled tile; zeros outside of x.
__device__ __forceinline__ void load_tile(char* tile, const bf16* x, int first_row, int rows, int first, int k) {
    bool vectors = k % 8 == 0 && (size_t)x % 16 == 0;
    int chunk = threadIdx.x % 8, column = first + chunk * 8;
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / 8) {
        int row = i + threadIdx.x / 8;
        bool inside = first_row + row < rows;
        const bf16* from = x + (size_t)(first_row + row) * k + column;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (vectors) {
            if (inside && column < k) words = *reinterpret_cast<const uint4*>(from);
        } else {
            unsigned half[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) half[j] = inside && column + j < k ? from[j] : 0;
            words = make_uint4(half[0] | half[1] << 16, half[2] | half[3] << 16, half[4] | half[5] << 16, half[6] | half[7] << 16);
        }
        *reinterpret_cast<uint4*>(tile + row * 128 + (chunk ^ row % 8) * 16) = words;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
matmul_matrix_units(const bf16* a, const bf16* b, bf16* c, int m, int n, int k) {
    extern __shared__ char memory[];
    char* a_tile = memory + (1024 - (unsigned)__cvta_generic_to_shared(memory) % 1024) % 1024;   // where the swizzle's pattern begins
    char* b_tile = a_tile + TILE * 128;
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    u64 a_place = describe((unsigned)__cvta_generic_to_shared(a_tile) + group * 64 * 128);
    u64 b_place = describe((unsigned)__cvta_generic_to_shared(b_tile));

    float sums[64] = {};
    for (int first = 0; first < k; first += DEPTH) {
        load_tile(a_tile, a, first_row, m, first, k);
        load_tile(b_tile, b, first_column, n, first, k);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the units shall see what the threads have written
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < DEPTH / 16; ++i) multiply(sums, a_place + i * 2, b_place + i * 2);   // 16 bf16 = 2 · 16 bytes
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        wait_for_products(sums);
        __syncthreads();
    }

    // Each lane holds, for every 8 columns, two neighbours in one row and two in the row 8 below.
    bool pairs = n % 2 == 0 && (size_t)c % 4 == 0;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        int row = first_row + group * 64 + warp * 16 + lane / 4 + (i / 2 % 2) * 8;
        int column = first_column + i / 4 * 8 + lane % 4 * 2;
        unsigned both = pack(sums[i], sums[i + 1]);
        if (row >= m || column >= n) continue;
        bf16* to = c + (size_t)row * n + column;
        if (pairs) {
            *reinterpret_cast<unsigned*>(to) = both;
        } else {
            to[0] = (bf16)both;
            if (column + 1 < n) to[1] = (bf16)(both >> 16);
        }
    }
}
