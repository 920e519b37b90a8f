"""``Compression``: Horovod's two classes, and every compressor of hvdlite under its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from hvdlite import Compressor, as_compressor
from hvdlite.compression import AllReduce, Bucket, CompressorNames, Dense, Exchange

from .tensors import as_array


class NoneCompressor:
    """Horovod's form of no compression."""

    spec = "none"

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The tensor itself."""
        return tensor


class FP16Compressor:
    """Horovod's form of fp16. Used as ``compression=``, it means hvdlite's ``fp16``, which sums in float32."""

    spec = "fp16"

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor in half precision, and its own dtype; other than floating tensors stay."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The tensor in the dtype it had."""
        return tf.cast(tensor, ctx)


class Compression(metaclass=CompressorNames):
    """What to pass as ``compression=``: ``Compression.none``, ``Compression.fp16``, ``Compression.topk(density=0.01)``, ..."""

    none = NoneCompressor
    fp16 = FP16Compressor

    @staticmethod
    def resolve(compression: Any) -> Compressor | None:
        """Whatever a user may pass, as a compressor; None for no compression."""
        if is_horovod_compressor(compression):
            return HorovodStyle(compression)
        return as_compressor(compression.spec if compression in (NoneCompressor, FP16Compressor) else compression)


def is_horovod_compressor(compression: Any) -> bool:
    """Whether this is a class or object of the user's with Horovod's two methods, and none of ours."""
    ours = isinstance(compression, Compressor) or compression in (NoneCompressor, FP16Compressor)
    return not ours and callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))


@dataclass
class HorovodStyle(Compressor):
    """A user's ``compress(tensor) -> (tensor, ctx)`` and ``decompress(tensor, ctx)``: the compressed tensors are summed."""

    methods: Any
    any_dtype: ClassVar[bool] = True

    def exchange(self, bucket: Bucket) -> Exchange:
        """Compress each tensor, average what comes out, decompress."""
        for tensor in bucket.tensors:
            small, context = self.methods.compress(tf.constant(tensor.array))
            total = yield AllReduce(np.array(as_array(small)))
            mean = total / bucket.num_ranks if small.dtype.is_floating else total // bucket.num_ranks
            tensor.array[...] = as_array(self.methods.decompress(tf.cast(mean, small.dtype), context))
        return bucket.flat, Dense(lambda: bucket.flat)

    def wire_bytes(self, shapes: Any, num_ranks: int) -> int:
        """Not known before the user's methods have run."""
        raise TypeError(f"the wire bytes of {self.methods!r} are not known in advance; a compressor of hvdlite is expected")

    def accepts(self, shape: Any) -> bool:
        """The user's methods are given every tensor."""
        return True

    @property
    def spec(self) -> str:
        """The class's name."""
        return str(getattr(self.methods, "__name__", type(self.methods).__name__))
