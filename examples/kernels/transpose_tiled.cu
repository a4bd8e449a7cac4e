// y = xᵀ through shared memory: a block reads a 32×32 tile row by row and writes it column by column, so that both
// the reads and the writes of a warp are whole runs of 128 bytes. The turn happens on the chip.
// A tile row is 33 words long: with 32, a column would lie in one bank of shared memory, and reading it take 32 turns.
// What still holds it back: little. Reading and writing memory take turns, and ragged edges fill blocks in part.
//
// nearpeak: kernel transpose_tiled
// nearpeak: op transpose
// nearpeak: precision fp32
// nearpeak: grid ceil(columns / 32), ceil(rows / 32)
// nearpeak: block 32, 8
// nearpeak: shared 0
// nearpeak: args x, y, rows, columns

constexpr int TILE = 32;

extern "C" __global__ void transpose_tiled(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[TILE][TILE + 1];
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
#pragma unroll
    for (int i = threadIdx.y; i < TILE; i += 8) {
        int row = first_row + i, column = first_column + threadIdx.x;
        if (row < rows && column < columns) tile[i][threadIdx.x] = x[(size_t)row * columns + column];
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.y; i < TILE; i += 8) {
        int row = first_row + threadIdx.x, column = first_column + i;
        if (row < rows && column < columns) y[(size_t)column * rows + row] = tile[threadIdx.x][i];
    }
}
