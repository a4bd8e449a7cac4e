"""CUDA source: compiled everywhere, launched by a fake driver here and by the real one where there is a GPU."""

import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nearpeak.kernelcheck import cubin, cuda_compile
from nearpeak.kernelcheck.c_functions import find_functions
from nearpeak.kernelcheck.cubin import Resources
from nearpeak.kernelcheck.cuda_driver import DriverError, check_tensor_map
from nearpeak.kernelcheck.cuda_kernel import CudaKernel
from nearpeak.kernelcheck.declaration import split
from nearpeak.kernelcheck.kernel import Declaration
from nearpeak.kernelcheck.kernel_failed import KernelFailed
from nearpeak.kernelcheck.launch import Geometry, TensorMapRequest
from nearpeak.kernelcheck.load import load_kernel
from nearpeak.kernelcheck.source import Source, read_source
from nearpeak.records.errors import UserError

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples" / "kernels"
COPY_BOX = HERE / "kernels" / "copy_box.cu"
CPU = torch.device("cpu")
PLAIN = {"a": torch.ones(33, 17), "b": torch.ones(17, 65), "c": torch.zeros(33, 65)}
SIZES = {"m": 33, "n": 65, "k": 17}


class FakeDriver:
    """Keeps what it is given in place of launching it."""

    shared_limit = 232448

    def __init__(self, resources: Resources | None = None, error: DriverError | None = None) -> None:
        self.resources = resources or Resources(32, 0, 0, 1024, "driver")
        self.error = error
        self.launches: list[tuple[Geometry, list[bytes], int]] = []
        self.allowed: list[int] = []
        self.maps: list[TensorMapRequest] = []

    def load(self, image: bytes, symbol: str) -> tuple[object, Resources]:
        assert image[:4] == b"\x7fELF"
        return symbol, self.resources

    def allow_shared(self, function: object, size: int) -> None:
        self.allowed.append(size)

    def prepared(self, function: object, shape: Geometry, packed: Sequence[bytes]):
        def launch(stream: int) -> None:
            if self.error is not None:
                raise self.error
            self.launches.append((shape, list(packed), stream))

        return launch

    def synchronize(self) -> None:
        if self.error is not None:
            raise self.error

    def tensor_map(self, tensor: torch.Tensor, request: TensorMapRequest) -> bytes:
        check_tensor_map(tensor, request)
        self.maps.append(request)
        return bytes(128)


def source_of(text: str, name: str = "x.cu") -> Source:
    functions = find_functions(text, "CUDA")
    return Source(Path(name), text, "CUDA", functions[0].name, (), functions)


def kernel_of(text: str, args: str, driver: FakeDriver | None = None, **keys) -> CudaKernel:
    source = source_of(text)
    given = {"grid": ("1",), "block": ("32",), "args": split(args) if args else (), **keys}
    return CudaKernel(source, Declaration(kernel=source.name or "", **given), CPU, driver=driver or FakeDriver())


# ---- compiling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*sorted(EXAMPLES.glob("*.cu")), COPY_BOX], ids=lambda path: path.name)
def test_every_example_compiles_and_tells_what_it_takes(path: Path) -> None:
    text = path.read_text()
    source = source_of(text, path.name)
    compiled = cuda_compile.compile_to_cubin(source, source.name or "")
    assert compiled.arch == ("sm_90a" if re.search("wgmma|setmaxnreg", text) else "sm_90")
    assert compiled.symbol == source.name
    resources = cubin.resources(compiled.image, compiled.symbol)
    assert resources.reason is None
    assert 8 <= (resources.registers or 0) <= 255
    assert resources.local_bytes == 0
    sizes = cubin.parameter_sizes(compiled.image, compiled.symbol)
    assert sizes is not None
    for parameter, size in zip(source.functions[0].parameters, sizes, strict=True):
        assert size == (8 if parameter.pointer else 4 if parameter.type == "int" else 128)
    ptx = cuda_compile.compile_to_ptx(source, source.name or "")
    assert f".entry {source.name}(" in ptx
    assert ".loc" in ptx


