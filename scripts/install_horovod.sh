#!/usr/bin/env bash
# Build Horovod from its source distribution against the TensorFlow in .venv, and install it: bash scripts/install_horovod.sh
#
# No extra of pyproject.toml has it, as pip alone cannot install it: its build imports TensorFlow (pip builds in isolation) and
# needs old build tools, a header that TensorFlow no longer ships, and two include folders that are not on the include path.
#
# Gloo is always built in, MPI where mpicxx and mpirun are found, NCCL where nvcc and NCCL's header are found. Horovod's own
# HOROVOD_CUDA_HOME, HOROVOD_NCCL_HOME, HOROVOD_NCCL_INCLUDE, HOROVOD_NCCL_LIB and HOROVOD_BUILD_CUDA_CC_LIST are used.
#
# Wheels are kept in ${XDG_CACHE_HOME:-$HOME/.cache}/efficientdet/horovod, one folder for each Python, TensorFlow and set of
# libraries, so that each machine builds once. The last line reports what was done and that two processes agree on a sum.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
takes_no_words "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

VERSION=0.28.1
CHECK_SECONDS=300
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/efficientdet/horovod"
WORK="" # folder of a running build

main() {
    local how
    trap remove_work EXIT
    use_environment
    drop_foreign_settings
    look_around
    if is_in_place; then
        how="was installed; checked"
    else
        lock_cache
        if is_in_place; then
            how="was installed; checked"
        elif [[ -d "$CACHE/$KEY" ]]; then
            how="from cache"
        else
            how="built"
            build
        fi
        is_in_place || install_wheel
        exec 8>&-
    fi
    check
    printf 'horovod %s (%s): two processes agree; %s in %d s\n' "$VERSION" "${FEATURES//-/, }" "$how" "$SECONDS"
}

remove_work() {
    if [[ -n "$WORK" ]] && ! rm -rf "$WORK" 2>/dev/null; then
        sleep 1 # a terminating compiler may still be writing
        rm -rf "$WORK"
    fi
}

# Horovod's variables from a surrounding job or build would change what is built. horovodrun also passes them to its workers
# after its own, so that they would override them.
drop_foreign_settings() {
    local name
    for name in ${!HOROVOD_@}; do
        case "$name" in
        HOROVOD_CUDA_HOME | HOROVOD_NCCL_HOME | HOROVOD_NCCL_INCLUDE | HOROVOD_NCCL_LIB | HOROVOD_BUILD_CUDA_CC_LIST) ;;
        *) unset "$name" ;;
        esac
    done
}

