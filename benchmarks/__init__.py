"""Side-by-side timings, printed as ratios: ``python -m benchmarks`` runs them all.

Every module of this package whose name has no leading underscore is a benchmark: it has a ``main(argv)`` that
prints its results and returns an exit status (or None), and its docstring's first line says what it measures.
"""
