// Step 7: nobody waits. A block stays on its multiprocessor and works through many 128×256 tiles of C. One of its three
// warp groups, the producer, only orders copies (TMA: one thread asks for a whole swizzled tile); two consumers only multiply.
// They meet at barriers in shared memory: `full` (the bytes of a stage have arrived) and `empty` (all consumers are done with it).
// Two blocks form a cluster, one above the other: they need the same tile of B, so each loads half of it and sends it to both.
// Results go through shared memory, packed to bf16, and TMA stores them while the next tile is already being multiplied.
// Why it is faster: copies, products and stores overlap, and the second level cache is read less often.
// What still holds it back: power. With the matrix units always busy an H200 lowers its clock after some 60 ms.
//
// nearpeak: kernel matmul_pipelined
// nearpeak: op matmul_nt
// nearpeak: precision bf16
// nearpeak: grid sms // 2 * 2
// nearpeak: block 384
// nearpeak: shared 1024 + 4 * 49152 + 2 * 2 * 8192
// nearpeak: args tensormap(a, 64, 128, swizzle128), tensormap(b, 64, 128, swizzle128), tensormap(c, 64, 64, swizzle128), m, n, k
// nearpeak: require k % 8 == 0 and n % 8 == 0

#ifndef STAGES                        // tiles of A and B in shared memory at a time
#define STAGES 4
#endif
#ifndef C_BUFFERS                     // 64×64 pieces of C that a consumer may have on their way out
#define C_BUFFERS 2
#endif
#ifndef CLUSTER                       // blocks that share a tile of B: 1 or 2
#define CLUSTER 2
#endif
#ifndef BAND                          // clusters' tiles are taken down bands of so many rows, so that a wave is nearly square
#define BAND 8
#endif
#ifndef BEHIND                        // products still under way when the stage before is given back: 0 or 1
#define BEHIND 1
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
struct __align__(64) TensorMap { char opaque[128]; };   // CUtensorMap

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 64;
constexpr int CONSUMERS = TILE_M / 64;
constexpr int A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2, C_BYTES = 64 * 64 * 2;

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- barriers in shared memory -------------------------------------------------------------------------------------
__device__ __forceinline__ void start(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// At the same barrier in a block of the cluster. Of the narrow default scope: a wider one would add a fence to every round, and
// only copies and products, which are complete by then, touch what the barriers guard.
__device__ __forceinline__ void arrive_at(u32 barrier, u32 block) {
    asm volatile(
        "{ .reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {       // until the phase of this parity is over
    u32 over;
    do {
        asm volatile(
            "{ .reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p; }" : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    } while (!over);
}
__device__ __forceinline__ void wait_for_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---- copies by the tensor memory accelerator -----------------------------------------------------------------------
__device__ __forceinline__ void load(u32 to, const TensorMap& map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
__device__ __forceinline__ void load_for_cluster(u32 to, const TensorMap& map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
}
__device__ __forceinline__ void store(const TensorMap& map, u32 from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}

// ---- matrix units ----------------------------------------------------------------------------------------------------
__device__ __forceinline__ u64 describe(u32 address) {   // as in step 6
    return (u64)(address >> 4 & 0x3FFF) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
#define SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS16(i) SUMS4(i), SUMS4(i + 4), SUMS4(i + 8), SUMS4(i + 12)
#define SUMS64(i) SUMS16(i), SUMS16(i + 16), SUMS16(i + 32), SUMS16(i + 48)

// d (64×256, spread over the warp group) = A (64×16) · B (256×16)ᵀ, plus d where `add` is not 0; in the background.
__device__ __forceinline__ void multiply(float (&d)[128], u64 a, u64 b, int add) {
    asm volatile(
        "{ .reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1, 0, 0; }"
        : SUMS64(0), SUMS64(64)
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void wait_for_product_before() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void wait_for_products(float (&d)[128]) {   // naming d keeps the compiler from reading it earlier
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS64(0), SUMS64(64)::"memory");
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ void meet_in_group(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// ---- which tile comes when -------------------------------------------------------------------------------------------
struct Tiles {                        // in units of a cluster's tile: CLUSTER·128 rows × 256 columns
    int down, across;
    __device__ __forceinline__ Tiles(int m, int n)
        : down((m + CLUSTER * TILE_M - 1) / (CLUSTER * TILE_M)), across((n + TILE_N - 1) / TILE_N) {}
    __device__ __forceinline__ int count() const { return down * across; }
    __device__ __forceinline__ void place(int number, int& row, int& column) const {
        int band = number / (BAND * across), within = number % (BAND * across);
        int rows = min(BAND, down - band * BAND);
        row = band * BAND + within % rows;
        column = within / rows;
    }
};

struct Ring {                         // the stage in turn, and the parity of its barriers' phase
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(128 * (1 + CONSUMERS), 1)
matmul_pipelined(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
                 int m, int n, int k) {
    extern __shared__ char memory[];
    __shared__ u64 barriers[2 * STAGES];
    u32 a_tiles = (shared_address(memory) + 1023) / 1024 * 1024, b_tiles = a_tiles + STAGES * A_BYTES;
    u32 c_pieces = b_tiles + STAGES * B_BYTES, full = shared_address(barriers), empty = full + STAGES * 8;
    int block = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    int group = threadIdx.x / 128, rounds = (k + TILE_K - 1) / TILE_K;
    Tiles tiles(m, n);
    Ring ring;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            start(full + i * 8, 1);                       // the producer, and the bytes it announces
            start(empty + i * 8, CONSUMERS * CLUSTER);    // every consumer in the cluster: both halves of B go to both blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    wait_for_cluster();

    if (group == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x % 128 == 0) {
            for (int number = cluster; number < tiles.count(); number += clusters) {
                int row, column;
                tiles.place(number, row, column);
                row = (row * CLUSTER + block) * TILE_M, column *= TILE_N;
                for (int round = 0; round < rounds; ++round, ring.next()) {
                    u32 ready = full + ring.stage * 8, b_tile = b_tiles + ring.stage * B_BYTES;
                    wait(empty + ring.stage * 8, ring.parity ^ 1);      // passes at once in the first turn of the ring
                    arrive_and_expect(ready, A_BYTES + B_BYTES);
                    load(a_tiles + ring.stage * A_BYTES, a, round * TILE_K, row, ready);
                    if (CLUSTER == 2) {
                        load_for_cluster(b_tile + block * (B_BYTES / 2), b, round * TILE_K, column + block * (TILE_N / 2), ready);
                    } else {
                        load(b_tile, b, round * TILE_K, column, ready);
                        load(b_tile + B_BYTES / 2, b, round * TILE_K, column + TILE_N / 2, ready);
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
        u64 a_place = describe(a_tiles + group * 64 * 128), b_place = describe(b_tiles);
        u32 own_pieces = c_pieces + group * C_BUFFERS * C_BYTES;
        float sums[128];
        int row_in_piece = warp * 16 + lane % 16;          // where this lane's address for stmatrix points
        for (int number = cluster; number < tiles.count(); number += clusters) {
            int row, column;
            [[maybe_unused]] int before = 0;
            tiles.place(number, row, column);
            row = (row * CLUSTER + block) * TILE_M + group * 64, column *= TILE_N;
            for (int round = 0; round < rounds; ++round, ring.next()) {
                wait(full + ring.stage * 8, ring.parity);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                u64 a_now = a_place + ring.stage * (A_BYTES / 16), b_now = b_place + ring.stage * (B_BYTES / 16);
#pragma unroll
                for (int i = 0; i < TILE_K / 16; ++i) multiply(sums, a_now + i * 2, b_now + i * 2, round + i);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#if BEHIND
                wait_for_product_before();
                if (round > 0 && thread < CLUSTER) arrive_at(empty + before * 8, thread);
                before = ring.stage;
            }
            wait_for_products(sums);
            if (thread < CLUSTER) arrive_at(empty + before * 8, thread);
#else
                wait_for_products(sums);
                if (thread < CLUSTER) arrive_at(empty + ring.stage * 8, thread);
            }
#endif

            // Out: four pieces of 64×64, each packed, written to shared memory in the swizzle that TMA undoes, and sent.
#pragma unroll
            for (int piece = 0; piece < TILE_N / 64; ++piece) {
                u32 buffer = own_pieces + piece % C_BUFFERS * C_BYTES;
                if (thread == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(C_BUFFERS - 1) : "memory");
                meet_in_group(group);                      // the buffer's last piece has been read
#pragma unroll
                for (int i = 0; i < 4; ++i) {              // 16 columns at a time: four 8×8 matrices for a warp
                    const float* d = sums + piece * 32 + i * 8;
                    u32 chunk = i * 2 + lane / 16;
                    u32 to = buffer + row_in_piece * 128 + (chunk ^ row_in_piece % 8) * 16;
                    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};"
                                 ::"r"(to), "r"(pack(d[0], d[1])), "r"(pack(d[2], d[3])), "r"(pack(d[4], d[5])), "r"(pack(d[6], d[7]))
                                 : "memory");
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                meet_in_group(group);
                if (thread == 0) store(c, buffer, column + piece * 64, row);
            }
        }
        if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    wait_for_cluster();                                    // a block must not leave while its neighbour still writes to it
}