# Sets what the build depends on: PACKAGES (site-packages), FEATURES, CPU_FLAGS, NVCC and NCCL_HEADER ("" where there is none),
# and KEY, the name of this combination in the cache.
look_around() {
    local abi tensorflow libc details
    read -r abi tensorflow libc PACKAGES < <("$PYTHON" -c '
import importlib.metadata, platform, sysconfig
print(sysconfig.get_config_var("SOABI"), importlib.metadata.version("tensorflow"), platform.libc_ver()[1] or "-",
      sysconfig.get_path("platlib"))' 2>/dev/null) || _give_up "cannot ask $PYTHON which TensorFlow it has"
    FEATURES=gloo
    CPU_FLAGS="$(cpu_flags)"
    details="$VERSION $libc $CPU_FLAGS $(declare -f write_header build_wheels mend set_build use_nccl_of_pip)"
    if command -v mpicxx >/dev/null && command -v mpirun >/dev/null; then
        FEATURES+=-mpi
        details+=" $(command -v mpicxx) $(mpirun --version 2>&1 || true)"
    fi
    NVCC="$(find_nvcc)"
    NCCL_HEADER=""
    if [[ -n "$NVCC" ]]; then
        NCCL_HEADER="$(find_nccl_header)"
    fi
    if [[ -n "$NCCL_HEADER" ]]; then
        FEATURES+=-nccl
        details+=" $("$NVCC" --version) ${HOROVOD_BUILD_CUDA_CC_LIST:-} ${NCCL_HEADER#"$PACKAGES"}"
        details+=" $(grep -E 'define +NCCL_(MAJOR|MINOR|PATCH)' "$NCCL_HEADER" || true)"
    fi
    details="$(sha256sum <<<"$details")"
    KEY="$abi-tf$tensorflow-$FEATURES-${details:0:12}"
}

# The instructions Horovod would use where the compiler's -march=native has them; passed explicitly, they are part of the key.
cpu_flags() {
    local flag
    for flag in f16c avx fma; do
        if grep -q -s -m 1 -w "$flag" /proc/cpuinfo; then
            printf -- '-m%s ' "$flag"
        fi
    done
}

# The nvcc of a complete CUDA installation: CMake searches the rest beside it, which fails if nvcc is a script that calls another.
find_nvcc() {
    local home header homes=("${HOROVOD_CUDA_HOME:-}")
    if [[ -z "${HOROVOD_CUDA_HOME:-}" ]]; then
        home="$(command -v nvcc || true)"
        homes=("${home%/bin/nvcc}" /usr/local/cuda)
    fi
    for home in "${homes[@]}"; do
        header="$(first_file "$home"/include/cuda_runtime.h "$home"/targets/*/include/cuda_runtime.h)"
        if [[ -x "$home/bin/nvcc" && -n "$header" ]]; then
            printf '%s\n' "$home/bin/nvcc"
            return
        fi
    done
}

find_nccl_header() {
    if [[ -n "${HOROVOD_NCCL_INCLUDE:-${HOROVOD_NCCL_HOME:-}}" ]]; then
        first_file "${HOROVOD_NCCL_INCLUDE:-$HOROVOD_NCCL_HOME/include}/nccl.h"
    else
        # pip's first: TensorFlow loads that library, and a process has one libnccl.so.2.
        first_file "$PACKAGES/nvidia/nccl/include/nccl.h" "${NVCC%/bin/nvcc}/include/nccl.h" \
            /usr/local/cuda/include/nccl.h /usr/local/include/nccl.h /usr/include/nccl.h
    fi
}

first_file() {
    local file
    for file; do
        if [[ -f "$file" ]]; then
            printf '%s\n' "$file"
            return
        fi
    done
}

is_in_place() {
    local stamp library
    stamp="$(_stamp horovod)"
    library=("$PACKAGES"/horovod/tensorflow/mpi_lib*.so)
    [[ -f "$stamp" && "$(<"$stamp")" == "$KEY" && -f "${library[0]}" && -d "$PACKAGES/horovod-$VERSION.dist-info" ]]
}

lock_cache() {
    # Horovod's CMake files take no space in TensorFlow's path, which they see through a link in here; ':' parts include paths.
    case "$CACHE" in
    *[[:space:]:]*) _give_up "the build cannot work in '$CACHE'; set XDG_CACHE_HOME to a folder without spaces and colons" ;;
    esac
    mkdir -p "$CACHE" 2>/dev/null || _give_up "cannot make $CACHE; set XDG_CACHE_HOME to a folder for large files"
    { exec 8<>"$CACHE/$KEY.lock"; } 2>/dev/null || _give_up "cannot write into $CACHE"
    if ! flock -n 8; then
        printf 'waiting for another installation of Horovod\n'
        flock 8 || _give_up "cannot lock $CACHE/$KEY.lock"
    fi
}

build() {
    local log="$CACHE/$KEY.log"
    require_tools
    printf 'building Horovod %s (%s) against the TensorFlow in .venv (some minutes, once; log: %s)\n' \
        "$VERSION" "${FEATURES//-/, }" "$log"
    if [[ -n "$NVCC" && -z "$NCCL_HEADER" ]]; then
        printf 'without NCCL: %s is here, nccl.h is not (for GPUs install the extra cuda, which has it)\n' "$NVCC"
    fi
    WORK="$CACHE/$KEY.building"
    rm -rf "$WORK" # left by a killed call; this one holds the lock
    mkdir -p "$WORK/tmp" "$WORK/wheels"
    ln -s "$PACKAGES" "$WORK/packages"
    write_header "$WORK/include"
    _logged "$log" build_wheels || _give_up "cannot build Horovod: $(why_not_built "$log") (log: $log)"
    mv "$WORK/wheels" "$CACHE/$KEY" # atomic: a folder with this name is complete
    remove_work
}

require_tools() {
    local compiler
    for compiler in "${CXX:-}" c++ g++ clang++; do
        if [[ -n "$compiler" ]] && compiles "$compiler"; then
            export CXX="$compiler"
            break
        fi
        compiler=""
    done
    [[ -n "$compiler" ]] || _give_up "no C++17 compiler found; install one, for example: apt install g++ make"
    command -v make >/dev/null || _give_up "make not found; install it, for example: apt install make"
}

