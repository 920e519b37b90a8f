"""Several hosts on one machine, as ``hvdliterun --link`` makes them, for jobs that also run what is compared with it. Needs root, ip and tc."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import TracebackType

import hvdlite.launch.hosts
from hvdlite.launch.hosts import INTERFACE, why_not
from hvdlite.link import parse_link

__all__ = ["INTERFACE", "Hosts", "why_not"]


class Hosts(hvdlite.launch.hosts.Hosts):
    """``count`` hosts with links of ``rate`` (1gbit, 100mbit; none: not shaped), for the length of a with block."""

    def __init__(self, count: int, rate: str):
        super().__init__(count, None if rate == "none" else parse_link(rate))

    def __enter__(self) -> Hosts:
        super().__enter__()
        self._folder = tempfile.TemporaryDirectory()
        self.shell = Path(self._folder.name) / "shell"
        self.write_shell(self.shell)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._folder.cleanup()

    def mpiexec(self, mpiexec: str, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """One rank on every host under MPICH's launcher: the command line, and what its environment needs."""
        launcher = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(self.shell), "-iface", INTERFACE, "-hosts", ",".join(self.addresses), "-ppn", "1"]
        return self.on(0, [*launcher, "-n", str(self.count), *command]), {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": INTERFACE}


if __name__ == "__main__":
    sys.exit(why_not() or 0)
