"""Horovod's API for TensorFlow and Keras, as facts: every public function with its arguments, their order and their defaults (Horovod 0.28.1 and later)."""

TENSORFLOW = """
allreduce(tensor, average=None, device_dense='', device_sparse='', compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=global_process_set, ignore_name_scope=False)
grouped_allreduce(tensors, average=None, device_dense='', device_sparse='', compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set, ignore_name_scope=False, name=None)
reducescatter(tensor, device_dense='', compression=Compression.none, op=Average, name=None, process_set=global_process_set, ignore_name_scope=False, prescale_factor=1.0, postscale_factor=1.0)
grouped_reducescatter(tensors, device_dense='', compression=Compression.none, op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0)
allgather(tensor, name=None, ignore_name_scope=False, process_set=global_process_set)
grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=global_process_set)
broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set)
broadcast_(variables, root_rank, name=None, process_set=global_process_set)
alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=global_process_set)
join()
barrier(process_set=global_process_set)
size_op(process_set_id=0, name=None)
process_set_included_op(process_set_id=0, name=None)
local_size_op(name=None)
rank_op(name=None)
local_rank_op(name=None)
broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False)
broadcast_object(obj, root_rank=0, session=None, name=None, process_set=global_process_set)
broadcast_object_fn(root_rank=0, session=None, name=None, process_set=global_process_set)
allgather_object(obj, session=None, name=None, process_set=global_process_set)
broadcast_global_variables(root_rank)
BroadcastGlobalVariablesHook(root_rank, device='')
check_num_rank_power_of_2(num_rank)
SyncBatchNormalization(fused=False)
DistributedOptimizer(optimizer, name=None, use_locking=False, device_dense='', device_sparse='', compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None, process_set=global_process_set, scale_local_gradients=True)
DistributedGradientTape(gradtape, device_dense='', device_sparse='', compression=Compression.none, sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=global_process_set, scale_local_gradients=True)
PartialDistributedGradientTape(gradtape, device_dense='', device_sparse='', compression=Compression.none, sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=global_process_set, local_layers=None, scale_local_gradients=True)
"""  # noqa: E501 - a fact a line

_CALLBACKS = """
callbacks.BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
callbacks.MetricAverageCallback(device='')
callbacks.LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, momentum_correction=True, steps_per_epoch=None)
callbacks.LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0)
"""

TENSORFLOW_KERAS = f"""
DistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='', compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, average_aggregated_gradients=False, num_groups=0, groups=None, process_set=global_process_set, scale_local_gradients=True)
broadcast_global_variables(root_rank)
allreduce(value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=Compression.none)
allgather(value, name=None)
broadcast(value, root_rank, name=None)
reducescatter(value, name=None, op=Average)
load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False)
{_CALLBACKS}
callbacks.BestModelCheckpoint(monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch')
"""  # noqa: E501

KERAS = f"""
DistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='', compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, num_groups=0, groups=None)
PartialDistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='', compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, average_aggregated_gradients=False, groups=None, process_set=global_process_set, local_layers=None, scale_local_gradients=True)
broadcast_global_variables(root_rank)
allreduce(value, name=None, average=True, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=Compression.none)
allgather(value, name=None)
broadcast(value, root_rank, name=None)
reducescatter(value, name=None, op=Average)
load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False)
{_CALLBACKS}
callbacks.BestModelCheckpoint(monitor='val_loss', verbose=0, mode='auto', save_freq='epoch')
"""  # noqa: E501

_EVERYWHERE = {
    *("init", "shutdown", "is_initialized", "start_timeline", "stop_timeline"),
    *("size", "local_size", "cross_size", "rank", "local_rank", "cross_rank"),
    *("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
    *("Average", "Sum", "Compression"),
}
_SETS = {"ProcessSet", "global_process_set", "add_process_set", "remove_process_set"}
OTHER_NAMES = {
    "hvdlite.tensorflow": _EVERYWHERE | _SETS | {"is_homogeneous", "Adasum", "Min", "Max", "Product", "elastic"},
    "hvdlite.tensorflow.keras": _EVERYWHERE | _SETS | {"callbacks", "elastic"},
    "hvdlite.keras": _EVERYWHERE | {"Adasum", "global_process_set", "callbacks", "elastic"},
}
