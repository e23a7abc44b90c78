"""A run on the disk: a folder that survives kills, what lies in it, and how it is recognised."""

from skal.loop._checkpoint._folder import CheckpointFolder
from skal.loop._checkpoint._run import RunCheckpoint, load_network_state

__all__ = ["CheckpointFolder", "RunCheckpoint", "load_network_state"]
