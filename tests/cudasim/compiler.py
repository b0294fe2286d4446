"""nvcc of the simulated device: CUDA C of TVM as an image that driver.cc loads, made by g++.

With ``SIM_CHECK`` every access calls a hook of the driver. ``SIM_WITHOUT=WORD:N`` leaves out the
N-th WORD of the last kernel: a fault put in on purpose, as a barrier that is missing.
"""

import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAGIC = b"SIMGPU\0\0"
_KERNEL = re.compile(
    r'extern "C" __global__ void(?: __launch_bounds__\([^)]*\))? (\w+)\([^)]*\) \{'
)
_ASM = re.compile(r"(?:__asm__ __volatile__|asm volatile)\s*\((?:[^;\"]|\"[^\"]*\")*\);")
_OPERAND = re.compile(r'"[=+]?[rflhn]"\(')
_INSTRUCTION = re.compile(r"\b(?:cp\.async|ldmatrix|mma)\.[\w.]+")
_FLAGS = (
    "-std=c++17", "-march=native", "-fPIC", "-w", "-ffp-contract=off", "-fno-threadsafe-statics",
    # else gcc calls what it could inline, and the sanitizer loses stores (device.h)
    "-fno-semantic-interposition",
    "-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0",
)  # fmt: skip
_LONG = 30_000  # characters: loops written out, with which -O1 takes a minute and -O0 seconds
_SHARED = (
    r"__shared__ __align__(\1) char \3_bytes[sizeof(\2[\4])];"
    r" auto& \3 = *(\2(*)[\4])\3_bytes;"
)
_TAIL = """
extern "C" __attribute__((weak)) char __start_sim_shared[], __stop_sim_shared[];
extern "C" __attribute__((no_sanitize_thread)) void sim_shared_range(char** range) {
  range[0] = __start_sim_shared; range[1] = __stop_sim_shared;
}
"""
_MMA = "mma.sync.aligned.m16n8k8.row.col"


def rewritten(code: str) -> str:
    """CUDA C as C++ with device.h: inline PTX as calls, an entry for every kernel."""
    code = re.sub(r"#ifdef __CUDACC_RTC__.*?#else(.*?)#endif", r"\1", code, count=1, flags=re.S)
    code = _ASM.sub(_call, code)
    code = re.sub(r"unsigned int (\w*addr) = __cvta", r"uintptr_t \1 = __cvta", code)
    code = re.sub(
        r"extern __shared__ [^;]*?\buchar (\w+)\[\];",
        r"uchar* \1 = (uchar*)sim_dynamic_shared();",
        code,
    )
    # as bytes, for gcc guards a static array of a class with a variable that the checks would see
    code = re.sub(r"__shared__ alignas\((\d+)\) ([\w ]+) (\w+)\[(\d+)\];", _SHARED, code)
    names = dict.fromkeys(match[1] for match in _KERNEL.finditer(code))
    place = " const SimThread own = sim_thread(); const dim3 {0} = own.{0}, {1} = own.{1};"
    code = _KERNEL.sub(lambda m: m[0] + place.format("threadIdx", "blockIdx"), code)
    entries = (f'extern "C" void sim_entry_{n}(void** v) {{ sim_call({n}, v); }}' for n in names)
    counts = (f'extern "C" unsigned sim_count_{n}() {{ return sim_count({n}); }}' for n in names)
    return "\n".join([code, *entries, *counts, _TAIL])


def _call(asm: re.Match[str]) -> str:
    text = asm[0]
    found = _INSTRUCTION.search(text)
    name, x = found[0] if found else "", _operands(text)
    if name == "cp.async.wait_group":
        left = re.search(r"wait_group (\d+)", text)[1]
        return f"sim_cp_wait({left});"
    if name == "cp.async.commit_group":
        return "sim_cp_commit();"
    if name in ("cp.async.ca.shared.global", "cp.async.cg.shared.global"):
        predicate = f", {x[3]}" if "@p " in text else ""  # else zeros
        return f"sim_copy((void*)({x[0]}), (const void*)({x[1]}), {x[2]}{predicate});"
    if name.startswith("ldmatrix.sync.aligned.m8n8.x4"):
        transposed = "true" if ".trans" in name else "false"
        return f"sim_ldmatrix_x4<{transposed}>((const void*)({x[4]}), {', '.join(x[:4])});"
    if name == f"{_MMA}.f16.f16.f16.f16":
        return f"sim_mma_f16({', '.join(x)});"
    if name == f"{_MMA}.f32.f16.f16.f32":
        return f"sim_mma_f32({', '.join(x)});"
    raise SystemExit(f"the simulated device does not know: {text}")


def _operands(text: str) -> list[str]:
    """The expressions of "r"(...), "=r"(...) and the like, in order."""
    found, start = [], 0
    while match := _OPERAND.search(text, start):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        found.append(text[match.end() : end - 1])
        start = end
    return found


def without(code: str, word: str, number: int) -> str:
    """The source without the word's n-th place in the last kernel."""
    kernel = code.rindex("__global__")
    start = [m.start() for m in re.finditer(re.escape(word), code[kernel:])][number] + kernel
    return code[:start] + code[start + len(word) :]


def main(words: list[str]) -> None:
    """What TVM calls nvcc for: one source to one image."""
    if "-o" not in words:
        print("Cuda compilation tools, release 13.0, V13.0.88 (simulated by g++)")
        return
    code = Path(next(word for word in words if word.endswith(".cu"))).read_text(encoding="utf-8")
    if left_out := os.environ.get("SIM_WITHOUT"):
        word, _, number = left_out.rpartition(":")
        code = without(code, word, int(number))
    architecture = re.search(r"compute_(\d+)", " ".join(words))[1]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.cc"), Path(folder, "kernel.so")
        source.write_text(rewritten(code), encoding="utf-8")
        flags = [*_FLAGS, "-O0" if len(code) > _LONG else "-O1", f"-D__CUDA_ARCH__={architecture}0"]
        flags += ["-fsanitize=thread"] if os.environ.get("SIM_CHECK") else []
        headers = ["-I", os.environ["SIM_HEADERS"], "-include", str(HERE / "device.h")]
        # in two steps, for a linker that is told of the sanitizer would add its library
        made = Path(folder, "kernel.o")
        compiled = ["g++", *flags, *headers, "-c", str(source), "-o", str(made)]
        for command in (compiled, ["g++", "-shared", "-o", str(library), str(made)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr[:4000])
        image = library.read_bytes()
    Path(words[words.index("-o") + 1]).write_bytes(MAGIC + struct.pack("<Q", len(image)) + image)


if __name__ == "__main__":
    main(sys.argv[1:])
