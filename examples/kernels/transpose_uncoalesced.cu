// y = xᵀ, the obvious way. Reading is fine: a warp reads along a row of x. But it writes down a column of y: its 32
// words go to 32 rows, so each lands in a memory sector (32 bytes) of its own, of which it fills an eighth.
// What holds it back: the writes. transpose_tiled.cu turns the tile round on the chip instead.
//
// nearpeak: kernel transpose_uncoalesced
// nearpeak: op transpose
// nearpeak: precision fp32
// nearpeak: grid ceil(columns / 32), ceil(rows / 8)
// nearpeak: block 32, 8
// nearpeak: shared 0
// nearpeak: args x, y, rows, columns

extern "C" __global__ void transpose_uncoalesced(const float* x, float* y, int rows, int columns) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && column < columns) y[(size_t)column * rows + row] = x[(size_t)row * columns + column];
}
