"""Breaks what can be broken while records flow, and has an independent checker say what became of them.

    python -m tests.chaos --seed 1 --kills 200 --guarantee exactly_once_v2
    python -m tests.chaos --hours 2

``schedule`` says what happens when: a pure function of the seed. ``run`` does it, to real processes of ``penstock run``
(``hosts``) and a real ``cluster``; each family of faults has a module, and ``means`` what they need. ``recovery``
counts what was seen of each fault, and how long it took until records flowed again. ``checker`` reads topics and shares
no code with Penstock.
"""
