"""The contract between a compressor and whatever runs it.

A compressor is a dataclass with one generator method, :meth:`Compressor.exchange`. It yields what it wants communicated
(:class:`AllReduce`, :class:`AllGather`, :class:`AllToAll`, :class:`Broadcast`) and is sent the answer. It never communicates
itself, so the maths is pure, runs on numpy and on torch arrays alike, and can be played for any number of ranks in one process
(:func:`simulate`).
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from ..arrays import Array, nbytes, ops

if TYPE_CHECKING:
    from ._two_sided import Codec

MIN_COMPRESSED_ELEMENTS = 1024
"""Smaller tensors cost more in messages than they save in bytes; they travel dense, fused in one bucket."""


@dataclass(frozen=True)
class AllReduce:
    """Combine ``array`` element by element over the ranks, and multiply by ``factor``. Answer: the result, same shape, possibly in the same memory."""

    array: Array
    op: Literal["sum", "min", "max", "product", "band"] = "sum"
    resident: bool = False
    """The array is a transport's own, the same one on every rank, so it may be combined where it lies."""
    settled: bool = False
    """Every rank's array held its final values when the ranks agreed on the operation: nobody needs to wait for anybody any more."""
    factor: float = 1.0
    """Of float32 or wider arrays; in the array's own type. A mean is the sum times ``1/P``: a pass over memory less than a division afterwards."""

    def sent_bytes(self, num_ranks: int) -> int:
        """Bytes a rank sends in a bandwidth-optimal allreduce: ``2 (P-1)/P`` of the payload (Patarasuk & Yuan 2009)."""
        return round(2 * (num_ranks - 1) / num_ranks * nbytes(self.array))


@dataclass(frozen=True)
class AllGather:
    """Collect ``arrays`` of every rank. Answer: a list over ranks of tuples of arrays.

    Shapes are equal on every rank, or ``sizes`` lists the bytes of each rank (then there is one 1-D array, and the answer's are bytes).
    """

    arrays: tuple[Array, ...]
    sizes: tuple[int, ...] | None = None

    def sent_bytes(self, num_ranks: int) -> int:
        """Bytes a rank sends: its payload, to each of the other ranks."""
        return (num_ranks - 1) * sum(map(nbytes, self.arrays))


@dataclass(frozen=True)
class AllToAll:
    """Send ``parts[r]`` (a tuple of arrays) to rank r. Answer: a list over ranks of the tuples they sent to this one.

    Every part has the same shapes, on every rank; or ``sizes[s, r]`` are the bytes that rank s sends to rank r, the same matrix on every
    rank (then a part is one vector of bytes, and so is what is received).
    """

    parts: Sequence[tuple[Array, ...]]
    sizes: Array | None = None
    rank: int = 0
    """This one, where the parts differ."""

    def sent_bytes(self, num_ranks: int) -> int:
        """Bytes a rank sends: every part but its own."""
        if self.sizes is None:
            return (num_ranks - 1) * sum(map(nbytes, self.parts[0]))
        return int(self.sizes[self.rank].sum() - self.sizes[self.rank, self.rank])


@dataclass(frozen=True)
class Broadcast:
    """Copy ``array`` of rank ``root`` to every rank. Answer: the array, filled in place."""

    array: Array
    root: int

    def sent_bytes(self, num_ranks: int) -> int:
        """Bytes a rank sends on average: P-1 copies leave some rank, whoever forwards them."""
        return round((num_ranks - 1) / num_ranks * nbytes(self.array))


Request: TypeAlias = AllReduce | AllGather | AllToAll | Broadcast
"""What a transport knows."""


@dataclass(frozen=True)
class PieceBytes:
    """Answer: the payload of how many bytes is worth a message of its own; 0 where whole buckets travel best. The same on every rank."""


@dataclass(frozen=True)
class Start:
    """Begin a request, and go on while it is under way. Answer: a token for :class:`Finish`."""

    request: Any
    """A :data:`Request`, or one of the transport's own."""


@dataclass(frozen=True)
class Finish:
    """Wait for what was started. Answer: that of the request. Every started request is finished, in the same order on every rank."""

    token: Any


Step: TypeAlias = Request | PieceBytes | Start | Finish
"""What an exchange may yield."""


class Sent(Protocol):
    """What this rank itself put on the wire, for error feedback: ``residual = given - sent``."""

    def subtract_from(self, given: Array) -> None:
        """``given -= sent``, in place."""


@runtime_checkable
class Lasting(Sent, Protocol):
    """Keeps what was sent by itself, whatever becomes of the bucket's memory: subtracting it can wait until the next gradient is there."""

    def fold(self, given: Array, more: Array) -> None:
        """``given = (given - sent) + more``, in place and in one pass over memory."""


@dataclass(frozen=True)
class Dense:
    """A sent vector; a function, so that nobody computes it when no error feedback asks."""

    vector: Callable[[], Array]

    def subtract_from(self, given: Array) -> None:
        """``given -= vector()``, in place."""
        given -= self.vector()


@dataclass(frozen=True)
class Sparse:
    """Entries sent unchanged at positions ``index`` (distinct): what remains there is exactly zero."""

    index: Array

    def subtract_from(self, given: Array) -> None:
        """Zero the sent positions, in place."""
        given[self.index] = 0