SHARED = """
extern "C" __global__ void __launch_bounds__(96) f(float* a, int n) {
    __shared__ float tile[100];
    float spilled[64] = {};
    for (int i = 0; i < 64; ++i) spilled[i * n % 64] += a[i];
    tile[threadIdx.x] = spilled[n];
    __syncthreads();
    a[threadIdx.x] = tile[n];
}
"""


def test_resources_of_the_cubin_agree_with_cuobjdump(tmp_path: Path) -> None:
    compiled = cuda_compile.compile_to_cubin(source_of(SHARED), "f")
    resources = cubin.resources(compiled.image, "f")
    assert (resources.shared_bytes, resources.local_bytes, resources.max_threads) == (400, 256, 96)
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    (tmp_path / "f.cubin").write_bytes(compiled.image)
    printed = subprocess.run([tool, "-res-usage", tmp_path / "f.cubin"], capture_output=True, text=True).stdout
    assert f"REG:{resources.registers} STACK:{resources.local_bytes} SHARED:{400 + cubin.RESERVED_SHARED}" in printed


def test_an_unreadable_image_gives_a_reason() -> None:
    resources = cubin.resources(b"no ELF file", "f")
    assert resources.registers is None
    assert "cannot be read" in (resources.reason or "")


def test_mangled_names_namespaces_and_templates() -> None:
    text = "namespace a { template <class T> __global__ void f(T* x) { *x = 1; } __global__ void g(int n) {} }"
    source = source_of(text)
    assert cuda_compile.compile_to_cubin(source, "g").symbol == "_ZN1a1gEi"
    assert "a1f" in cuda_compile.compile_to_cubin(source, "f<float>").symbol
    with pytest.raises(UserError, match="is a template; name an instance, such as 'f<float>'"):
        cuda_compile.compile_to_cubin(source, "f")


def test_a_compile_error_names_the_line() -> None:
    with pytest.raises(UserError, match=r'^x\.cu:3: error: identifier "oops" is undefined') as error:
        cuda_compile.compile_to_cubin(source_of("\n__global__ void f(int* a) {\n  *a = oops;\n}"), "f")
    assert "*a = oops" in str(error.value)


def test_a_compile_error_in_a_python_string_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text('import cupy\n\ncode = """\n__global__ void f(int* a) {\n  *a = oops;\n}"""\n')
    with pytest.raises(UserError, match=r'x\.py:5: error: identifier "oops"'):
        load_kernel(str(path), {}, CPU)


def test_usual_headers_and_host_code() -> None:
    text = "#include <cuda_runtime.h>\n#include <cstdint>\n#include <stdio.h>\n"
    text += 'extern "C" __global__ void f(uint32_t* a) { *a = 1; printf("x"); }\n'
    assert cuda_compile.compile_to_cubin(source_of(text), "f").symbol == "f"
    with pytest.raises(UserError, match="Only device code is compiled"):
        cuda_compile.compile_to_cubin(source_of(text + "int main() { void* p; cudaMalloc(&p, 4); }"), "f")
    with pytest.raises(UserError, match=r"x\.cu:1: .*cannot open source file(.|\n)*CUDA_HOME"):
        cuda_compile.compile_to_cubin(source_of("#include <nowhere.h>\n__global__ void f() {}"), "f")


def test_half_precision_headers_are_found() -> None:
    if not cuda_compile.include_folders():
        pytest.skip("no CUDA headers on this machine")
    text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    text += "__global__ void f(__half* a, __nv_bfloat16* b) { *a = __float2half(__bfloat162float(*b)); }"
    assert cuda_compile.compile_to_cubin(source_of(text), "f").symbol


