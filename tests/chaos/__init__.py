"""Injects faults while records flow, and has an independent checker verify all records.

    python -m tests.chaos --seed 1 --kills 200 --guarantee exactly_once_v2
    python -m tests.chaos --hours 2

``schedule`` has the faults and their times, a pure function of the seed. ``run`` injects them into real processes of
``penstock run`` (``hosts``) and a real ``cluster``. Each family of faults has a module, and ``means`` the resources
that they need. ``workloads`` has the applications that run meanwhile. ``recovery`` counts the observed effects of each
fault, and measures the time until records flow again. ``checker`` and ``checkers`` judge the result: they read topics,
and share no code with Penstock.
"""
