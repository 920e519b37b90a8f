"""hvdlite: data-parallel training with gradient compression."""
