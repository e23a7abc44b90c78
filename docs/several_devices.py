"""Active learning with training on several devices, by Accelerate: here two processes on the CPU.

Run it with ``torchrun --nproc_per_node 2 docs/several_devices.py``; on GPUs leave out ``cpu=True``. Every process
holds all the data, trains on its share of each batch, and ends with the same weights, so that all of them query the
same samples.
"""

from accelerate import Accelerator
from skorch import NeuralNetClassifier
from skorch.hf import AccelerateMixin
from torch import nn, optim

from skal import ActiveLearner, datasets, nets
from skal.strategies import BADGE


class TolerantAccelerator(Accelerator):
    """Leaves modules without parameters alone: skorch prepares the criterion too, which torch cannot distribute."""

    def prepare_model(self, model, *args, **kwargs):
        """Wrap a module for this process, if there is something to train in it."""
        trainable = any(parameter.requires_grad for parameter in model.parameters())
        return super().prepare_model(model, *args, **kwargs) if trainable else model


class AcceleratedClassifier(AccelerateMixin, NeuralNetClassifier):
    """skorch's classifier, with Accelerate in charge of the devices."""


accelerator = TolerantAccelerator(cpu=True)
data = datasets.load("digits")
net = AcceleratedClassifier(
    nets.MLP,
    module__n_features=64,
    criterion=nn.CrossEntropyLoss,
    optimizer=optim.Adam,
    max_epochs=20,
    batch_size=16,
    train_split=None,
    verbose=0,
    callbacks__print_log__sink=lambda text: None,
    accelerator=accelerator,
)
learner = ActiveLearner(net, BADGE(random_state=0), X_training=data.X_train[:20], y_training=data.y_train[:20])
X_pool, y_pool = data.X_train[20:], data.y_train[20:]
for _ in range(2):
    indices, samples = learner.query(X_pool, n_instances=20)
    learner.teach(samples, y_pool[indices])
    score = learner.score(data.X_test, data.y_test)
    print(f"process {accelerator.process_index}: {sum(indices.tolist())} {score:.3f}", flush=True)
accelerator.wait_for_everyone()  # a process that ends while another still talks to it takes the other down
accelerator.end_training()