@pytest.mark.parametrize(
    ("text", "asked", "device", "arch"),
    [
        ("", None, None, "sm_90"),
        ("wgmma", None, None, "sm_90a"),
        ("setmaxnreg", None, "sm_90", "sm_90a"),
        ("wgmma", None, "sm_80", "sm_80"),
        ("tcgen05", None, "sm_100", "sm_100a"),
        ("wgmma", "sm_90", "sm_80", "sm_90"),
        ("", None, "sm_89", "sm_89"),
    ],
)
def test_architectures(text: str, asked: str | None, device: str | None, arch: str) -> None:
    assert cuda_compile.choose_arch(text, asked, device) == arch


def test_an_unknown_architecture() -> None:
    with pytest.raises(UserError, match="write sm_80"):
        cuda_compile.choose_arch("", "hopper", None)


def test_without_nvrtc_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda.bindings.nvrtc", "cuda.nvrtc"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"pip install cuda-bindings"):
        cuda_compile.compile_to_cubin(source_of("__global__ void f() {}"), "f")


# ---- launching ----------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_compiles_and_refuses_to_run() -> None:
    kernel = load_kernel(str(EXAMPLES / "matmul_1_plain.cu"), {}, CPU)
    assert kernel.language == "CUDA"
    with pytest.raises(UserError, match="takes an NVIDIA GPU"):
        kernel.bind(PLAIN, SIZES)


def test_what_is_launched() -> None:
    source = read_source(str(EXAMPLES / "matmul_1_plain.cu"))
    driver = FakeDriver()
    call = CudaKernel(source, source.declarations[0], CPU, driver=driver).bind(PLAIN, SIZES)
    call.run()
    shape, packed, stream = driver.launches[0]
    assert shape == Geometry((3, 5, 1), (16, 16, 1), 0)
    assert stream == 0
    assert packed == [struct.pack("Q", PLAIN[name].data_ptr()) for name in "abc"] + [
        struct.pack("i", SIZES[name]) for name in "mnk"
    ]
    assert call.outputs()["c"] is PLAIN["c"]
    assert call.seconds(3) is None


def test_numbers_are_packed_as_their_parameters() -> None:
    text = """typedef long long index; enum Mode { ZERO, ONE };
    __global__ void f(float* a, int i, unsigned u, long long l, size_t s, float x, double y, const short h, index t,
                      bool b, Mode e) {}"""
    driver = FakeDriver()
    kernel = kernel_of(text, "a, -m, n, m * n, n, m, n, m, n, 1, 1", driver)
    kernel.bind({"a": torch.zeros(4)}, {"m": 3, "n": 7}).run()
    values = (("i", -3), ("I", 7), ("q", 21), ("Q", 7), ("f", 3), ("d", 7), ("h", 3), ("q", 7), ("?", 1), ("i", 1))
    assert driver.launches[0][1][1:] == [struct.pack("=" + letter, value) for letter, value in values]


