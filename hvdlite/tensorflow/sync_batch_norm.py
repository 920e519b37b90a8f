"""``SyncBatchNormalization``: batch normalisation with the moments of all ranks' batches together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import hvdlite
from hvdlite import ProcessSet, global_process_set

from .collectives.allgather import gather_rows
from .tensors import plain_python


@tf.keras.utils.register_keras_serializable(package="hvdlite")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """A Keras layer whose moments are over the batches of all ranks, whatever their sizes; its gradients are those of one process with all of them.

    One exchange of ``2 * channels + 1`` numbers a rank and call, and one in the backward pass.

    Args:
        fused: must be False; there is no fused kernel that communicates.
        process_set: the ranks whose batches count as one; on the others it is an ordinary layer. A saved layer does not keep it.
        **kwargs: those of ``tf.keras.layers.BatchNormalization``, but ``synchronized``.
    """

    def __init__(self, fused: bool = False, *, process_set: ProcessSet = global_process_set, **kwargs: Any):
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if kwargs.get("synchronized"):
            raise ValueError("synchronized=True means the replicas of tf.distribute; SyncBatchNormalization synchronizes ranks by itself; leave it out")
        super().__init__(**kwargs)
        self._process_set = process_set

    @plain_python
    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Every rank's count, mean and variance of each channel, merged as Chan et al. (1979) do: no difference of large squares."""
        if hvdlite.world().partners(self._process_set) is None:
            mean, variance = super()._moments(inputs, mask)
            return mean, variance
        if mask is None:
            mean, variance = tf.nn.moments(inputs, self._reduction_axes)
            entries = tf.size(inputs)
        else:
            mean, variance = super()._moments(inputs, mask)
            entries = tf.math.count_nonzero(mask, dtype=tf.int32) * tf.shape(inputs)[-1]
        count = tf.cast(entries // tf.size(mean), mean.dtype)
        mine = tf.concat([mean, variance], 0)
        mine = tf.where(count > 0, mine, tf.zeros_like(mine))  # those of an empty batch are NaN
        rows = gather_rows(tf.concat([count[tf.newaxis], mine], 0), self._process_set)
        counts, means, variances = tf.split(rows, [1, mean.shape[0], mean.shape[0]], axis=1)
        share = counts / tf.reduce_sum(counts)
        whole = tf.reduce_sum(share * means, 0)
        return whole, tf.reduce_sum(share * (variances + tf.square(means - whole)), 0)