compiles() {
    "$1" -x c++ -std=c++17 -fsyntax-only - <<<'#include <string_view>' >/dev/null 2>&1
}

# Write a header that Horovod includes by its name in older TensorFlow versions.
write_header() {
    mkdir -p "$1/tensorflow/compiler/xla/client"
    cat >"$1/tensorflow/compiler/xla/client/xla_builder.h" <<'HEADER'
#pragma once
#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"
namespace xla {
template <typename T>
using StatusOr = absl::StatusOr<T>;
}
HEADER
}

# Build the wheels of Horovod and of its dependencies in $WORK/wheels.
build_wheels() {
    local pip=("$PYTHON" -m pip) quiet=(--disable-pip-version-check --no-input --progress-bar off)
    local source="$WORK/source/horovod-$VERSION" include="$WORK/packages/tensorflow/include"
    # Separate build tools, ahead of the newer ones in .venv: pkg_resources left setuptools with 81, and CMake 4 refuses Gloo.
    "${pip[@]}" install "${quiet[@]}" --target "$WORK/tools" \
        'setuptools<81' wheel 'cmake>=3.20,<4' cloudpickle psutil pyyaml packaging || return 1
    export PATH="$WORK/tools/bin:$PATH" PYTHONPATH="$WORK/tools:$WORK/packages" TMPDIR="$WORK/tmp"
    "${pip[@]}" download "${quiet[@]}" --no-deps --no-binary horovod --no-build-isolation --dest "$WORK/source" \
        "horovod==$VERSION" || return 1
    tar -xzf "$source.tar.gz" -C "$WORK/source" && mend "$source" || return 1
    set_build "$source" "$include"
    # In a separate session, so that a signal reaches the compilers.
    exec setsid "${pip[@]}" wheel "${quiet[@]}" --verbose --no-build-isolation --wheel-dir "$WORK/wheels" "$source"
}

# mend SOURCE: patch Horovod for this TensorFlow and this Python. A new name would change KEY and rebuild every cached wheel.
mend() {
    # Reserved but not sized, the list in which Gloo's coordinator looks for stalled ranks stays empty: it never warns of a rank
    # that hangs, and does not end the job after HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.
    replace "$1/horovod/common/gloo/gloo_controller.cc" 'global_ranks_.reserve(size_)' 'global_ranks_.resize(size_)' &&
        # TensorFlow no longer exports this function; with NCCL, the library would build and then not load.
        replace "$1/horovod/tensorflow/mpi_ops.cc" 'GpuStreamHandle AsGpuStreamValue(Stream* stream);' \
            'template <typename T> GpuStreamHandle AsGpuStreamValue(T* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}' &&
        # distutils left Python with 3.12; horovodrun would need setuptools only for this.
        replace "$1/horovod/runner/js_run.py" 'distutils.spawn import find_executable' 'shutil import which as find_executable'
}

# replace FILE WRONG RIGHT
replace() {
    local text
    text="$(<"$1")"
    if [[ "$text" != *"$2"* ]]; then
        printf "ERROR: %s has no '%s'\n" "$1" "$2"
        return 1
    fi
    printf '%s\n' "${text/"$2"/"$3"}" >"$1"
}

