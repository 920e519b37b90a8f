"""Scripts that import horovod, on hvdlite. Everything that needs torch is in one job."""

import ast
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import hvdlite
from hvdlite.as_horovod import FOLDER
from hvdlite.cli.run import command as run_command

OLD = """
import subprocess
import horovod.torch as hvd
import horovod, torch, hvdlite.torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.common.util import env, extension_available, gloo_built, is_version_greater_equal_than, mpi_built
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.util.threads import in_thread
from horovod.torch.compression import Compression
from horovod.torch.elastic import run
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import ModelStateHandler, TorchState
from horovod.torch.mpi_ops import synchronize, allreduce_async

hvd.init()
assert (hvd.rank(), hvd.size()) == get_env_rank_and_size() == (rank, 2)
assert float(hvd.allreduce(torch.tensor(float(rank)), op=hvd.Sum)) == 1.0
assert float(synchronize(allreduce_async(torch.tensor(2.0)))) == 2.0
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
assert hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16) is optimizer
assert (run, ElasticSampler, TorchState) == (hvd.elastic.run, hvd.elastic.ElasticSampler, hvd.elastic.TorchState)
assert issubclass(TorchState, ObjectState) and HostsUpdatedInterrupt(skip_sync=True).skip_sync
assert Compression is hvd.Compression is hvdlite.torch.Compression
assert HorovodInternalError is hvd.HorovodInternalError and horovod.run is hvdlite.run
assert mpi_built() and not gloo_built() and extension_available("torch") and not extension_available("mxnet")
assert is_version_greater_equal_than("2.16.1", "2.4.0") and not is_version_greater_equal_than("1.15.0rc1", "2.0.0")
with env(SOME="1"):
    assert os.environ["SOME"] == "1"
assert "SOME" not in os.environ
model = torch.nn.Linear(1, 1)
model.weight.data.fill_(rank)  # Horovod trains on; so does what stands in for it
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
ran = []
in_thread(ran.append, (1,)).join(10)
assert ran == [1]
for missing in ("hvd.no_such_name", "import horovod.spark"):
    try:
        exec(missing)
    except (AttributeError, ImportError) as error:
        print(type(error).__name__, error)
assert not hasattr(hvd, "no_such_name")
if rank == 0:
    code = "import horovod; print('child', horovod.__file__)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout, end="")
print("done")
"""


