"""One rank of collectives.py: MEETING ROUNDS BLOCK_SECONDS BYTES...; rank 0 prints one line of JSON: bytes -> way -> milliseconds."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import torch
import torch.distributed as dist
from _timing import Action, alternated_ms

import hvdlite
import hvdlite.torch as hvd

HALF_PAGE = 512  # float32; copying between equal places of two pages is several times slower, by an accident of the processor


def ways(num_bytes: int, comm, MPI) -> tuple[dict[str, Action], list[np.ndarray]]:
    """By name: how to sum ``num_bytes`` over the ranks; and the arrays that are summed."""
    size, name = num_bytes // 4, f"{num_bytes} bytes"
    buckets = hvdlite.GradientBuckets(hvdlite.world(), name, [hvdlite.Parameter("flat", (size,), "float32")], None, op=hvdlite.Sum)
    bucket, tensor = buckets.view("flat"), torch.ones(size)
    copy = np.empty(size + HALF_PAGE, np.float32)[HALF_PAGE:]
    bucket[:] = copy[:] = 1
    array = tensor.numpy()

    def exchange_bucket() -> None:
        buckets.mark_ready("flat")
        buckets.finish()

    found: dict[str, Action] = {
        "hvdlite bucket": exchange_bucket,
        "hvdlite tensor": lambda: hvd.allreduce_(tensor, name=name, op=hvd.Sum),
        "MPI.Allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, array),
        "gloo": lambda: dist.all_reduce(tensor),
        "memcpy": lambda: np.copyto(copy, array),
    }
    if find_spec("horovod"):
        import horovod.torch as horovod

        horovod.init()
        found["Horovod"] = lambda: horovod.allreduce_(tensor, name=name, op=horovod.Sum)
    return found, [bucket, array]


def check(found: dict[str, Action], arrays: list[np.ndarray], comm) -> None:
    """Every way must give the sum: speed of a wrong result is no speed."""
    for name in (way for way in found if way != "memcpy"):
        comm.Barrier()
        for array in arrays:
            array[:] = 1 + comm.rank
        found[name]()
        total = comm.size * (comm.size + 1) / 2
        assert any((array == total).all() for array in arrays), f"{name} gave {[float(a[0]) for a in arrays]}, expected {total}"


def main() -> None:
    meeting, rounds, block_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    hvd.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=hvd.rank(), world_size=hvd.size())
    figures = {}
    for num_bytes in map(int, sys.argv[4:]):
        found, arrays = ways(num_bytes, comm, MPI)
        check(found, arrays, comm)
        for array in arrays:
            array[:] = 0  # sums of zeros stay what they are
        figures[num_bytes] = alternated_ms(found, rounds, block_seconds, together=comm.Barrier, agreed=lambda mine: comm.allreduce(mine, MPI.MAX))
    if hvd.rank() == 0:
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
