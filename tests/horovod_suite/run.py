"""Run Horovod's own tests on hvdlite, and count.

    python tests/horovod_suite/run.py /path/to/horovod -np 2 [files] [-k expression] [--json counts.json]

The first argument is a checkout of github.com/horovod/horovod, of which nothing is changed; its tests need `pip install mock parameterized`. Each
file runs in a job of its own, ``hvdliterun --as-horovod -np N -m pytest FILE``. A test that hangs or takes its process down ends that job; the next
job goes on after it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

PARALLEL = (
    "test_common", "test_timeline", "test_torch", "test_adasum_pytorch", "test_process_sets_static", "test_process_sets_multi_comm", "test_tensorflow",
    "test_tensorflow_process_sets", "test_tensorflow_process_sets_dynamic", "test_adasum_tensorflow", "test_tensorflow2_keras",
    "test_tensorflow2_keras_process_sets", "test_tensorflow_keras", "test_keras", "test_xla", "test_xla_process_sets", "test_compute_worker",
)  # fmt: skip
FILES = [f"test/parallel/{name}.py" for name in PARALLEL] + ["test/single/test_torch_elastic.py"]
GRACE_SECONDS = 10.0
"""How long the other ranks may take when a test has failed on one: it may have left them waiting."""
OUTCOMES = ("passed", "failed", "skipped", "hang", "crash")
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Test:
    """What is known of one test."""

    started: float | None = None
    by_rank: dict[int, tuple[str, str]] = field(default_factory=dict)
    cut_short: str = ""

    def outcome(self) -> str:
        """A test has failed if it has on any rank, and was skipped if it was on all."""
        outcomes = {outcome for outcome, _ in self.by_rank.values()}
        if "failed" in outcomes:
            return "failed"
        if self.cut_short:
            return self.cut_short
        return "skipped" if outcomes == {"skipped"} else "passed"

    def reason(self, num_ranks: int) -> str:
        reasons: dict[str, list[int]] = {}
        for rank, (outcome, why) in sorted(self.by_rank.items()):
            if outcome != "passed":
                reasons.setdefault(why, []).append(rank)
        said = [why if len(ranks) == num_ranks else f"rank {', '.join(map(str, ranks))}: {why}" for why, ranks in reasons.items()]
        silent = [str(r) for r in range(num_ranks) if r not in self.by_rank]
        if self.cut_short and silent:
            said.append(f"rank {', '.join(silent)}: {'still running' if self.cut_short == 'hang' else 'gone'}")
        return "; ".join(said)


class File:
    """One file of tests, in as many jobs as it takes."""

    def __init__(self, checkout: Path, name: str, num_ranks: int, select: str | None, timeout: float, log: Path):
        self._path, self.name, self.num_ranks = checkout / name, name, num_ranks
        self._select, self._timeout, self._log = select, timeout, log
        self.tests: dict[str, Test] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        """Until every test has an outcome, or a job got no further."""
        while True:
            before = len(self._finished())
            waiting = self._job()
            if not waiting or len(self._finished()) == before:
                self.problems += [f"{test}: not run" for test in waiting]
                return

    def _finished(self) -> list[str]:
        return [name for name, test in self.tests.items() if test.cut_short or len(test.by_rank) == self.num_ranks]

    def _job(self) -> list[str]:
        """One job; gives the tests that are still to be run."""
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            (directory / "done").write_text(json.dumps(self._finished()))
            select = ["-k", self._select] if self._select else []
            command = [
                sys.executable, "-m", "hvdlite", "run", "--as-horovod", "-np", str(self.num_ranks), "--no-prefix",
                "-m", "pytest", "-p", "ranks", "-p", "no:cacheprovider",
                "-q", "--tb=short", "--rootdir", str(self._path.parent), "-o", f"faulthandler_timeout={max(1.0, self._timeout - 5)}", *select, str(self._path),
            ]  # fmt: skip
            paths = [str(ROOT), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SUITE_DIRECTORY": scratch, "SUITE_RANKS": str(self.num_ranks)}
            environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            with self._log.open("a") as log:
                job = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, cwd=scratch)
                return self._watch(job, directory)

    def _watch(self, job: subprocess.Popen[bytes], directory: Path) -> list[str]:
        collected: list[str] = []
        events = [directory / f"events.{rank}" for rank in range(self.num_ranks)]
        read = [0] * self.num_ranks
        began = time.monotonic()
        ended = False
        while True:
            for rank, path in enumerate(events):
                lines = path.read_text().splitlines(keepends=True) if path.exists() else []
                for line in lines[read[rank] :]:
                    if line.endswith("\n"):
                        read[rank] += 1
                        collected = self._note(json.loads(line)) or collected
            running = [test for test in self.tests.values() if test.started is not None and not test.cut_short and len(test.by_rank) < self.num_ranks]
            if ended:
                for test in running:
                    test.cut_short = "crash"
                return [name for name in collected if name not in self._finished()]
            if job.poll() is not None:
                ended = True  # and read once more
                continue
            for test in running:
                waited = time.monotonic() - (test.started or 0.0)
                has_failed = any(outcome == "failed" for outcome, _ in test.by_rank.values())
                if waited > self._timeout or (has_failed and waited > GRACE_SECONDS):
                    test.cut_short = "hang"
                    _stop(job)
                    return [name for name in collected if name not in self._finished()]
            if not running and not collected and time.monotonic() - began > 2 * self._timeout:
                self.problems.append(f"no test had begun after {2 * self._timeout:.0f} s")
                _stop(job)
                return []
            time.sleep(0.05)

    def _note(self, event: dict[str, object]) -> list[str]:
        """Take an event in; gives the tests that a job has found."""
        rank = int(str(event["rank"]))
        if event["event"] == "collected":
            return [str(name) for name in event["tests"]]  # type: ignore[attr-defined]
        if event["event"] == "not_collected":
            problem = f"{event['outcome']}: {event['reason']}"
            if problem not in self.problems:
                self.problems.append(problem)
            return []
        test = self.tests.setdefault(str(event["test"]), Test())
        if event["event"] == "start":
            test.started = time.monotonic()
        else:
            test.by_rank[rank] = str(event["outcome"]), str(event["reason"])
            test.started = time.monotonic() if event["outcome"] == "failed" and len(test.by_rank) == 1 else test.started
        return []

    def counts(self) -> dict[str, int]:
        """How many tests came to which end."""
        found = Counter(test.outcome() for test in self.tests.values())
        return {outcome: found[outcome] for outcome in OUTCOMES}

    def reasons(self, outcome: str) -> dict[str, str]:
        """The tests that came to this end, and why."""
        return {name.split("::")[-1]: test.reason(self.num_ranks) for name, test in self.tests.items() if test.outcome() == outcome}


def _stop(job: subprocess.Popen[bytes]) -> None:
    """The launcher ends its ranks when it is asked to end."""
    job.send_signal(signal.SIGTERM)
    try:
        job.wait(20.0)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def main() -> int:
    """Run the files that were asked for and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of Horovod")
    parser.add_argument("files", nargs="*", help="below the checkout; all that run on ranks otherwise")
    parser.add_argument("-np", type=int, default=2, help="how many ranks; files of test/single get one")
    parser.add_argument("-k", help="pytest's expression: which tests")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that a test may take")
    parser.add_argument("--log", type=Path, default=Path("horovod_suite.log"), help="what pytest printed")
    parser.add_argument("--json", type=Path, help="write the counts and reasons there")
    parser.add_argument("--skips", action="store_true", help="say why tests were skipped, too")
    args = parser.parse_args()
    args.log.write_text("")
    report: dict[str, object] = {}
    for name in args.files or FILES:
        file = File(args.checkout.resolve(), name, 1 if "/single/" in name else args.np, args.k, args.timeout, args.log.resolve())
        began = time.monotonic()
        file.run()
        counts = file.counts()
        said = ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
        print(f"{name}, {file.num_ranks} ranks: {said} ({time.monotonic() - began:.0f} s)", flush=True)
        for outcome in ("failed", "hang", "crash", *(["skipped"] if args.skips else [])):
            for test, reason in file.reasons(outcome).items():
                print(f"  {outcome} {test}: {' '.join(reason.split())[:400]}", flush=True)
        for problem in file.problems:
            print(f"  {' '.join(problem.split())[:400]}", flush=True)
        reasons = {outcome: file.reasons(outcome) for outcome in OUTCOMES if outcome != "passed"}
        report[name] = {"num_ranks": file.num_ranks, "counts": counts, "reasons": reasons, "problems": file.problems}
        if args.json:
            args.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
