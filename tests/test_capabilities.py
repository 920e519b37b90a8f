import pytest

import hvdlite


def test_alone_nothing_is_enabled(monkeypatch):
    monkeypatch.setenv("HVDLITE_TRANSPORT", "local")
    with pytest.raises(ValueError, match=r"use hvd.init\(\)"):
        hvdlite.mpi_threads_supported()
    hvdlite.init()
    try:
        assert hvdlite.mpi_built()
        assert not hvdlite.mpi_enabled()
    finally:
        hvdlite.shutdown()


def test_what_is_not_there_is_not_claimed():
    assert hvdlite.nccl_built() == 0
    assert not any(f() for f in (hvdlite.gloo_built, hvdlite.gloo_enabled, hvdlite.ddl_built, hvdlite.ccl_built, hvdlite.cuda_built, hvdlite.rocm_built))
