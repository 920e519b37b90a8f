import hvdlite


def test_ranks_talk_through_mpi(size):
    assert hvdlite.mpi_built()
    assert hvdlite.mpi_enabled() is (size > 1)
    assert len(set(hvdlite.allgather_object(hvdlite.mpi_threads_supported()))) == 1
