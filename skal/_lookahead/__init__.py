# SPDX-License-Identifier: BSD-3-Clause
"""What retraining on one more label would change: the mathematics behind NTK look-ahead.

``posterior``       the linear algebra: what labels leave of a kernel, and of what a network says
``criteria``        the paper's criteria: what is summed over the evaluation set, as pure functions
``variance``        the criterion ``variance``, and greedy batches by it
``feature_reader``  what one pass over samples keeps of their gradients
``sequential``      labels that come one after the other
``sources``         posteriors of a network's own kernel: from exact blocks, or from such features
``request``         what is asked for: the parameters of the strategy
``query``           scores of a pool and batches, within the memory
``comparators``     what the papers compare with; nothing else imports it unless it is asked for
"""
