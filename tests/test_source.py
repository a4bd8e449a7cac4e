"""FILE[:NAME] → text, language and kernels, read and never executed."""

from pathlib import Path

import pytest

from nearpeak.kernelcheck.c_functions import blank, find_functions, typedefs
from nearpeak.kernelcheck.source import LARGEST, read_source, split_name
from nearpeak.records.errors import UserError

EXAMPLES = Path(__file__).parent.parent / "examples" / "kernels"
CUDA = r"""
// __global__ void in_a_comment(int a) {}
/* __global__ void in_another(int a) {} */
const char* text = "__global__ void in_a_string(int a) {}";
const char* raw = R"x(
__global__ void in_a_raw_string(int a) {} " )x";
int big = 1'000'000;
__global__ void prototype(float* a);
typedef unsigned int u32;
using index = long long;
extern "C" __global__ void __launch_bounds__(256, 2)
first(const float* __restrict__ a, float const *b, float c[], const u32 n = 3, index, struct P<1, 2> p) {
}
namespace outer { namespace { int x; }
namespace inner {
template <typename T, int N> static __global__ void MACRO(1) second(T* a, void (*f)(int, int)) { if (a) { } }
} }
__global__ void third(void) { }
"""


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_functions_and_parameters() -> None:
    first, second, third = find_functions(CUDA, "CUDA")
    assert (first.name, first.line, first.template) == ("first", 12, False)
    assert [(p.name, p.pointer, p.const) for p in first.parameters] == [
        ("a", True, True),
        ("b", True, True),
        ("c", True, False),
        ("n", False, False),
        ("", False, False),
        ("p", False, False),
    ]
    assert first.parameters[4].type == "index"
    assert first.parameters[0].type == "const float* __restrict__"
    assert first.parameters[3].type == "const u32"
    assert first.parameters[5].type == "struct P<1, 2>"
    assert (second.name, second.short_name, second.template) == ("outer::inner::second", "second", True)
    assert second.parameters[0].type == "T*"
    assert (third.name, third.parameters) == ("third", ())


def test_blanking_keeps_length_and_lines() -> None:
    assert len(blank(CUDA)) == len(CUDA)
    assert blank(CUDA).count("\n") == CUDA.count("\n")
    assert "in_a" not in blank(CUDA)
    assert "third" in blank(CUDA)


def test_typedefs() -> None:
    assert typedefs(CUDA) == {"u32": "unsigned int", "index": "long long"}


