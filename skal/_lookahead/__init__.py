# SPDX-License-Identifier: BSD-3-Clause
"""What retraining on one more label would change: the mathematics behind NTK look-ahead.

``criteria``     what is summed over the evaluation set, as pure functions
``posterior``    the linear algebra: what labels leave of a kernel, and of what a network says
``features``     what one pass over samples keeps of their gradients
``sources``      posteriors of a network's own kernel: from exact blocks, or from such features
``query``        scores of a pool, greedy batches, labels that come one after the other
``comparators``  what the papers compare with; nothing else imports it unless it is asked for
"""
