"""Processes that start at once: copies of one that has imported what takes longest, torch above all."""

import multiprocessing

PRELOADED = ["torch", "skorch", "sklearn.linear_model", "PIL.Image", "uvicorn", "distributed", "skal.labelling"]

READY = multiprocessing.get_context("forkserver")
READY.set_forkserver_preload(PRELOADED)
