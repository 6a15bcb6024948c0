"""Real input: events of permit applications, handled in order while one of the workers is killed again and again.

``app`` is what a user writes. The rest watches it: ``journal`` (what handlers did), ``rig`` (the processes and the
kills), ``verify`` (whether every promise was kept), ``figures``, ``report`` and ``charts`` (what people see).
"""
