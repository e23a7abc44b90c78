"""Query strategies, each as a class and as a function in modAL's form."""

from skal.strategies._random import RandomSampling, random_sampling
from skal.strategies._uncertainty import Entropy, LeastConfidence, Margin, entropy, least_confidence, margin

__all__ = [
    "Entropy",
    "LeastConfidence",
    "Margin",
    "RandomSampling",
    "entropy",
    "least_confidence",
    "margin",
    "random_sampling",
]
