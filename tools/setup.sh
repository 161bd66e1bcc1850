# Sets a machine up for Cleave: system packages, and libtorch in a folder that clones share. Sourced by ./run.
# shellcheck shell=bash disable=SC2034
#
# Uses the network only if something is missing.

LIBTORCH_VERSION=2.13.0
# libtorch_cpu.so needs two small CUDA libraries, even without a GPU.
LIBTORCH_WHEELS=("torch==$LIBTORCH_VERSION" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# If nvcc is installed: libtorch's version of NCCL with headers, and libraries that CUDA toolkits often lack (library=wheel).
NCCL_WHEEL=nvidia-nccl-cu13==2.29.7
CUDA_WHEELS=(libcudnn.so.9=nvidia-cudnn-cu13==9.20.0.48 libcusparseLt.so.0=nvidia-cusparselt-cu13==0.8.1
  libnvshmem_host.so.3=nvidia-nvshmem-cu13==3.4.5 libcufile.so.0=nvidia-cufile==1.15.1.6)

BUILD_PACKAGES=(g++ cmake ninja-build ccache pkg-config unzip python3 python3-pip ca-certificates
  nlohmann-json3-dev libcli11-dev libicu-dev libpcre2-dev libsentencepiece-dev libxxhash-dev libhwy-dev zlib1g-dev
  libgtest-dev libgmock-dev)
# strace traces the files that are opened; patchelf makes the wheel; MPI is the engine between hosts.
# python3-venv makes the environment of tests/requirements.txt.
TEST_PACKAGES=(strace patchelf libopenmpi-dev openmpi-bin libmpich-dev mpich python3-venv)
PAGE_PACKAGES=(chromium)  # opens the pages that Cleave writes; Ubuntu has no such package
RELEASE_PACKAGES=(valgrind)  # finds uninitialized memory
LINT_PACKAGES=(clang-format-14 clang-tidy-14 shellcheck git)
FUZZ_PACKAGES=(clang-14)
DOCS_PACKAGES=(doxygen git python3 python3-venv ca-certificates)
PACKAGE_PACKAGES=(patchelf dpkg-dev xz-utils python3-venv cmake)

say() { printf '%s\n' "$*"; }
fail() {
  printf 'run: %s\n' "$*" >&2
  exit 1
}

# Prints the arguments that are not installed packages, in one line.
missing_packages() {
  local installed package
  installed=" $(dpkg-query -W -f='${Package}=${db:Status-Status} ' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    case $installed in *" $package=installed "*) ;; *) printf '%s ' "$package" ;; esac
  done
}

ensure_packages() {
  if ! command -v dpkg >/dev/null || ! command -v apt-get >/dev/null; then
    [ -n "${CLEAVE_SKIP_PACKAGES:-}" ] && return
    fail "this system has no apt; Debian 12 and 13 are set up automatically. Install what these" \
      "Debian packages hold, then run again with CLEAVE_SKIP_PACKAGES=1: $*"
  fi
  local missing sudo=()
  missing=$(missing_packages "$@")
  [ -z "$missing" ] && return
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "needs these packages and is neither root nor has sudo; as root:" \
      "apt-get install $missing"
    sudo=(sudo)
  fi
  say "installing packages: $missing"
  "${sudo[@]}" apt-get -qq update || fail "apt-get update failed; is the network reachable? needed packages: $missing"
  # shellcheck disable=SC2086  # a list of words
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null ||
    fail "apt-get could not install: $missing; is the network reachable? Debian 12 and 13 have them all"
}

check_compiler() {
  local compiler=${CXX:-g++} version
  version=$("$compiler" -dumpversion 2>/dev/null) || fail "the compiler '$compiler' does not run; install g++ 12 or newer"
  if "$compiler" --version | grep -qi clang; then
    fail "CXX=$compiler is clang; the whole library is built with g++ 12 or newer (./run fuzz uses clang by itself)"
  fi
  [ "${version%%.*}" -ge 12 ] || fail "$compiler is version $version; Cleave needs g++ 12 or newer (C++20):" \
    "install one, for example g++-12, and run CXX=g++-12 ./run"
}

# need_space FOLDER GIB PURPOSE: refuses before anything is written.
need_space() {
  local free_kib
  free_kib=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
  [ "$free_kib" -ge $(($2 * 1024 * 1024)) ] || fail "$1 has $((free_kib / 1024)) MiB free and $3 needs about $2 GiB" \
    "(set-up and build together about 6 GiB); free some space${4:+, or $4}"
}

cache_folder() { say "${CLEAVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cleave}"; }

# Sets CLEAVE_LIBTORCH to the user's folder, otherwise to the shared folder, which is fetched once.
ensure_libtorch() {
  if [ -n "${CLEAVE_LIBTORCH:-}" ]; then
    [ -e "$CLEAVE_LIBTORCH/lib/libtorch_cpu.so" ] ||
      fail "CLEAVE_LIBTORCH=$CLEAVE_LIBTORCH holds no lib/libtorch_cpu.so; name a libtorch folder, or unset it"
    return
  fi
  local cache
  cache=$(cache_folder)
  CLEAVE_LIBTORCH=$cache/libtorch-$LIBTORCH_VERSION/torch
  export CLEAVE_LIBTORCH
  [ -e "$CLEAVE_LIBTORCH/lib/libtorch_cpu.so" ] && return
  mkdir -p "$cache"
  fetch_libtorch "$cache"
}

# Fetches and unpacks under a temporary name, then renames, so that other clones see all files or none.
fetch_libtorch() {
  local cache=$1 lock partial
  exec {lock}>"$cache/lock"
  if ! flock -n "$lock"; then
    say "another clone is fetching libtorch; waiting for it"
    flock "$lock"
  fi
  if [ ! -e "$CLEAVE_LIBTORCH/lib/libtorch_cpu.so" ]; then
    need_space "$cache" 3 "fetching libtorch" "set CLEAVE_CACHE to a folder on another disk"
    # Left by an interrupted fetch: the lock shows that no other process uses it.
    rm -rf "$cache"/libtorch-*.partial
    partial=$cache/libtorch-$LIBTORCH_VERSION.partial
    mkdir -p "$partial/wheels"
    say "fetching libtorch $LIBTORCH_VERSION (about 540 MB, once) into $cache"
    fetch_wheels "$partial/wheels" "${LIBTORCH_WHEELS[@]}"
    unpack_wheels "$partial"
    rm -rf "$partial/wheels" "$cache/libtorch-$LIBTORCH_VERSION"
    mv "$partial" "$cache/libtorch-$LIBTORCH_VERSION"
  fi
  exec {lock}>&-
}

# The C++ libraries are the same in the wheels of all Python versions: naming one version makes any Python work.
fetch_wheels() {
  local folder=$1 python show=()
  shift
  [ -t 1 ] || show=(--quiet)
  # The first python3 in PATH may lack pip; the system's python3 may have it.
  for python in python3 /usr/bin/python3 ""; do
    [ -z "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1 || break
  done
  [ -n "$python" ] || fail "python3 has no pip; install python3-pip, or set CLEAVE_LIBTORCH to a libtorch" \
    "$LIBTORCH_VERSION folder"
  "$python" -m pip download "${show[@]}" --disable-pip-version-check --retries 2 --no-deps --only-binary=:all: \
    --python-version 3.11 --implementation cp --dest "$folder" "$@" ||
    fail "could not fetch $*; is the network (or pip's index) reachable? Only the first run needs it." \
      "Without one, set CLEAVE_LIBTORCH to a libtorch $LIBTORCH_VERSION folder"
}

unpack_wheels() {
  local partial=$1 wheel skip=()
  # Only a CUDA build can use these: 550 MB.
  command -v nvcc >/dev/null || skip=(-x 'torch/lib/libtorch_cuda*' 'torch/lib/libtorch_python.so'
    'torch/lib/libtorch_nvshmem.so')
  say "unpacking libtorch"
  for wheel in "$partial"/wheels/*.whl; do
    case ${wheel##*/} in
      torch-*) unzip -q "$wheel" 'torch/lib/*' 'torch/include/*' "${skip[@]}" -d "$partial" ;;
      *) unzip -qo "$wheel" 'nvidia/*' -d "$partial" ;;
    esac || fail "could not unpack ${wheel##*/}; the disk may be full, or the download broken: run again"
  done
}

