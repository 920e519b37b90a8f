"""The folder at the top level has the name of a package of the standard library, and steps aside for it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hvdlite.compression

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "compression"


def test_under_the_name_of_the_standard_library_it_is_the_standard_library():
    spec = importlib.util.spec_from_file_location("compression", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.__path__ == [os.path.join(os.path.dirname(os.__file__), "compression")]
    assert not hasattr(module, "Compressor")


@pytest.mark.parametrize(
    "code",
    [
        "import gzip, bz2, lzma, tarfile, zipfile",
        "import compression; assert compression.__path__ == [os.path.join(os.path.dirname(os.__file__), 'compression')]",
        "import hvdlite.compression; assert 'topk' in hvdlite.compression.names(); import gzip, bz2, lzma",
    ],
)
def test_with_the_repository_first_on_the_path(code):
    code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_compressor_loads_no_framework():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hvdlite.compression import load, names; [load(name) for name in names()]; "
        "print({'torch', 'tensorflow', 'jax', 'mpi4py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_there_is_one_folder_and_a_link_to_it():
    link = ROOT / "hvdlite" / "compression"
    assert link.is_symlink()
    assert os.readlink(link) == os.path.join("..", "compression")
    assert Path(hvdlite.compression.__file__).samefile(FOLDER / "__init__.py")
