"""The A/B answer: does compression pay here, and does it hurt?

``arms`` reads what is compared, ``plan`` is the experiment as it was decided on, ``runner`` runs it and ``runs`` reads what the runs left; ``statistics`` and
``verdict`` judge, ``result`` puts it all together, ``recommendation`` says what to do; ``display`` shows it on the terminal, ``page`` in a browser,
``comparison`` beside another one. What they need comes with ``pip install 'hvdlite[ab]'``.
"""
