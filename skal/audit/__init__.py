# SPDX-License-Identifier: BSD-3-Clause
"""How good a model is, with a guarantee, and which samples it may label: from a few labels that are drawn by chance.

:func:`plan` draws the samples of an audit. With their labels, :func:`accuracy`, :func:`accuracy_by_class`,
:func:`balanced_accuracy` and :func:`mean_score` estimate how good the model is, :func:`certify` says which samples it
may label, :func:`labels_left` how many are left for people with audits of other sizes, and :func:`errors` audits labels
from elsewhere. :func:`plan_sequence` and :func:`accuracy_sequence` are for audits that go on, with intervals that may
be looked at after every label.

>>> from skal.audit import plan
>>> positions, probabilities = plan(1000, 5, uniform=True, random_state=0)
>>> len(positions)
5
"""

from skal.audit._accuracy import accuracy, accuracy_by_class, balanced_accuracy
from skal.audit._certificate import Certificate, certify
from skal.audit._design import plan
from skal.audit._estimate import Estimate, mean_score
from skal.audit._files import audit_command, draw_command
from skal.audit._given_labels import ErrorEstimate, errors
from skal.audit._labels_left import labels_left
from skal.audit._sequence import Sequence, accuracy_sequence, plan_sequence

__all__ = [
    "Certificate",
    "ErrorEstimate",
    "Estimate",
    "Sequence",
    "accuracy",
    "accuracy_by_class",
    "accuracy_sequence",
    "audit_command",
    "balanced_accuracy",
    "certify",
    "draw_command",
    "errors",
    "labels_left",
    "mean_score",
    "plan",
    "plan_sequence",
]