@pytest.mark.parametrize(
    ("parameters", "args", "message"),
    [
        ("float* a, int n", "a", r"takes 2 arguments, the declaration names 1: a"),
        ("float* a, int n", "a, n, n", r"f\(float\* a, int n\) takes 2 arguments, the declaration names 3"),
        ("float* a, int n", "n, a", "'float[*] a' of f takes an address, 'n' is a number"),
        ("float* a, int n", "a, a", "'int n' of f takes no address, 'a' is a tensor"),
        ("float* a, int n", "a, q", "argument 'q': .*no size of this op; its sizes: m, n, sms; its tensors: a"),
        ("double* a, int n", "a, n", "takes float64, tensor 'a' holds float32"),
        ("float* a, int n", "a, n * 2000000000", "cannot hold 14000000000"),
        ("float* a, unsigned n", "a, -n", "cannot hold -7"),
        ("float* a, int n", "tensormap(a, 4, 4), n", "a tensor map is passed as a value"),
        ("float* a, int n", "tensormap(b, 4, 4), n", "names no tensor of this op; its tensors: a"),
        ("float* a, int n", "tensormap(a), n", "a tensor map is tensormap"),
        ("float* a, int n", "tensormap(a, 4, 4, swizzle12), n", "one of none, swizzle32"),
        ("struct P p, int n", "n, n", "does not know the type 'struct P'"),
    ],
)
def test_arguments_that_do_not_fit(parameters: str, args: str, message: str) -> None:
    text = f"struct P {{ int a, b, c; }};\n__global__ void f({parameters}) {{}}"
    kernel = kernel_of(text, args)
    with pytest.raises(UserError, match=message):
        kernel.bind({"a": torch.zeros(4, 4)}, {"m": 3, "n": 7})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"block": ("1025",)}, "block.x is 1025"),
        ({"block": ("64", "32")}, "64 × 32 × 1 = 2048 threads; at most 1024"),
        ({"block": ("1", "1", "65")}, "block.z is 65"),
        ({"block": ()}, "declares no block; add the line '// nearpeak: block 16, 16' or give --block"),
        ({"grid": ()}, "declares no grid"),
        ({"grid": ("m - 3",)}, r"grid.x is 0 \('m - 3', m = 3\)"),
        ({"grid": ("1", "65536")}, "grid.y is 65536"),
        ({"shared": "300000"}, "300000 bytes of dynamic and 0 of static shared memory; a block of this GPU has 232448"),
        ({"shared": "-4"}, "is -4 bytes"),
        ({"require": "m % 2 == 0"}, "requires m % 2 == 0; here m = 3"),
        ({}, r"declares no args; name the op's tensors and sizes in the order of f\(float\* a\)"),
    ],
)
def test_geometry_that_no_gpu_takes(keys: dict, message: str) -> None:
    kernel = kernel_of("__global__ void f(float* a) {}", "" if "args" in message else "a", **keys)
    with pytest.raises(UserError, match=message):
        kernel.bind({"a": torch.zeros(4)}, {"m": 3})


def test_a_block_larger_than_the_registers_allow() -> None:
    driver = FakeDriver(Resources(255, 0, 0, 256, "driver"))
    with pytest.raises(UserError, match="at most 256 \\(255 registers a thread"):
        kernel_of("__global__ void f(float* a) {}", "a", driver, block=("512",)).bind({"a": torch.zeros(4)}, {})


def test_much_dynamic_shared_memory_is_asked_for() -> None:
    driver = FakeDriver()
    kernel_of("__global__ void f(float* a) {}", "a", driver, shared="100 * 1024").bind({"a": torch.zeros(4)}, {})
    assert driver.allowed == [102400]


def test_tensor_maps() -> None:
    source = read_source(str(COPY_BOX))
    driver = FakeDriver()
    kernel = CudaKernel(source, source.declarations[0], CPU, driver=driver)
    kernel.bind({"x": torch.zeros(5, 36), "y": torch.zeros(5, 36)}, {"rows": 5, "columns": 36}).run()
    assert driver.maps == [TensorMapRequest("x", 32, 8, "none")]
    assert [len(data) for data in driver.launches[0][1]] == [128, 8, 4, 4]