def test_opencl_kernels() -> None:
    text = "__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void f(__global const float* a, int n) {}\n"
    text += "kernel void g(global float* a, __local float* b) {}\nint kernel_size = 3;"
    f, g = find_functions(text, "OpenCL")
    assert [(p.name, p.pointer, p.const) for p in f.parameters] == [("a", True, True), ("n", False, False)]
    assert [(p.type, p.const) for p in g.parameters] == [("global float*", False), ("__local float*", False)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.c[ul]")), ids=lambda path: path.name)
def test_every_example(path: Path) -> None:
    source = read_source(str(path))
    assert source.language == ("CUDA" if path.suffix == ".cu" else "OpenCL")
    (declared,) = source.declarations
    assert source.name == declared.kernel
    assert len(source.function(declared.kernel).parameters) == len(declared.args)


def test_names_after_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "x.cu", "__global__ void f() {}\nnamespace a { __global__ void g() {} }")
    assert split_name(f"{path}:a::g") == (path, "a::g")
    assert read_source(f"{path}:f").name == "f"
    assert read_source(f"{path}:a::g").function("a::g").name == "a::g"
    assert read_source(f"{path}:g").function("g").name == "a::g"
    with pytest.raises(UserError, match=r"several kernels \(f, a::g\); name one: .*x\.cu:NAME"):
        read_source(str(path))
    with pytest.raises(UserError, match="no kernel 'h'; it holds: f, a::g"):
        read_source(f"{path}:h")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.cu", b"", "is empty"),
        ("a.cl", b" \n\t", "is empty"),
        ("a.cu", b"\x7fELF\0\0", "is no text"),
        ("a.cu", b"\xff\xfe__global__", "is no text"),
        ("a.cu", b"x" * (LARGEST + 1), "4.0 MiB; a kernel's source may have 4"),
        ("a.cu", b"int main() {}", "no CUDA kernel: no function marked __global__"),
        ("a.cl", b"void f() {}", "no OpenCL kernel: no function marked __kernel"),
        ("a.txt", b"x", "ends in .cu, .cl, .py"),
        ("a.py", b"def f(:\n", r"a\.py:1: "),
        ("a.py", b"x = 1\n", "holds no function"),
    ],
)
def test_bad_files_in_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(UserError, match=message) as error:
        read_source(str(path))
    assert "\n" not in str(error.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_source(str(tmp_path / "none.cu"))
    (tmp_path / "folder.cu").mkdir()
    with pytest.raises(UserError, match="is no file"):
        read_source(str(tmp_path / "folder.cu"))
    with pytest.raises(UserError, match="no name after the colon"):
        read_source(f"{tmp_path}/x.cu:")


PYCUDA = '''"""A docstring that mentions __global__ void nothing."""
import sys
sys.exit("never executed")
from pycuda.compiler import SourceModule
SIZE = 16
template = """
__global__ void filled(float* a)
{ a[0] = %(SIZE)s; /* 100%% */ }
"""
code = template % {"SIZE": SIZE}
kernel = cupy.RawKernel(r\'\'\'\\
extern "C" __global__
void raw(float* a) { }
\'\'\', "raw")
'''


def test_cuda_in_python_strings(tmp_path: Path) -> None:
    path = write(tmp_path, "x.py", PYCUDA)
    filled = read_source(f"{path}:filled")
    assert filled.language == "CUDA"
    assert "a[0] = 16; /* 100% */" in filled.text
    assert filled.function("filled").line + filled.line_offset == 7
    raw = read_source(f"{path}:raw")
    assert raw.function("raw").line + raw.line_offset == 13
    with pytest.raises(UserError, match=r"filled, raw.*name one"):
        read_source(str(path))


@pytest.mark.parametrize("how", ["f'''{}'''", "'''{}'''.format(3)", "'''{}''' % size", "'''{}'''.replace('a', 'b')"])
def test_source_made_at_run_time(tmp_path: Path, how: str) -> None:
    made = how.replace("{}", "__global__ void f(int a) {{{{ }}}}" if how[0] == "f" else "__global__ void f(int a) { }")
    path = write(tmp_path, "x.py", f"import cupy\ncode = {made}\n")
    with pytest.raises(UserError, match=r"x\.py:2: .*put together only when the file runs"):
        read_source(str(path))


def test_declarations_in_the_string_or_the_file(tmp_path: Path) -> None:
    text = (
        "# nearpeak: kernel g\ncode = '''\n// nearpeak: kernel f\n__global__ void f() {}\n__global__ void g() {}'''\n"
    )
    path = write(tmp_path, "x.py", text)
    assert [(d.kernel, d.line) for d in read_source(f"{path}:f").declarations] == [("g", 1), ("f", 3)]


def test_triton_and_callables(tmp_path: Path) -> None:
    text = """
import triton as tr
from triton import jit
@jit
def helper(a): return a
@tr.autotune(configs=[])
@tr.jit
def kernel(a): helper(a)
def wrapper(a): kernel[1](a)
other = wrapper
"""
    path = write(tmp_path, "x.py", text)
    assert (read_source(str(path)).language, read_source(str(path)).name) == ("Triton", "kernel")
    assert read_source(f"{path}:helper").language == "Triton"
    assert read_source(f"{path}:wrapper").language == "Python"
    assert read_source(f"{path}:other").language == "Python"
    with pytest.raises(UserError, match="no kernel 'nothing'; it holds: kernel, wrapper"):
        read_source(f"{path}:nothing")


def test_the_triton_example() -> None:
    path = EXAMPLES / "matmul_triton.py"
    assert read_source(f"{path}:matmul_nt_bf16").language == "Triton"
    with pytest.raises(UserError, match=r"several kernels .*matmul_fp32"):
        read_source(str(path))
