"""Kills what can be killed while records flow, and has an independent checker say what became of them.

    python -m tests.chaos --seed 1 --kills 200 --guarantee exactly_once_v2

``schedule`` says what happens when: a pure function of the seed. ``hosts``, ``feeder`` and ``run`` do it, to real
processes of ``penstock run`` and a real broker. ``workloads`` has what runs meanwhile. ``checker`` and ``checkers`` judge
it: they read topics, and share no code with Penstock.
"""
