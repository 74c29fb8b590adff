"""Attacks the command line with seeded mutations of everything that it reads: ``python -m tests.fuzz --help``.

``generate.py`` makes a case from its number, ``case.py`` builds its files, ``worker.py`` runs it in a forked process,
``laws.py`` judges what it did, ``minimize.py`` shrinks a failure, and ``campaign.py`` runs many of them.
"""
