"""hvdlite: data-parallel training with gradient compression.

Frameworks have adapters (``import hvdlite.torch as hvd``); what is here works on numpy arrays and is what the adapters stand on. The
public names are those of ``hvdlite.api``, loaded when the first one is used: the launcher and the command line start without numpy.
"""

from typing import TYPE_CHECKING

from .version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from .api import *  # noqa: F403 - one list of names, in one place
else:

    def __getattr__(name):
        from importlib import import_module, util

        if (name.startswith("__") and name != "__all__") or (name != "world" and util.find_spec(f"hvdlite.{name}")):
            raise AttributeError(f"module 'hvdlite' has no attribute {name!r}")  # "from . import settings" asks here before it looks for the module
        try:
            value = globals()[name] = getattr(import_module("hvdlite.api"), name)  # from now on it is found without asking here
        except AttributeError:
            raise AttributeError(f"module 'hvdlite' has no attribute {name!r}") from None
        return value

    def __dir__():
        from importlib import import_module

        return sorted({*globals(), *import_module("hvdlite.api").__all__})
