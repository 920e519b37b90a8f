"""The A/B answer: does compression pay here, and does it hurt?

``arms`` reads what is compared, ``plan`` is the experiment as it was decided on, ``runner`` runs it and ``runs`` reads what the runs left; ``statistics`` and
``verdict`` judge, ``result`` puts it all together, ``display`` shows it. scipy and rich come with ``pip install 'hvdlite[ab]'``.
"""
