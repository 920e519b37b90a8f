"""What Horovod's tests ask of its inner workings."""

import hvdlite


class HorovodBasics:
    """The few questions that have an answer here."""

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        return hvdlite.get_process_set_ids_and_ranks()
