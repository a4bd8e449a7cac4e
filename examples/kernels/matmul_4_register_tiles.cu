// Step 4: register tiles. A thread computes 8×8 outputs: for each step along k it reads 8 numbers of A and 8 of B
// from shared memory into registers and does 64 multiply-adds with them. A block of 256 threads covers 128×128.
// Why it is faster: 16 reads of shared memory serve 64 multiply-adds; in step 3 they served 8.
// What still holds it back: each read moves one word where an instruction could move four, several threads of a
// warp ask the same bank of shared memory for different words, and nobody multiplies while a tile is on its way.
//
// nearpeak: kernel matmul_register_tiles
// nearpeak: op matmul
// nearpeak: precision fp32
// nearpeak: grid ceil(n / 128), ceil(m / 128)
// nearpeak: block 256
// nearpeak: shared 0
// nearpeak: args a, b, c, m, n, k

constexpr int TILE = 128;   // rows and columns of C for a block
constexpr int DEPTH = 8;    // steps along k for one tile
constexpr int OWN = 8;      // rows and columns of C for a thread
constexpr int THREADS = (TILE / OWN) * (TILE / OWN);

extern "C" __global__ void __launch_bounds__(THREADS)
matmul_register_tiles(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][DEPTH];
    __shared__ float b_tile[DEPTH][TILE];
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    int own_row = threadIdx.x / (TILE / OWN) * OWN, own_column = threadIdx.x % (TILE / OWN) * OWN;

    float sums[OWN][OWN] = {};
    for (int first = 0; first < k; first += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            int row = i / DEPTH, step = i % DEPTH;
            bool inside = first_row + row < m && first + step < k;
            a_tile[row][step] = inside ? a[(size_t)(first_row + row) * k + first + step] : 0.0f;
        }
        for (int i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
            int step = i / TILE, column = i % TILE;
            bool inside = first_column + column < n && first + step < k;
            b_tile[step][column] = inside ? b[(size_t)(first + step) * n + first_column + column] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int step = 0; step < DEPTH; ++step) {
            float a_own[OWN], b_own[OWN];
#pragma unroll
            for (int i = 0; i < OWN; ++i) a_own[i] = a_tile[own_row + i][step];
#pragma unroll
            for (int j = 0; j < OWN; ++j) b_own[j] = b_tile[step][own_column + j];
#pragma unroll
            for (int i = 0; i < OWN; ++i)
#pragma unroll
                for (int j = 0; j < OWN; ++j) sums[i][j] += a_own[i] * b_own[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i)
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            int row = first_row + own_row + i, column = first_column + own_column + j;
            if (row < m && column < n) c[(size_t)row * n + column] = sums[i][j];
        }
}
