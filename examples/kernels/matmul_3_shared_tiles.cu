// Step 3: shared-memory tiles. The 32×32 threads of a block fetch one tile of A and one of B together, each thread
// one number of each, and then all of them multiply from shared memory, which is on the chip.
// Why it is faster: a number fetched from global memory once is used 32 times.
// What still holds it back: every multiply-add needs two reads of shared memory, which delivers 32 words a clock while the
// multipliers would take 256; and all threads wait at two barriers for every tile.
//
// nearpeak: kernel matmul_shared_tiles
// nearpeak: op matmul
// nearpeak: precision fp32
// nearpeak: grid ceil(n / 32), ceil(m / 32)
// nearpeak: block 32, 32
// nearpeak: shared 0
// nearpeak: args a, b, c, m, n, k

constexpr int TILE = 32;

extern "C" __global__ void matmul_shared_tiles(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int first = 0; first < k; first += TILE) {
        // What lies outside the matrices counts as zero, so a ragged edge needs no other care.
        a_tile[y][x] = row < m && first + x < k ? a[(size_t)row * k + first + x] : 0.0f;
        b_tile[y][x] = column < n && first + y < k ? b[(size_t)(first + y) * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
