// Matrix multiplication in OpenCL, for any device that has it: a GPU of any maker, or the CPU. A work-group of 16×16
// work-items computes 64×64 outputs, 4×4 a work-item, from tiles in local memory (the shared memory of CUDA).
// Why it is faster than one output a work-item: a number brought into local memory is used 64 times, one read into a register 4 times.
// What still holds it back: single-word loads, and no copy runs while the group multiplies. It is portable, not tuned.
//
// nearpeak: kernel matmul
// nearpeak: op matmul
// nearpeak: precision fp32
// nearpeak: grid ceil(n / 64), ceil(m / 64)
// nearpeak: block 16, 16
// nearpeak: shared 0
// nearpeak: args a, b, c, m, n, k

#define GROUP 16                    // work-items along each side
#define OWN 4                       // outputs of a work-item along each side, GROUP apart so that neighbours read neighbours
#define TILE (GROUP * OWN)
#define DEPTH 16                    // steps along k for one tile

__kernel __attribute__((reqd_work_group_size(GROUP, GROUP, 1)))
void matmul(__global const float* a, __global const float* b, __global float* c, int m, int n, int k) {
    __local float a_tile[DEPTH][TILE + 1];          // transposed; the extra word keeps a column out of one bank
    __local float b_tile[DEPTH][TILE];
    int x = get_local_id(0), y = get_local_id(1);
    int first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;

    float sums[OWN][OWN] = {{0.0f}};
    for (int first = 0; first < k; first += DEPTH) {
        for (int i = 0; i < OWN; ++i) {
            int row = first_row + y + i * GROUP, column = first_column + x + i * GROUP;
            a_tile[x][y + i * GROUP] = row < m && first + x < k ? a[(size_t)row * k + first + x] : 0.0f;
            b_tile[y][x + i * GROUP] = column < n && first + y < k ? b[(size_t)(first + y) * n + column] : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int step = 0; step < DEPTH; ++step) {
            float a_own[OWN], b_own[OWN];
            for (int i = 0; i < OWN; ++i) a_own[i] = a_tile[step][y + i * GROUP];
            for (int j = 0; j < OWN; ++j) b_own[j] = b_tile[step][x + j * GROUP];
            for (int i = 0; i < OWN; ++i)
                for (int j = 0; j < OWN; ++j) sums[i][j] = fma(a_own[i], b_own[j], sums[i][j]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < OWN; ++i)
        for (int j = 0; j < OWN; ++j) {
            int row = first_row + y + i * GROUP, column = first_column + x + j * GROUP;
            if (row < m && column < n) c[(size_t)row * n + column] = sums[i][j];
        }
}