def test_an_old_script_runs_and_its_children_too(hvdliterun, script, tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise RuntimeError('the wrong horovod')")
    result = hvdliterun("--as-horovod", "-np", 2, script(OLD), HOROVOD_CYCLE_TIME="1")
    assert result.code == 0, result.stderr
    for rank in range(2):
        lines = result.lines_of(rank)
        assert lines[-1] == "done"
        assert lines[0].startswith("AttributeError horovod.torch.no_such_name is not in hvdlite")
        assert lines[1].startswith("ModuleNotFoundError horovod.spark is not in hvdlite")
    assert f"child {FOLDER / 'horovod' / '__init__.py'}" in result.lines_of(0)
    assert result.stderr.count("WARNING ranks 0 and 1 start training from different weights") == 1
    assert result.stderr.count("without meaning here: HOROVOD_CYCLE_TIME") == 1


OLD_KERAS = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
import horovod.tensorflow.keras as hvd

hvd.init()
model = keras.Sequential([keras.layers.Embedding(10, 2), keras.layers.ThresholdedReLU(0.5), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.Adam(lr=0.01))
model.compile(loss=keras.losses.mean_squared_error, optimizer=optimizer, experimental_run_tf_function=False)
assert np.isclose(optimizer.lr.numpy(), 0.01)
optimizer.lr = 0.02
model.fit(np.ones((8, 3)), np.ones((8, 3, 1)) * rank, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
assert {v.ref() for v in model.variables} == {v.ref() for v in model.variables}
assert model.variables[0].ref().deref() is model.variables[0] and model.variables[0].ref() != model.variables[1].ref()
assert optimizer.variables() == optimizer.variables
hvd.broadcast_variables(optimizer.variables(), root_rank=0)
x = tf.Variable([1.0])
sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
pairs = sgd._compute_gradients(lambda: x * (rank + 1.0), [x])
assert float(pairs[0][0][0]) == 1.5
sgd.apply_gradients(pairs, experimental_aggregate_gradients=False)
sgd.apply_gradients([(tf.constant([rank * 1.0]), x)])
assert float(x[0]) == 1.0 - 1.5 - 0.5, x
print("done")
"""


def test_a_script_for_keras_2_runs_on_keras_3(hvdliterun, script):
    result = hvdliterun("--as-horovod", "-np", 2, script(OLD_KERAS), limit=120.0, TF_CPP_MIN_LOG_LEVEL="3")
    assert result.code == 0, result.stderr
    for rank in range(2):
        assert result.lines_of(rank)[-1] == "done"


def test_without_the_option_there_is_no_horovod(hvdliterun):
    code = "import importlib.util, sys; print(importlib.util.find_spec('horovod'), [m for m in sys.modules if m.startswith('horovod')])"
    assert hvdliterun("-np", 1, "python", "-c", code).stdout == "None []\n"


def test_another_horovod_is_not_replaced_midway(python, tmp_path):
    (tmp_path / "horovod.py").write_text("")
    done = python("import horovod\nfrom hvdlite.as_horovod import install\ninstall()")
    assert "RuntimeError: horovod is loaded already, from" in done.stderr
    assert python("from hvdlite.as_horovod import install\ninstall(); install()\nimport horovod; print(horovod.run)").stdout.startswith("<function run")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("horovod/**/*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_module_stands_for_its_own_name(path: Path):
    """What a forwarding module says of itself is where it lies, and its target is what it re-exports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    starred = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    targets = [n.args[1].value for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "forward"]
    if starred:
        name = ".".join(p for p in path.relative_to(FOLDER).with_suffix("").parts if p != "__init__")
        assert targets == starred
        target = FOLDER.parent.parent.joinpath(*starred[0].split("."))
        assert target.with_suffix(".py").exists() or (target / "__init__.py").exists()
        assert ast.get_docstring(tree) == f"``{name}`` is ``{starred[0]}``."


ACCEPTED = [
    "-H", "localhost:2", "--fusion-threshold-mb", "2", "--cycle-time-ms", "3", "--timeline-filename", "t.json", "--timeline-mark-cycles",
    "--stall-check-warning-time-seconds", "9", "--stall-check-shutdown-time-seconds=11", "--cache-capacity", "0", "--log-level", "TRACE", "--gloo",
    "--slots-per-host", "2", "--elastic-timeout", "33",
    "--start-timeout", "600", "--autotune", "--no-hierarchical-allreduce", "-p", "22", "--mpi-args=--map-by slot", "-prefix-timestamp", "--verbose",
]  # fmt: skip


def test_horovodruns_options_are_accepted(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    shown = CliRunner().invoke(run_command, ["-np", "2", "--dry-run", *ACCEPTED, "python", str(script), "--gloo"])
    assert shown.exit_code == 0, shown.output
    for variable in (
        "FUSION_THRESHOLD_BYTES=2097152", "TIMELINE=t.json", "TIMELINE_MARK_CYCLES=1", "STALL_WARNING_SECONDS=9", "STALL_SHUTDOWN_SECONDS=11",
        "CACHE_CAPACITY=8", "LOG_LEVEL=DEBUG", "ELASTIC_TIMEOUT_SECONDS=33",
    ):  # fmt: skip
        assert f"HVDLITE_{variable} " in shown.output
    ignored = [line.split()[1] for line in shown.output.splitlines() if line.endswith("means nothing here and is ignored")]
    assert set(ignored) == {
        "--cycle-time-ms", "--gloo", "--start-timeout", "--autotune", "--hierarchical-allreduce", "--ssh-port", "--mpi-args",
        "--prefix-output-with-timestamp",
    }  # fmt: skip
    assert shown.output.rstrip().endswith("--gloo")


def test_our_own_flag_wins(tmp_path):
    (tmp_path / "t.py").touch()
    words = ["-np", "1", "--dry-run", "--fusion-threshold-mb", "2", "--fusion-threshold-bytes", "77", "--no-stall-check", str(tmp_path / "t.py")]
    shown = CliRunner().invoke(run_command, words).output
    assert "HVDLITE_FUSION_THRESHOLD_BYTES=77 " in shown
    assert "HVDLITE_STALL_WARNING_SECONDS=0 " in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-H", "localhost:1,elsewhere:2"], "--hosts names elsewhere; hvdliterun starts ranks on this machine"),
        (["--min-np", "3"], "-np 2 lies outside --min-np 3"),
        (["--max-np", "1"], "-np 2 lies outside --min-np 2 and --max-np 1"),
        (["--min-np", "2", "--blacklist-cooldown-range", "1", "9999"], "--blacklist-cooldown-range 1 9999 cannot be used"),
        (["--min-np", "1", "--elastic-timeout", "soon"], "HVDLITE_ELASTIC_TIMEOUT_SECONDS='soon' is not a number"),
        (["--min-np", "1", "--link", "1gbit"], "--link makes hosts for one number of ranks"),
        (["--host-discovery-script", "x", "-H", "localhost:2"], "both --host-discovery-script and -H or -hostfile are given"),
        (["--config-file", "c.yaml"], "--config-file c.yaml is not read"),
        (["--fusion-threshold-mb", "much"], "--fusion-threshold-mb much is no number"),
        (["--hostfile", "nowhere"], "--hostfile nowhere cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(words, reason):
    result = CliRunner().invoke(run_command, ["-np", "2", *words, "python", "-c", "1"])
    assert isinstance(result.exception, hvdlite.SettingError)
    assert reason in str(result.exception)


def test_check_build_is_the_doctors_report(monkeypatch):
    def examine() -> int:
        click.echo("the report")
        return 1

    monkeypatch.setattr("hvdlite.cli.doctor.command", click.Command("doctor", callback=examine))
    result = CliRunner().invoke(run_command, ["--check-build"])
    assert (result.exit_code, result.output) == (1, "the report\n")


def test_a_hostfile_of_this_machine_will_do(tmp_path):
    (tmp_path / "hosts").write_text("# mine\n\nlocalhost slots=4\n")
    result = CliRunner().invoke(run_command, ["-np", "2", "--dry-run", "-hostfile", str(tmp_path / "hosts"), "python", "-c", "1"])
    assert result.exit_code == 0, result.output
