"""The forecast: what would a training step take with another compressor, on another network, with more ranks?

``measure`` runs what measures (the user's script with ``telemetry.steps`` in it, then ``ranks`` on the same ranks), and ``measured`` is what came of it.
``pipeline`` plays one step of the engine, and knows nothing of where its numbers come from; ``costs`` and ``model`` make them out of what was measured, for a
``place``. ``forecast`` asks it for every compressor, ``audit`` compares with an ab, ``backtest`` is the closed form for other people's logs, ``display`` shows.
"""
