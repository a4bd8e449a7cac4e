// y = x by the tensor memory accelerator: each block asks for one box of 8 rows and 32 columns, and writes out what lies
// inside the matrix. Only there to test tensor maps.
//
// nearpeak: kernel copy_box
// nearpeak: op copy
// nearpeak: precision fp32
// nearpeak: grid ceil(columns / 32), ceil(rows / 8)
// nearpeak: block 256
// nearpeak: args tensormap(x, 32, 8, none), y, rows, columns
// nearpeak: require columns % 4 == 0

struct __align__(64) TensorMap { char opaque[128]; };

extern "C" __global__ void copy_box(const __grid_constant__ TensorMap x, float* y, int rows, int columns) {
    __shared__ __align__(128) float box[8][32];
    __shared__ __align__(8) unsigned long long barrier;
    unsigned to = (unsigned)__cvta_generic_to_shared(box), arrived = (unsigned)__cvta_generic_to_shared(&barrier);
    int first_column = blockIdx.x * 32, first_row = blockIdx.y * 8;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrived) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(8 * 32 * 4) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(to), "l"(&x), "r"(first_column), "r"(first_row), "r"(arrived) : "memory");
    }
    __syncthreads();
    unsigned over;
    do {
        asm volatile("{ .reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"(arrived) : "memory");
    } while (!over);
    int row = threadIdx.x / 32, column = threadIdx.x % 32;
    if (first_row + row < rows && first_column + column < columns)
        y[(size_t)(first_row + row) * columns + first_column + column] = box[row][column];
}