@pytest.mark.parametrize(
    ("tensor", "request_", "message"),
    [
        (torch.zeros(4), TensorMapRequest("x", 4, 4, "none"), "no row-major matrix"),
        (torch.zeros(4, 8).T, TensorMapRequest("x", 4, 4, "none"), "no row-major matrix"),
        (torch.zeros(4, 5), TensorMapRequest("x", 4, 4, "none"), "rows are 20 bytes"),
        (torch.zeros(4, 8), TensorMapRequest("x", 257, 4, "none"), "257 × 4; each side is 1 to 256"),
        (torch.zeros(4, 8), TensorMapRequest("x", 64, 4, "swizzle128"), "256 bytes is wider than swizzle128"),
        (torch.zeros(4, 8), TensorMapRequest("x", 3, 4, "none"), "box row is 12 bytes"),
        (torch.zeros(4, 8, dtype=torch.bool), TensorMapRequest("x", 4, 4, "none"), "no tensor map holds"),
    ],
)
def test_tensor_maps_that_the_hardware_refuses(tensor: torch.Tensor, request_: TensorMapRequest, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_tensor_map(tensor, request_)


def test_errors_of_the_driver() -> None:
    text = "__global__ void f(float* a) {}"
    broken = FakeDriver(error=DriverError("cuCtxSynchronize", 700, "an illegal memory access was encountered"))
    call = kernel_of(text, "a", broken).bind({"a": torch.zeros(4)}, {})
    with pytest.raises(
        KernelFailed, match=r"'f' broke: an illegal .*\(700\): it reads or writes outside.*is lost"
    ) as error:
        call.outputs()
    assert error.value.context_lost
    refused = FakeDriver(error=DriverError("cuLaunchKernel", 701, "too many resources requested for launch"))
    with pytest.raises(UserError, match="cannot be launched: cuLaunchKernel: too many resources"):
        kernel_of(text, "a", refused).bind({"a": torch.zeros(4)}, {}).run()


# ---- on a GPU -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["matmul_1_plain", "matmul_4_register_tiles", "matmul_5_vector_loads"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (33, 65, 17), (300, 520, 200)])
def test_products_are_right_on_a_gpu(name: str, m: int, n: int, k: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    kernel = load_kernel(str(EXAMPLES / f"{name}.cu"), {}, device)
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    c = torch.full((m, n), float("nan"), device=device)
    call = kernel.bind({"a": a, "b": b, "c": c}, {"m": m, "n": n, "k": k})
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        call.run()
    right = a.double() @ b.double()
    assert ((call.outputs()["c"].double() - right).norm() / right.norm()).item() < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [(8, 32), (1, 4), (77, 140)])
def test_a_tensor_map_on_a_gpu(rows: int, columns: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.randn(rows, columns, device=device)
    y = torch.full_like(x, float("nan"))
    call = load_kernel(str(COPY_BOX), {}, device).bind({"x": x, "y": y}, {"rows": rows, "columns": columns})
    call.run()
    assert torch.equal(call.outputs()["y"], x)


@pytest.mark.gpu
def test_the_pipelined_product_on_a_gpu() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    m, n, k = 300, 520, 200
    a, b = (torch.randn(rows, k, device=device).bfloat16() for rows in (m, n))
    c = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)
    kernel = load_kernel(str(EXAMPLES / "matmul_7_pipelined.cu"), {}, device)
    call = kernel.bind({"a": a, "b": b, "c": c}, {"m": m, "n": n, "k": k})
    call.run()
    right = a.double() @ b.double().T
    assert ((call.outputs()["c"].double() - right).norm() / right.norm()).item() < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.cu")), ids=lambda path: path.name)
def test_the_driver_and_the_cubin_agree(path: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    source = source_of(path.read_text(), path.name)
    kernel = CudaKernel(source, Declaration(kernel=source.name or ""), device)
    read = cubin.resources(kernel.compiled.image, kernel.compiled.symbol)
    driver = kernel.resources
    assert (driver.registers, driver.local_bytes, driver.shared_bytes, driver.max_threads) == (
        read.registers,
        read.local_bytes,
        read.shared_bytes,
        read.max_threads,
    )


BREAKING = """
import sys, torch
from nearpeak.kernelcheck.kernel_failed import KernelFailed
from nearpeak.kernelcheck.load import load_kernel
flags = {"grid": "1", "block": "32", "args": "a, n"}
device = torch.device("cuda", torch.cuda.current_device())
call = load_kernel(sys.argv[1], flags, device).bind({"a": torch.zeros(4, device=device)}, {"n": 1 << 30})
try:
    call.run()
    call.outputs()
except KernelFailed as error:
    print(error.context_lost, error)
"""


@pytest.mark.gpu
def test_an_illegal_address_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "x.cu"
    path.write_text("__global__ void f(float* a, int n) { a[(long long)n * 1000 + threadIdx.x] = 1; }")
    done = subprocess.run([sys.executable, "-c", BREAKING, str(path)], capture_output=True, text=True)
    assert done.stdout.startswith("True kernel 'f' broke"), done.stderr
    assert "outside of its tensors" in done.stdout
