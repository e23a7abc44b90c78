# SPDX-License-Identifier: BSD-3-Clause
"""Query strategies, each as a class and as a function in modAL's form."""

from skal._vocabulary import STRATEGIES
from skal.strategies._albl import ALBL
from skal.strategies._badge import BADGE, badge
from skal.strategies._bait import BAIT, bait
from skal.strategies._bald import BALD, bald
from skal.strategies._cluster_margin import ClusterMargin, cluster_margin
from skal.strategies._coreset import CoreSet, coreset
from skal.strategies._default import Recommended
from skal.strategies._drop_query import DropQuery, drop_query
from skal.strategies._dynamic import DynamicAL, dynamic_al
from skal.strategies._egl import EGL, egl
from skal.strategies._epig import EPIG, epig
from skal.strategies._falcun import Falcun, falcun
from skal.strategies._herding import MaxHerding, UHerding, max_herding, uherding
from skal.strategies._lcmd import LCMD, lcmd
from skal.strategies._learning_loss import LearningLoss, learning_loss
from skal.strategies._lookahead import NTKLookahead, ntk_lookahead
from skal.strategies._max_det import MaxDet, max_det
from skal.strategies._names import CLASSES
from skal.strategies._npc import NPC, npc
from skal.strategies._predictive_std import PredictiveStd, predictive_std
from skal.strategies._prob_cover import ProbCover, prob_cover
from skal.strategies._random import RandomSampling, random_sampling
from skal.strategies._typiclust import TypiClust, typiclust
from skal.strategies._uncertainty import Entropy, LeastConfidence, Margin, entropy, least_confidence, margin

__all__ = [
    "ALBL",
    "BADGE",
    "BAIT",
    "BALD",
    "EGL",
    "EPIG",
    "LCMD",
    "NPC",
    "ClusterMargin",
    "CoreSet",
    "DropQuery",
    "DynamicAL",
    "Entropy",
    "Falcun",
    "LearningLoss",
    "LeastConfidence",
    "Margin",
    "MaxDet",
    "MaxHerding",
    "NTKLookahead",
    "PredictiveStd",
    "ProbCover",
    "RandomSampling",
    "TypiClust",
    "UHerding",
    "badge",
    "bait",
    "bald",
    "cluster_margin",
    "coreset",
    "drop_query",
    "dynamic_al",
    "egl",
    "entropy",
    "epig",
    "falcun",
    "lcmd",
    "learning_loss",
    "least_confidence",
    "margin",
    "max_det",
    "max_herding",
    "npc",
    "ntk_lookahead",
    "predictive_std",
    "prob_cover",
    "random_sampling",
    "typiclust",
    "uherding",
]

# strategies do not import one another, and those that are made of others find them here. ALBL keeps state and has no
# function
CLASSES |= {name: globals()[name] for name in STRATEGIES.values()} | {"Recommended": Recommended}
ALBL.default_arms = (LeastConfidence, CoreSet)
