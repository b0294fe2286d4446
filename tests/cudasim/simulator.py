"""A CUDA device that is this CPU, for tests: TVM's own CUDA runtime on a driver of ours.

    python -m tests.cudasim.simulator [platform=a100] [check=true] [order=random] COMMAND ...

runs a command that finds one CUDA device, with nvcc and nvidia-smi. What it computes is what a GPU
would compute, as far as driver.cc says; its seconds say nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.paths import CONF, REPOSITORY

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / name for name in ("driver.cc", "runtime.cc")]
_HEADERS = ("cuda.h", "cuda_fp16.h", "mma.h")  # device.h has all of it
_BUILD = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
# What a driver that tells nothing says to every question.
_SMI = """#!/bin/sh
case "$1" in
-L) echo "GPU 0: $SIM_NAME (UUID: GPU-0)";;
--query-gpu=*)
  for field in $(echo "${1#*=}" | tr , ' '); do
    case $field in
    name) told="$SIM_NAME";; compute_cap) told=$SIM_CAPABILITY;;
    *) told='[N/A]';;
    esac
    line="$line${line:+, }$told"
  done
  echo "$line";;
esac
"""


def missing() -> str | None:
    """Why there can be no simulated device, None where there can."""
    if shutil.which("g++") is None:
        return "no C++ compiler (g++) on this machine"
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        return "TVM 0.27 is not installed"
    if not (Path(found.origin).parent / "lib" / "libtvm_runtime_cuda.so").exists():
        return "this TVM has no CUDA runtime"
    return None


def environment(
    platform: str = "a100", *, check: bool = False, order: str = "forward"
) -> dict[str, str]:
    """What a process needs to find the device, which is described as a platform of ``conf``.

    ``check``: faults make a launch fail. ``order`` of the threads: forward, backward or random.
    """
    described = yaml.safe_load((CONF / "platform" / f"{platform}.yaml").read_text())
    built = _built()
    architecture = "".join(filter(str.isdigit, described["architecture"]))
    added = {
        "PATH": f"{built}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{built}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}",
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONPATH": str(REPOSITORY),
        "SIM_HEADERS": str(built),
        "SIM_NAME": f"NVIDIA {platform.upper().replace('_', ' ')} simulated",
        "SIM_ARCH": architecture,
        "SIM_CAPABILITY": f"{architecture[:-1]}.{architecture[-1]}",
        "SIM_ORDER": order,
        "SIM_CHECK": "1" if check else "",
    }
    return {**os.environ, **added}


def _built() -> Path:
    """The folder with libraries and tools, made once for every state of the sources."""
    digest = hashlib.sha256(b"".join([path.read_bytes() for path in [*SOURCES, Path(__file__)]]))
    folder = REPOSITORY / ".cache" / "cudasim" / digest.hexdigest()[:12]
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        new = Path(name) / "new"
        new.mkdir()
        versions = new / "runtime.map"  # TVM asks for symbols of this version
        versions.write_text("libcudart.so.13 { global: cuda*; local: *; };\n")
        driver, runtime = new / "libcuda.so.1", new / "libcudart.so.13"
        more = [f"-Wl,--version-script={versions}", str(driver)]
        for library, source, words in zip((driver, runtime), SOURCES, ([], more), strict=True):
            command = [*_BUILD, f"-Wl,-soname,{library.name}", "-o", str(library), str(source)]
            subprocess.run([*command, *words, "-ldl"], check=True)
        for header in _HEADERS:
            (new / header).touch()
        compiler = f'#!/bin/sh\nexec "{sys.executable}" -S "{HERE / "compiler.py"}" "$@"\n'
        for tool, text in {"nvcc": compiler, "nvidia-smi": _SMI}.items():
            (new / tool).write_text(text)
            (new / tool).chmod(0o755)
        if not folder.exists():  # another process may have been faster
            new.rename(folder)
    return folder


def main(words: list[str]) -> int:
    """Runs a command on the device; options stand before it."""
    if reason := missing():
        raise SystemExit(reason)
    count = next(i for i, word in enumerate(words) if "=" not in word)
    given = dict(word.split("=", 1) for word in words[:count])
    given["check"] = given.get("check") == "true"
    return subprocess.run(words[count:], env=environment(**given), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