# set_build SOURCE INCLUDE: set the variables that setup.py and CMake read.
set_build() {
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
    export HOROVOD_CMAKE="$WORK/tools/bin/cmake" HOROVOD_BUILD_ARCH_FLAGS="$CPU_FLAGS"
    export CPLUS_INCLUDE_PATH="$WORK/include:$2/external/highwayhash:$2/external/farmhash_archive/src"
    export CXXFLAGS="-ffile-prefix-map=$1/=" # for Horovod's messages, which name its source files
    # Unused libraries are not linked: one of TensorFlow's has no soname, and a checkout that takes this wheel from the cache
    # would look for it under the path that it has here.
    export LDFLAGS="-Wl,--as-needed"
    MAKEFLAGS="-j$(parallel_compilers)"
    export MAKEFLAGS
    unset CMAKE_GENERATOR # Horovod passes make's arguments to it
    case "$FEATURES" in
    *-mpi*) export HOROVOD_WITH_MPI=1 ;;
    *) export HOROVOD_WITHOUT_MPI=1 ;;
    esac
    case "$FEATURES" in
    *-nccl*)
        export PATH="${NVCC%/*}:$PATH" HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_INCLUDE="${NCCL_HEADER%/*}"
        [[ "$NCCL_HEADER" != "$PACKAGES"/* ]] || use_nccl_of_pip
        ;;
    esac
}

# The package nvidia-nccl, which TensorFlow's extra and-cuda brings, has its library under a name that linkers do not look for.
use_nccl_of_pip() {
    # HOROVOD_NCCL_HOME is searched before an NCCL in CUDA's folder, HOROVOD_NCCL_INCLUDE and HOROVOD_NCCL_LIB after it.
    mkdir -p "$WORK/nccl/lib"
    ln -s "$WORK/packages/nvidia/nccl/include" "$WORK/nccl/include"
    ln -s "$PACKAGES"/nvidia/nccl/lib/libnccl.so.* "$WORK/nccl/lib/libnccl.so"
    export HOROVOD_NCCL_HOME="$WORK/nccl" HOROVOD_NCCL_LINK=SHARED
    unset HOROVOD_NCCL_INCLUDE
    # shellcheck disable=SC2016 # the loader's variable: the folder of Horovod's library
    LDFLAGS+=' -Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib'
}

# One job for each processor and each 2 GB of memory: a compiler takes more than 1 GB for TensorFlow's headers.
parallel_compilers() {
    local processors memory
    processors="$(nproc)"
    memory="$(awk '/^MemAvailable/ {print int($2 / 2000000)}' /proc/meminfo)"
    printf '%d' "$((memory < 1 ? 1 : memory < processors ? memory : processors))"
}

# Print one line: the first error of the compiler or CMake, else that of pip.
why_not_built() {
    local line
    if line="$(grep -m 1 -E 'Killed signal terminated program' "$1")"; then
        printf 'the compiler was killed, for lack of memory?'
    elif line="$(grep -m 1 -E ':[0-9]+: (fatal )?error: |error: ld returned|No rule to make target' "$1")"; then
        printf '%s' "${line#"${line%%[! ]*}"}"
    elif line="$(grep -m 1 -A 1 '^ *CMake Error' "$1" | tr -s ' \n' ' ')" && [[ -n "$line" ]]; then
        line="${line# }"
        printf '%s' "${line% }"
    else
        _why "$1"
    fi
}

install_wheel() {
    local log="$REPOSITORY/.venv/install-horovod.log" stamp
    stamp="$(_stamp horovod)"
    _lock_environment
    rm -f "$stamp"
    _logged "$log" install_from_cache || _give_up "cannot install Horovod: $(_why "$log") (log: $log)"
    printf '%s\n' "$KEY" >"$stamp"
    _unlock_environment
}

install_from_cache() {
    local install=("$PYTHON" -m pip install --disable-pip-version-check --no-input --no-index --find-links "$CACHE/$KEY")
    # Reinstall Horovod itself first: to pip, a wheel of the same version built against another TensorFlow is the same.
    "${install[@]}" --force-reinstall --no-deps "horovod==$VERSION" && "${install[@]}" "horovod==$VERSION"
}

# Check: two processes on this machine sum a vector. On the CPU, as NCCL does not support two processes on one GPU.
check() {
    local log="$REPOSITORY/.venv/check-horovod.log" status=0
    _logged "$log" env CUDA_VISIBLE_DEVICES= TF_CPP_MIN_LOG_LEVEL=3 timeout --kill-after=10 "$CHECK_SECONDS" \
        "$PYTHON" -m horovod.runner.launch -np 2 --gloo "$PYTHON" -c '
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.constant([1.0 + hvd.rank(), 10.0]), op=hvd.Sum).numpy().tolist()
if total != [3.0, 20.0]:
    raise SystemExit(f"Error: {hvd.size()} processes got {total}; expected [3.0, 20.0]")' || status=$?
    case "$status" in
    0) ;;
    124 | 137) _give_up "horovodrun did not end in $CHECK_SECONDS s (log: $log)" ;;
    *) _give_up "two processes under horovodrun fail: $(grep -m 1 'Error' "$log" || tail -n 1 "$log") (log: $log)" ;;
    esac
}

# For the ticker: make's percentage instead of the compiler's command.
_last_step() {
    grep -o '\[ *[0-9]*%\] [A-Z].*' "$1" | tail -n 1 | grep . || tail -n 1 "$1"
}

main "$@"
