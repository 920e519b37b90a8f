"""``horovod.common.process_sets``: process sets, for every framework."""

from hvdlite import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
