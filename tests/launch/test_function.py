"""``hvdlite.run``: a function on every rank of a job of its own."""

JOBS = """
import os
import hvdlite
from hvdlite.errors import LaunchError, SettingError

class Box:  # of __main__, which the ranks do not have
    def __init__(self, value): self.value = value

def train(base, *, scale):
    import numpy
    hvdlite.init()
    total = hvdlite.allreduce(numpy.array([base.value + hvdlite.rank()], float), op=hvdlite.Sum)
    return Box((hvdlite.rank(), hvdlite.size(), scale * total[0], os.environ["COLOR"]))

if __name__ == "__main__":
    boxes = hvdlite.run(train, (Box(10),), {"scale": 2}, num_proc=2, env={"COLOR": "blue"})
    assert [b.value for b in boxes] == [(0, 2, 42.0, "blue"), (1, 2, 42.0, "blue")], [b.value for b in boxes]
    assert not hvdlite.is_initialized()
    factor = 3
    assert hvdlite.run(lambda x: x * factor, [7], np=1) == [21]
    def fail():
        hvdlite.init()
        if hvdlite.rank() == 1:
            raise KeyError("lost")
        hvdlite.barrier()
    for wrong, kind, words in ((lambda: hvdlite.run(fail, np=2), LaunchError, "rank 1 failed: KeyError: 'lost' (exit code 1)"),
                               (lambda: hvdlite.run(fail, np=0), SettingError, "np=0 is no number of ranks")):
        try:
            wrong()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    print("all is well")
"""


def test_results_come_in_the_order_of_ranks_and_faults_with_their_cause(python):
    done = python(JOBS, limit=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all is well"
