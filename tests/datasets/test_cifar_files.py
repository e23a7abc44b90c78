"""CIFAR-10 and CIFAR-100: pickled and binary batches, in folders and archives."""

import io
import pickle
import struct
import tarfile

import numpy as np
import pytest

from skal.datasets import load

RNG = np.random.default_rng(0)
BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]


def random_batch(n, n_classes):
    return RNG.integers(0, 256, (n, 3072), dtype=np.uint8), RNG.integers(0, n_classes, n).tolist()


CIFAR10 = {name: random_batch(3, 10) for name in BATCHES}
CIFAR100 = {"train": random_batch(7, 100), "test": random_batch(4, 100)}


def python2_pickle(values, label_key, labels):
    """The bytes that Python 2 wrote: str keys, and an array through numpy.core.multiarray."""

    def text(string):
        return b"U" + bytes([len(string)]) + string

    def number(value):
        return b"J" + struct.pack("<i", value)

    dtype = (
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\0K\1\x87R" + b"(K\3" + text(b"|") + b"NNN" + number(-1) * 2 + b"K\0tb"
    )
    raw = b"T" + struct.pack("<i", values.size) + values.tobytes()
    shape = number(values.shape[0]) + number(values.shape[1]) + b"\x86"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R"
        b"(K\1" + shape + dtype + b"\x89" + raw + b"tb"
    )
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    entries = text(b"data") + array + text(label_key) + listed + text(b"batch_label") + text(b"testing batch 1 of 1")
    return b"\x80\2}(" + entries + b"u."


def python3_pickle(protocol, text_keys):
    def dump(values, label_key, labels):
        batch = {b"data": values, label_key: labels, b"filenames": [b"cat.png", "hund.png"], b"extra": {b"a": 1.5}}
        return pickle.dumps({k.decode(): v for k, v in batch.items()} if text_keys else batch, protocol=protocol)

    return dump


DUMPS = {
    "python 2": python2_pickle,
    **{f"protocol {p}": python3_pickle(p, text_keys=False) for p in range(6)},
    "text keys": python3_pickle(4, text_keys=True),
}


def python_files(name, dump=python2_pickle):
    if name == "cifar10":
        return {f"cifar-10-batches-py/{batch}": dump(v, b"labels", y) for batch, (v, y) in CIFAR10.items()}
    return {f"cifar-100-python/{split}": dump(v, b"fine_labels", y) for split, (v, y) in CIFAR100.items()}


def binary_files(name):
    if name == "cifar10":
        return {
            f"cifar-10-batches-bin/{batch}.bin": b"".join(bytes([y]) + v.tobytes() for v, y in zip(*pair, strict=True))
            for batch, pair in CIFAR10.items()
        }
    return {
        # The coarse label comes first; 19 is no fine label of these images by accident only.
        f"cifar-100-binary/{split}.bin": b"".join(bytes([19, y]) + v.tobytes() for v, y in zip(*pair, strict=True))
        for split, pair in CIFAR100.items()
    }


def write_folder(home, files):
    for path, content in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(content)


