"""Writes a staged folder as a wheel, a tarball or a Debian package. The same input gives the same bytes."""
import base64
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import zipfile

from stage import LIBTORCH, ROOT, binaries, needed, needed_glibc, output

SUMMARY = "Parallel training of transformers in C++"
HERE = pathlib.Path(__file__).resolve().parent


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def wheel_tag(folder):
    return f"py3-none-manylinux_2_{needed_glibc(folder)}_x86_64"


def wheel_metadata(version, torch, tag):
    """{name in .dist-info: text} without RECORD."""
    series = ".".join(torch.split(".")[:2])
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: cleave\nVersion: {version}\nSummary: {SUMMARY}\n"
                    f"License: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch=={series}.*\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: cleave\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": "[console_scripts]\ncleave = cleave:main\n",
    }


def write_wheel(folder, out, version, torch):
    """Writes the staged `folder` with its bundled libraries as cleave/ of a wheel; returns the path."""
    tag = wheel_tag(folder)
    info = f"cleave-{version}.dist-info"
    entries = [(f"cleave/{path.relative_to(folder)}", path.read_bytes(), path.stat().st_mode & 0o777)
               for path in files_of(folder)]
    entries += [("cleave/__init__.py", (HERE / "launcher.py").read_bytes(), 0o644),
                ("cleave/__main__.py", b"from cleave import main\n\nmain()\n", 0o644),
                (f"{info}/LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644)]
    entries += [(f"{info}/{name}", text.encode(), 0o644) for name, text in wheel_metadata(version, torch, tag).items()]
    path = out / f"cleave-{version}-{tag}.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)

        for name, data, mode in entries:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            add(name, data, mode)
        add(f"{info}/RECORD", "".join(record + [f"{info}/RECORD,,\n"]).encode(), 0o644)
    return path


def write_tarball(folder, out, version):
    """Writes the staged `folder` as cleave-VERSION/; returns the path."""
    name = f"cleave-{version}"
    path = out / f"{name}-linux-x86_64.tar.xz"
    output("tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-cJf", path,
           f"--transform=s,^[.],{name},", "-C", folder, ".", env={**os.environ, "XZ_OPT": "-3 -T0"})
    return path


def depends(folder, scratch):
    """The Depends field: the packages of the libraries that the binaries need, without libtorch's."""
    copies = []
    (scratch / "debian").mkdir(parents=True)
    (scratch / "debian/control").write_text("Source: cleave\n\nPackage: cleave\nArchitecture: amd64\n")
    for path in binaries(folder):
        copies.append(scratch / path.name)
        shutil.copy(path, copies[-1])
        for name in filter(LIBTORCH.match, needed(path)):
            output("patchelf", "--remove-needed", name, copies[-1])
    text = output("dpkg-shlibdeps", "-O", "--ignore-missing-info", f"-l{folder / 'lib'}", *copies, cwd=scratch)
    return re.search(r"shlibs:Depends=(.*)", text).group(1)


def write_deb(folder, out, version, scratch):
    """Writes the staged `folder`, without bundled libraries, as /usr/lib/cleave of a Debian package; returns the path."""
    root = scratch / "root"
    private = root / "usr/lib/cleave"
    shutil.copytree(folder, private)
    manual = root / "usr/share/man/man1"
    manual.mkdir(parents=True)
    for source in files_of(private / "share/man/man1"):
        (manual / f"{source.name}.gz").write_bytes(gzip.compress(source.read_bytes(), mtime=0))
    shutil.rmtree(private / "share")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/cleave").symlink_to("../lib/cleave/bin/cleave")
    config = root / "usr/lib/x86_64-linux-gnu/cmake/Cleave"
    config.mkdir(parents=True)
    (config / "CleaveConfig.cmake").write_text("include(/usr/lib/cleave/lib/cmake/Cleave/CleaveConfig.cmake)\n")
    shutil.copy(private / "lib/cmake/Cleave/CleaveConfigVersion.cmake", config)
    docs = root / "usr/share/doc/cleave"
    docs.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", docs / "copyright")
    shutil.copy(HERE / "README.Debian", docs)
    control = root / "DEBIAN"
    control.mkdir()
    size = sum(path.stat().st_size for path in files_of(private)) // 1024
    maintainer = "Cleave <cleave@localhost>"
    (control / "control").write_text(
        f"Package: cleave\nVersion: {version}\nArchitecture: amd64\nMaintainer: {maintainer}\nInstalled-Size: {size}\n"
        f"Depends: {depends(folder, scratch / 'depends')}\nSection: science\nPriority: optional\n"
        f"Description: {SUMMARY}\n Needs libtorch, which Debian does not have in this version: see\n"
        " /usr/share/doc/cleave/README.Debian.\n")
    postinst = control / "postinst"
    postinst.write_text("#!/bin/sh\n[ -e /usr/lib/cleave/libtorch/torch/lib/libtorch_cpu.so ] ||\n"
                        "  echo 'cleave: libtorch is missing: see /usr/share/doc/cleave/README.Debian'\n")
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path == postinst or path.parent.name == "bin" else 0o644)
    path = out / f"cleave_{version}_amd64.deb"
    output("dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", root, path,
           env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
    return path
