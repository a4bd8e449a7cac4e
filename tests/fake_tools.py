"""Stand-ins for tools of the CUDA toolkit: shell scripts that print what the real ones print, and end as they do."""

from __future__ import annotations

from pathlib import Path

import pytest

# A raw page of ncu 2025.3, as printed between its own lines and the program's; bytes and times in base units.
NCU = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
right? m=64
==PROF== Profiling "matmul_plain": 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",\
"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",\
"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",\
"l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum","launch__registers_per_thread","lts__t_bytes.sum",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active","sm__warps_active.avg.pct_of_peak_sustained_active",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",\
"smsp__issue_active.avg.pct_of_peak_sustained_active",\
"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",\
"smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct","smsp__thread_inst_executed_per_inst_executed.ratio"
"","","","","","","","","","","","byte","byte","ns","","","request","request","sector","sector","sector",\
"register/thread","byte","%","%","inst","inst","inst","inst","inst","%","%","%",""
"0","4711","python3.12","127.0.0.1","matmul_plain","1","7","(16, 16, 1)","(64, 64, 1)","0","9.0","8,412,672",\
"4194304","2,301,888","0","0","67,108,864","32768","587,202,560","524,288","0","32","9,395,240,960","0","98.71","0",\
"n/a","31.20","18.4","1.05","6.25","12.5","12.5","32"
"""
PERMISSION = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 4711
==WARNING== No kernels were profiled.
"""
NOT_LOADED = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== Failed to initialize the profiler: LibraryNotLoaded
==PROF== Disconnected from process 4711
"""
NO_KERNEL = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Disconnected from process 4711
==WARNING== No kernels were profiled.
Available Kernels:
"""

# Reports of compute-sanitizer 2025.3; the host frames are shortened.
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at reads_past_the_end+0x70 in wrong.cu:19
=========     by thread (1,0,0) in block (16,0,0)
=========     Access to 0x7f2c4a001004 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2c4a000000 of size 4,100 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2f1c5a] in libcuda.so.1
=========         Host Frame: ffi_call_unix64 [0x7e2d] in libffi.so.8
=========
========= Invalid __global__ read of size 4 bytes
=========     at reads_past_the_end+0x70 in wrong.cu:19
=========     by thread (2,0,0) in block (16,0,0)
=========     Access to 0x7f2c4a001008 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f2c4a000000 of size 4,100 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2f1c5a] in libcuda.so.1
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call to \
cuCtxSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: cuCtxSynchronize [0x2d0a11] in libcuda.so.1
=========
nearpeak.kernelcheck.kernel_failed.KernelFailed: kernel 'reads_past_the_end' broke
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
OLD_MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at 0xd80 in /data/src/attention.cu:162:void add_bias<(bool)1, __half>(T2 *, const T2 *, int)
=========     by thread (63,0,0) in block (506,0,0)
=========     Address 0x7fcd07a0312c is out of bounds
=========     and is 12589 bytes after the nearest allocation at 0x7fcd079ffc00 of size 1024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= Invalid __shared__ read of size 16 bytes
=========     at __half cub::Reduce<(int)256>::Apply<(bool)1>(T2, __half, int)+0x6320 in /repro/reduce.cuh:118
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x8 is misaligned
=========     Device Frame:main_kernel(float *)+0xc0 in /repro/reduce.cuh:90
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at races+0x120 in wrong.cu:27
=========     and Read access at races+0x260 in wrong.cu:29 [1088 hazards]
=========
========= Warning: Race reported between Write access at void mixed<(bool)0>(float *)+0x150 in other.cu:27
=========     and Write access at void mixed<(bool)0>(float *)+0x150 in other.cu:27 [124 hazards]
=========     and Read access at void mixed<(bool)0>(float *)+0x160 in other.cu:30 [4 hazards]
=========
========= Error: Race reported between Write access at 0x68 in sgemm_32x32x32_NT_vec
=========     and Read access at 0x78 in sgemm_32x32x32_NT_vec [4 hazards]
=========
========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)
"""
CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
REFUSED = """========= COMPUTE-SANITIZER
========= Error: Device not supported. Please refer to the "Supported Devices" section of the sanitizer documentation
=========
Traceback (most recent call last):
RuntimeError: CUDA driver error: unknown error
========= Target application returned an error
========= ERROR SUMMARY: 0 errors
"""


def put_on_path(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, says: str, code: int = 0, first: str = ":"
) -> Path:
    """A tool of that name, alone on PATH, that does `first` (the run's folder is $run), then prints and ends."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(says)
    script = folder / name
    script.write_text(
        f'#!/bin/sh\nfor run; do :; done\nprintf "%s\\n" "$@" > "{folder}/{name}.asked"\n{first}\n'
        f'while IFS= read -r line; do printf "%s\\n" "$line"; done < "{folder}/{name}.txt"\nexit {code}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return script