# Adds what a CUDA build needs to the cache's libtorch, once, if nvcc is installed; CMake detects what is there.
ensure_cuda() {
  local root
  root=$(cache_folder)/libtorch-$LIBTORCH_VERSION
  [ "$CLEAVE_LIBTORCH" = "$root/torch" ] && command -v nvcc >/dev/null || return 0
  [ ! -e "$root/cuda-complete" ] || return 0
  if [ ! -e "$CLEAVE_LIBTORCH/lib/libtorch_cuda.so" ]; then
    say "building without CUDA: $root was fetched before nvcc was here; remove it to fetch libtorch's CUDA libraries"
    return
  fi
  local lock row missing wheels=("$NCCL_WHEEL")
  exec {lock}>"$(cache_folder)/lock"
  flock "$lock"
  if [ ! -e "$root/cuda-complete" ]; then
    missing=$(ldd "$CLEAVE_LIBTORCH/lib/libtorch_cuda.so" | awk '/not found/ { print $1 }')
    for row in "${CUDA_WHEELS[@]}"; do
      case $'\n'$missing$'\n' in *$'\n'"${row%%=*}"$'\n'*) wheels+=("${row#*=}") ;; esac
    done
    need_space "$root" 3 "fetching CUDA libraries"
    say "fetching ${wheels[*]} (once) into $root"
    rm -rf "$root/wheels"
    mkdir "$root/wheels"
    # In a subshell, so that a failure does not stop the CPU build.
    if (fetch_wheels "$root/wheels" "${wheels[@]}" && unpack_wheels "$root"); then
      touch "$root/cuda-complete"
    else
      say "building without CUDA this time"
    fi
    rm -rf "$root/wheels"
  fi
  exec {lock}>&-
}

# ensure_venv NAME PINS SIZE: sets VENV_PYTHON to the Python of a virtual environment in the cache that has exactly the
# packages of the file PINS.
ensure_venv() {
  local name=$1 pins=$2 size=$3 cache folder lock python
  cache=$(cache_folder)
  folder=$cache/$name-$(cksum <"$pins" | cut -d ' ' -f 1)
  VENV_PYTHON=$folder/bin/python
  [ -e "$folder/complete" ] && return
  mkdir -p "$cache"
  exec {lock}>"$cache/lock"
  flock "$lock"
  if [ ! -e "$folder/complete" ]; then
    # The first python3 in PATH may lack what makes an environment.
    for python in python3 /usr/bin/python3 ""; do
      [ -z "$python" ] || ! "$python" -c 'import ensurepip, venv' 2>/dev/null || break
    done
    [ -n "$python" ] || fail "python3 cannot make a virtual environment; install python3-venv"
    say "fetching the packages of $pins (about $size, once) into $folder"
    # No rename at the end: an environment does not work under another name.
    "$python" -m venv --clear "$folder"
    "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check --retries 2 --no-deps --only-binary=:all: \
      -r "$pins" || fail "could not fetch the packages of $pins; is the network (or pip's index) reachable? Only the" \
      "first run needs it"
    touch "$folder/complete"
  fi
  exec {lock}>&-
}