def write_archive(path, files, prefix=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"cifar/readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def check(data, name):
    if name == "cifar10":
        train = [CIFAR10[batch] for batch in BATCHES[:5]]
        test = [CIFAR10["test_batch"]]
    else:
        train, test = [CIFAR100["train"]], [CIFAR100["test"]]
    for X, y, batches in ((data.X_train, data.y_train, train), (data.X_test, data.y_test, test)):
        assert y.tolist() == [label for _, labels in batches for label in labels]
        assert y.dtype == np.int64
        assert X.dtype == np.float32
        assert X.shape[1:] == (3, 32, 32)
        values = np.concatenate([values for values, _ in batches])
        # Red, green and blue plane, each by rows.
        np.testing.assert_array_equal(X[:, 1, 2, 3], (values[:, 1024 + 2 * 32 + 3] / 255).astype(np.float32))
        np.testing.assert_array_equal(X.reshape(len(X), -1), (values / 255).astype(np.float32))
    assert len(data.target_names) == (10 if name == "cifar10" else 100)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("parent", ["", "own"])
def test_folders(tmp_path, name, parent):
    for version, files in (("py", python_files(name)), ("bin", binary_files(name))):
        home = tmp_path / version
        write_folder(home / name if parent else home, files)
        check(load(name, home), name)


ARCHIVES = [
    ("cifar10", "cifar-10-python.tar.gz", python_files),
    ("cifar10", "cifar-10-binary.tar.gz", binary_files),
    ("cifar100", "cifar-100-python.tar.gz", python_files),
    ("cifar100", "cifar-100-binary.tar.gz", binary_files),
]


@pytest.mark.parametrize(("name", "archive", "files"), ARCHIVES)
@pytest.mark.parametrize("prefix", ["", "./"])
def test_archives(tmp_path, name, archive, files, prefix):
    write_archive(tmp_path / archive, files(name), prefix)
    data = load(name, tmp_path)
    check(data, name)
    assert archive in data.DESCR
    assert [path.name for path in tmp_path.iterdir()] == [archive]


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_pickles_of_every_age(tmp_path, name, dump):
    write_folder(tmp_path, python_files(name, dump))
    check(load(name, tmp_path), name)


def test_a_folder_that_lacks_a_batch_is_passed_over(tmp_path):
    write_folder(tmp_path, python_files("cifar10"))
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py: .*\(there, except data_batch_4\)"):
        load("cifar10", tmp_path)
    write_folder(tmp_path, binary_files("cifar10"))
    check(load("cifar10", tmp_path), "cifar10")


def pickled(**changes):
    values, labels = CIFAR10["data_batch_2"]
    batch = {b"data": values, b"labels": labels, **{key.encode(): value for key, value in changes.items()}}
    return pickle.dumps({key: value for key, value in batch.items() if value is not None}, protocol=2)


BAD_PICKLES = {
    "truncated": (pickled()[:-100], "truncated, damaged or unsafe pickle"),
    "empty": (b"", "truncated, damaged or unsafe pickle"),
    "not a pickle": (b"<html>not found</html>", "truncated, damaged or unsafe pickle"),
    "not a dict": (pickle.dumps([1, 2]), "expected a dict, got list"),
    "no data": (pickled(data=None), "must hold 'data' and 'labels'. Got .*labels.* instead"),
    "no labels": (pickled(labels=None), "must hold 'data' and 'labels'"),
    "labels too few": (pickled(labels=[1, 2]), "3 samples but 2 labels"),
    "label out of range": (
        pickled(labels=[1, 2, 10]),
        r"labels of the batch must lie in 0\.\.9\. Got values from 1 to 10",
    ),
    "labels that are no integers": (pickled(labels=[b"a", b"b", b"c"]), "labels must be integers"),
    "rows of another length": (pickled(data=np.zeros((3, 3071), np.uint8)), r"\(N, 3072\)\. Got uint8 \(3, 3071\)"),
    "floats": (pickled(data=np.zeros((3, 3072))), r"Got float64"),
    "data that is no array": (pickled(data=[1, 2, 3]), r"Got list"),
}


@pytest.mark.parametrize(("content", "message"), BAD_PICKLES.values(), ids=BAD_PICKLES)
def test_bad_pickles_are_refused(tmp_path, content, message):
    write_folder(tmp_path, {**python_files("cifar10"), "cifar-10-batches-py/data_batch_2": content})
    with pytest.raises(ValueError, match=rf"data_batch_2: .*{message}"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "record"),
    [("cifar10", "cifar-10-batches-bin/test_batch.bin", 3073), ("cifar100", "cifar-100-binary/test.bin", 3074)],
)
@pytest.mark.parametrize("keep", [0, 100, -1])
def test_truncated_binary(tmp_path, name, path, record, keep):
    files = binary_files(name)
    files[path] = files[path][:keep]
    write_folder(tmp_path, files)
    with pytest.raises(ValueError, match=rf"{path}: .*records of {record} bytes\. Got {len(files[path])} bytes"):
        load(name, tmp_path)


def test_binary_label_out_of_range(tmp_path):
    files = binary_files("cifar10")
    files["cifar-10-batches-bin/data_batch_1.bin"] = b"\x0a" + bytes(3072)
    write_folder(tmp_path, files)
    with pytest.raises(ValueError, match=r"data_batch_1\.bin: the labels of the batch must lie in 0\.\.9"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 5000, -20])
def test_truncated_archive(tmp_path, keep):
    path = tmp_path / "cifar-10-python.tar.gz"
    write_archive(path, python_files("cifar10"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz: damaged or truncated archive"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("position", [3, 5000, -2, -6])
def test_damaged_archive(tmp_path, position):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_archive(path, binary_files("cifar10"))
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz: damaged or truncated archive"):
        load("cifar10", tmp_path)


def test_archive_that_lacks_a_member(tmp_path):
    files = python_files("cifar10")
    del files["cifar-10-batches-py/data_batch_3"]
    write_archive(tmp_path / "cifar-10-python.tar.gz", files)
    with pytest.raises(ValueError, match=r"tar\.gz: the archive lacks cifar-10-batches-py/data_batch_3"):
        load("cifar10", tmp_path)
