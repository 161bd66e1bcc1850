"""The folder that all packages are made from: bin/, lib/, include/ of an install, which finds libtorch by relative paths.

libtorch's folders `torch` and `nvidia` lie in its folder libtorch/, or next to it as in Python's site-packages.
"""
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What every distribution has (the list of the manylinux standard, as far as Cleave uses it).
SYSTEM = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libutil|libgcc_s|libstdc\+\+|libz)\.so\.\d+$")
LIBTORCH = re.compile(r"(libtorch\w*|libc10\w*)\.so$|lib(cudart|nccl|cupti)\.so\.\d+$")
# (newest GLIBCXX_3.4.N, oldest glibc 2.N that distributions combine with it), by the manylinux standard.
LIBSTDCPP_TO_GLIBC = ((28, 31), (29, 34), (30, 35), (33, 39))
RUNPATH = ":".join(["$ORIGIN"] + [f"$ORIGIN/{place}/{folder}" for folder in ("torch/lib", "nvidia/cu13/lib")
                                  for place in ("../libtorch", "../..")])
CONFIG_OLD = re.compile(r'^ *set\(CLEAVE_LIBTORCH "[^"]*"\)\n', re.MULTILINE)
CONFIG_NEW = """\
    foreach(folder IN ITEMS "${PACKAGE_PREFIX_DIR}/libtorch/torch" "${PACKAGE_PREFIX_DIR}/../torch")
      if(NOT CLEAVE_LIBTORCH AND EXISTS "${folder}/lib/libtorch_cpu.so")
        get_filename_component(CLEAVE_LIBTORCH "${folder}" ABSOLUTE)
      endif()
    endforeach()
"""


class Problem(Exception):
    """Ends the program with one line."""


def output(*words, **options):
    """The output of a program that must succeed."""
    try:
        result = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    except FileNotFoundError as error:
        raise Problem(f"{error.filename}: is not installed") from error
    if result.returncode != 0:
        raise Problem(f"failed ({result.returncode}): {' '.join(map(str, words))}\n{result.stdout}{result.stderr}".rstrip())
    return result.stdout


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", path))


def binaries(folder):
    return sorted([folder / "bin/cleave", *folder.glob("lib/*.so*")])


def find_system_libraries():
    """{soname: path} of the libraries of this machine."""
    rows = re.findall(r"^\s+(\S+) \(libc6,x86-64.*\) => (\S+)$", output("/sbin/ldconfig", "-p"), re.MULTILINE)
    return {name: pathlib.Path(path) for name, path in reversed(rows)}


def remove_links(folder):
    """Gives every library one file with one name, lib*.so: a wheel has no links."""
    versioned = {}
    for path in sorted(folder.glob("lib/libcleave*.so.*")):
        plain = re.sub(r"\.so\..*", ".so", path.name)
        versioned[path.name] = plain
        if path.is_symlink():
            path.unlink()
            continue
        (folder / "lib" / plain).unlink(missing_ok=True)
        path.rename(folder / "lib" / plain)
        output("patchelf", "--set-soname", plain, folder / "lib" / plain)
    for path in binaries(folder):
        for name in needed(path):
            if name in versioned:
                output("patchelf", "--replace-needed", name, versioned[name], path)
    for path in folder.glob("lib/cmake/Cleave/CleaveTargets-*.cmake"):
        path.write_text(re.sub(r"(libcleave\w*\.so)\.[\d.]*\d", r"\1", path.read_text()))


def require_build(build):
    if not (build / "cleave").exists():
        raise Problem(f"{build} holds no build; run ./run build first")


def install(build, folder):
    """Installs `build` into the empty `folder`."""
    try:
        output("cmake", "--install", build, "--prefix", folder, "--strip")
    except Problem as problem:
        missing = re.search(rf'cannot find\s+"{re.escape(str(build))}/([^"]+)"', str(problem))
        if not missing:
            raise
        raise Problem(f"the build in {build} is not finished: {missing.group(1)} is missing; run ./run build first") from None


def stage(build, folder):
    """Installs `build` into the empty `folder` and makes it independent of where libtorch was found by the build."""
    require_build(build)
    install(build, folder)
    # They work with the MPIs of the build only; a cluster has its own.
    for path in folder.glob("lib/libcleave_mpi_*.so"):
        path.unlink()
    remove_links(folder)
    for path in binaries(folder):
        output("patchelf", "--set-rpath", "$ORIGIN/../lib" if path.parent.name == "bin" else RUNPATH, path)
    config = folder / "lib/cmake/Cleave/CleaveConfig.cmake"
    text, count = CONFIG_OLD.subn(lambda _: CONFIG_NEW, config.read_text())
    if count != 1:
        raise Problem(f"{config} sets CLEAVE_LIBTORCH {count} times, expected once; adapt tools/package/stage.py")
    config.write_text(text)


def bundle(folder):
    """Copies the libraries that not every distribution has, with their licenses. Returns their names."""
    shutil.copy(ROOT / "LICENSE", folder)
    system, bundled, open_paths = find_system_libraries(), [], binaries(folder)
    while open_paths:
        for name in needed(open_paths.pop()):
            path = folder / "lib" / name
            if SYSTEM.match(name) or LIBTORCH.match(name) or path.exists():
                continue
            if name not in system:
                raise Problem(f"{name} is needed, but ldconfig -p does not list it; install its package")
            shutil.copy(system[name].resolve(), path)
            path.chmod(0o644)
            output("patchelf", "--set-rpath", "$ORIGIN", path)
            copy_license(system[name], folder / "licenses")
            bundled.append(name)
            open_paths.append(path)
    return sorted(bundled)


def copy_license(library, folder):
    package = package_of(library)
    folder.mkdir(exist_ok=True)
    shutil.copy(f"/usr/share/doc/{package}/copyright", folder / f"{package}.txt")


def package_of(library):
    """The Debian package that holds a library: dpkg knows one of its two paths where /lib is a link to /usr/lib."""
    for path in (library, library.resolve(), pathlib.Path(str(library.resolve()).removeprefix("/usr"))):
        result = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if result.returncode == 0:
            return result.stdout.split(":")[0]
    raise Problem(f"dpkg knows no package that holds {library}; ./run package needs Debian 12 or Ubuntu 24.04")


def needed_glibc(folder):
    """The minor version of the oldest glibc 2 whose distributions have all symbols that the binaries use."""
    text = "".join(output("readelf", "-VW", path) for path in binaries(folder))
    glibc = max(int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", text))
    libstdcpp = max((int(minor) for minor in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", text)), default=0)
    for newest, minor in LIBSTDCPP_TO_GLIBC:
        if libstdcpp <= newest:
            return max(glibc, minor)
    raise Problem(f"GLIBCXX_3.4.{libstdcpp} is needed, and LIBSTDCPP_TO_GLIBC in tools/package/stage.py ends before it")


def version_of(build):
    require_build(build)
    text = (build / "CleaveConfigVersion.cmake").read_text()
    return re.search(r'set\(PACKAGE_VERSION "([\d.]+)"\)', text).group(1)