@dataclass(frozen=True)
class Tensor:
    """One parameter's part of a bucket: ``array`` is a view of the bucket's memory in the parameter's shape."""

    name: str
    array: Array


@dataclass(frozen=True)
class Bucket:
    """What a compressor is given.

    ``flat`` is the whole bucket as one float32 vector (any dtype for compressors with ``any_dtype``), ``tensors`` the same memory per
    parameter. ``out`` is where the result may be written; it can be the memory of ``flat``, so write it only when ``flat`` is no
    longer needed.
    """

    flat: Array
    tensors: tuple[Tensor, ...]
    out: Array
    rank: int
    num_ranks: int

    @classmethod
    def of(cls, flat: Array, named_shapes: Sequence[tuple[str, Sequence[int]]], rank: int, num_ranks: int, out: Array | None = None) -> Bucket:
        """Build a bucket over ``flat`` whose consecutive parts have the given names and shapes."""
        tensors, start = [], 0
        for name, shape in named_shapes:
            stop = start + math.prod(shape)
            tensors.append(Tensor(name, flat[start:stop].reshape(tuple(shape))))
            start = stop
        return cls(flat, tuple(tensors), flat if out is None else out, rank, num_ranks)

    def with_flat(self, flat: Array) -> Bucket:
        """The same bucket over other memory, with the result still going to ``out``."""
        shapes = [(t.name, tuple(t.array.shape)) for t in self.tensors]
        return Bucket.of(flat, shapes, self.rank, self.num_ranks, self.out)


Exchange: TypeAlias = Generator[Step, Any, tuple[Array, Sent]]
"""Yields requests one by one, or begins some before others have ended; is sent their answers, returns ``(mean over ranks, what this rank sent)``."""


@dataclass
class Compressor(ABC):
    """Base of every compressor. Subclasses are dataclasses: a field is an option, with its default, type and comment.

    A file in this folder holds one public subclass; the file's name is the name the user types.
    """

    biased: ClassVar[bool] = False
    """Some mass of the gradient is systematically not sent, so error feedback is on unless refused. Pure rounding does not count."""
    any_dtype: ClassVar[bool] = False
    """Takes buckets of any dtype; the others are given float32."""
    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "allreduce"
    """How its bytes grow: allreduce and two-sided stay constant in the number of ranks, allgather grows with it."""
    depends_on_bucket: ClassVar[bool] = True
    """The result for a parameter depends on what else is in its bucket. False promises the same bits in any, on numpy arrays (a test holds
    it): then the size of buckets may be chosen by measurement."""

    @abstractmethod
    def exchange(self, bucket: Bucket) -> Exchange:
        """Estimate the mean of the bucket over the ranks.

        ``bucket.flat`` is finite, and is changed by nobody but ``none``. Every rank must yield the same kinds of requests with the same
        shapes, and must return the same bits as mean.
        """

    @abstractmethod
    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """Bytes that one rank sends for one exchange of float32 tensors of these shapes. Exact: a test holds it against the requests."""

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape is worth compressing. The others travel dense, together."""
        return len(shape) >= 2 and math.prod(shape) >= MIN_COMPRESSED_ELEMENTS

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise :class:`hvdlite.errors.CompressionError` when these options make no sense for a model of these shapes."""

    @property
    def rounding(self) -> Codec | None:
        """How an entry is written, where to write it shorter is all that the compressor does; None elsewhere. Such payloads can be combined in other
        ways than by their mean."""
        return None

    def state_dict(self) -> dict[str, dict[str, Array]]:
        """Everything that must survive a restart: parameter name -> quantity -> array."""
        return {}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Array]]) -> None:
        """Take over what :meth:`state_dict` gave, on this or another number of ranks."""

    def squared_residual(self, names: Sequence[str]) -> float:
        """Squared norm of what this rank has not sent yet of these parameters; 0 for what keeps nothing."""
        return 0.0

    def rescale(self, factor: float) -> None:
        """The loss scale changed by ``factor``: whatever is kept in gradient units follows."""

    def flush(self) -> None:
        """Make the next exchange dense and leave no residual, so that a checkpoint does not depend on the number of ranks."""

    def spec_with(self, *, feedback: bool) -> str:
        """What a user would type for this compressor with or without error feedback: only what is not default."""
        name = type(self).__module__.rpartition(".")[2]
        options = [f"{f.name}={_written(getattr(self, f.name))}" for f in dataclasses.fields(self) if f.init and getattr(self, f.name) != f.default]
        if feedback != self.biased:
            options.append(f"feedback={_written(feedback)}")
        return f"{name}:{','.join(options)}" if options else name

    @property
    def spec(self) -> str:
        """What a user would type: ``name`` or ``name:option=value,...``."""
        return self.spec_with(feedback=False)

    @property
    def signature(self) -> str:
        """What ranks must agree on before this compressor exchanges anything."""
        return self.spec


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def concatenated(parts: Sequence[Array]) -> Array:
    """The parts as one vector; no copy when there is only one."""
    return parts[0] if len(parts) == 1 else ops(parts[0]).concat(parts)
