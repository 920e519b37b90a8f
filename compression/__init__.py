"""Gradient compressors, imported as ``hvdlite.compression``: one file is one compressor.

Pure maths. Nothing here communicates, reads files or imports a framework: a compressor *asks* for communication
(see ``_contract.py``) and the engine, or the simulator, answers.
"""

if __name__ == "compression":  # the repository root leads sys.path; from Python 3.14 on this name is the standard library's (PEP 784)
    import os

    __path__ = [os.path.join(os.path.dirname(os.__file__), "compression")]
else:
    from ._contract import (
        AllGather,
        AllReduce,
        AllToAll,
        Broadcast,
        Bucket,
        Compressor,
        Dense,
        Exchange,
        Finish,
        PieceBytes,
        Request,
        Sent,
        Sparse,
        Start,
        Step,
        Tensor,
    )
    from ._feedback import RESIDUAL, ErrorFeedback
    from ._load import CompressorNames, load, names, split_specs
    from ._simulate import Simulated, simulate

    __all__ = [
        "RESIDUAL",
        "AllGather",
        "AllReduce",
        "AllToAll",
        "Broadcast",
        "Bucket",
        "Compressor",
        "CompressorNames",
        "Dense",
        "ErrorFeedback",
        "Exchange",
        "Finish",
        "PieceBytes",
        "Request",
        "Sent",
        "Simulated",
        "Sparse",
        "Start",
        "Step",
        "Tensor",
        "load",
        "names",
        "simulate",
        "split_specs",
    ]
