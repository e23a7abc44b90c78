# SPDX-License-Identifier: BSD-3-Clause
"""The papers' data sets, as they are distributed; imported only when one of them is asked for."""

from skal.datasets._layout import DataSet
from skal.datasets._npz import npz_layouts
from skal.datasets._raw.caltech101 import caltech101_layouts
from skal.datasets._raw.cifar import CIFAR10, CIFAR100, cifar_layouts
from skal.datasets._raw.idx import FASHION_MNIST, FASHION_MNIST_START, MNIST_START, idx_layouts
from skal.datasets._raw.svhn import svhn_layouts
from skal.datasets._splits import DIGITS

# Folders named after a data set come before data_home itself, where the two MNISTs cannot be told apart.
KNOWN = {
    "mnist": DataSet(
        "MNIST, 28x28 handwritten digits",
        "http://yann.lecun.com/exdb/mnist/",
        npz_layouts("mnist", DIGITS) + idx_layouts(("mnist", "MNIST/raw", ""), DIGITS, FASHION_MNIST_START),
    ),
    "fashion_mnist": DataSet(
        "Fashion-MNIST, 28x28 pictures of clothes",
        "https://github.com/zalandoresearch/fashion-mnist",
        npz_layouts("fashion_mnist", FASHION_MNIST)
        + idx_layouts(("fashion_mnist", "FashionMNIST/raw", ""), FASHION_MNIST, MNIST_START),
    ),
    "cifar10": DataSet(
        "CIFAR-10, 32x32 colour images of 10 classes",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        npz_layouts("cifar10", CIFAR10) + cifar_layouts("cifar10", CIFAR10),
    ),
    "cifar100": DataSet(
        "CIFAR-100, 32x32 colour images of 100 classes (the fine labels)",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        npz_layouts("cifar100", CIFAR100) + cifar_layouts("cifar100", CIFAR100),
    ),
    "svhn": DataSet(
        "SVHN, 32x32 crops of house numbers",
        "http://ufldl.stanford.edu/housenumbers/",
        npz_layouts("svhn", DIGITS) + svhn_layouts(),
    ),
    "caltech101": DataSet(
        "Caltech101, photographs of 101 classes",
        "https://data.caltech.edu/records/mzrjq-6wc02",
        npz_layouts("caltech101") + caltech101_layouts(),
    ),
}
