"""A checkpoint of the whole job: the model's and the optimizer's variables once, and what each rank's compressor remembers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import hvdlite

from .optimizer import compression_state_dict, link_of, load_compression_state_dict

_SEPARATOR = "|"  # no parameter's name or quantity has it


class Checkpoint:
    """The newest epoch in a folder that all ranks see. Files are complete before they are named, so a job that dies leaves the one before."""

    def __init__(self, folder: str, root_rank: int):
        self._folder, self._root_rank = Path(folder), root_rank
        self._is_own = False  # this process wrote or read it

    def save(self, model: Any, epoch: int) -> None:
        """Every rank calls it after the epoch."""
        self._is_own = True
        target = self._folder / f"epoch-{epoch:05d}"
        is_root = hvdlite.rank() == self._root_rank
        if is_root:
            target.mkdir(parents=True, exist_ok=True)
            model.save_weights(target / "variables.weights.h5")
        hvdlite.barrier()
        write_state(self._state_file(target), compression_state_dict(model.optimizer) if link_of(model.optimizer) else {})
        hvdlite.barrier()
        if is_root:
            pointer = self._folder / "newest.json"
            pointer.with_suffix(".tmp").write_text(json.dumps({"epoch": epoch}), encoding="utf-8")
            os.replace(pointer.with_suffix(".tmp"), pointer)
            for old in self._folder.glob("epoch-*"):
                if old != target:
                    shutil.rmtree(old)

    def restore(self, model: Any) -> None:
        """Every rank calls it before the first epoch. The root reads the variables, which are broadcast afterwards; ``fit`` goes on after the epoch.

        Only what an earlier job left is restored: a second ``fit`` begins where the first one ended.
        """
        if self._is_own:
            return
        self._is_own = True
        pointer = self._folder / "newest.json"
        epoch = json.loads(pointer.read_text(encoding="utf-8"))["epoch"] if hvdlite.rank() == self._root_rank and pointer.exists() else None
        epoch = hvdlite.broadcast_object(epoch, self._root_rank, "keras.checkpoint")
        if epoch is None:
            return
        source = self._folder / f"epoch-{epoch:05d}"
        if hvdlite.rank() == self._root_rank:
            model.load_weights(source / "variables.weights.h5")
        own = self._state_file(source)
        if own.exists():
            load_compression_state_dict(model.optimizer, read_state(own))
        model._initial_epoch = epoch + 1  # as Keras's BackupAndRestore does

    def forget_epoch(self, model: Any) -> None:
        """Training ended: another ``fit`` counts from its own first epoch."""
        model._initial_epoch = None

    def _state_file(self, folder: Path) -> Path:
        return folder / f"compression-{hvdlite.rank()}-of-{hvdlite.size()}.npz"


def write_state(path: Path, state: dict[str, Any]) -> None:
    """A compressor's state as numpy's own file, without pickles."""
    arrays = {f"{name}{_SEPARATOR}{quantity}": array for name, quantities in state.get("state", {}).items() for quantity, array in quantities.items()}
    about = json.dumps({key: value for key, value in state.items() if key != "state"})
    np.savez(path, about=np.array(about), **arrays)


def read_state(path: Path) -> dict[str, Any]:
    """What :func:`write_state` wrote."""
    with np.load(path, allow_pickle=False) as file:
        state: dict[str, Any] = json.loads(str(file["about"]))
        if state:
            state["state"] = {}
        for key in file.files:
            if key != "about":
                name, quantity = key.rsplit(_SEPARATOR, 1)
                state["state"].setdefault(name, {})[quantity] = file[key]
    return state
