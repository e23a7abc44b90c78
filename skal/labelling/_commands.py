# SPDX-License-Identifier: BSD-3-Clause
"""The commands ``skal label``, ``skal export`` and ``skal import``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from skal.exceptions import InvalidParameterError, SampleError


def add_label(commands: Any) -> None:
    """``skal label``."""
    parser = commands.add_parser(
        "label",
        help="label images or texts in the browser, while a model learns what to ask",
        description="Label a folder of images, a table of texts or an npz file in the browser. A model is trained in "
        "the background and chooses what to label next. Every label is on the disk before the next sample is shown. "
        "Repeat the command to go on.",
    )
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE", help="a folder of images, a CSV or JSONL file, or an npz"
    )
    parser.add_argument("--classes", metavar="A,B,…", help="more can be added on the page; quote a class with a comma")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where labels and model go (SOURCE-labels)")
    parser.add_argument("--labels", metavar="FILE", help="known labels (id, label), or 'folders' for sub-folders")
    parser.add_argument("--text", metavar="COLUMN", help="the column of the texts")
    parser.add_argument("--strategy", default="auto", metavar="NAME", help="a function of skal.strategies (auto)")
    parser.add_argument(
        "--query-size", type=int, default=20, metavar="N", help="new labels before the next training (20)"
    )
    parser.add_argument("--model", metavar="PATH:NAME", help="network, linear, or a function of your own: file.py:name")
    parser.add_argument("--features", type=Path, metavar="FILE.npy", help="a row of features for each sample")
    parser.add_argument("--backbone", metavar="KIND:NAME", help="a frozen network: timm:NAME, torchvision:NAME, …")
    parser.add_argument(
        "--size", type=int, default=32, metavar="PIXELS", help="of the pictures that the network sees (32)"
    )
    hold_out = "share of the samples drawn at random and held out, to measure accuracy (0.2)"
    parser.add_argument("--hold-out", type=float, default=0.2, metavar="SHARE", help=hold_out)
    parser.add_argument("--annotator", metavar="NAME", help="written beside every label")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="0 takes any that is free (0)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--demo", action="store_true", help="label scikit-learn's digits")
    parser.set_defaults(run=_label)


def _label(args: argparse.Namespace) -> None:
    from skal.labelling._label import serve
    from skal.labelling._models import choose_model
    from skal.labelling._project import Project

    source, name, out, classes, known = _what(args)
    model = choose_model(
        source,
        model="linear" if args.demo and args.model is None else args.model,
        features=args.features,
        backbone=args.backbone,
        cache=out,
    )
    project = Project(
        source,
        classes,
        model,
        out,
        strategy=args.strategy,
        query_size=args.query_size,
        share=args.hold_out,
        annotator=args.annotator,
        labels=known,
        source_name=name,
        text=args.text,
    )

    def announce(address: str) -> None:
        n_labelled = len(project.labels())
        _say(f"{len(source)} samples, {n_labelled} of them labelled, in {out}. The model is {model.words}.")
        print(f"Label at {address}\nCtrl-C ends it; every label is on the disk at once.", flush=True)

    result = serve(project, args.port, not args.no_browser, announce)
    _print_summary(result)


def _what(args: argparse.Namespace) -> tuple[Any, str | None, Path, list[str], dict[str, str]]:
    """Source, its name, the folder, the classes and known labels."""
    from skal.labelling._settings import parse_classes, read_settings
    from skal.labelling._sources import ArraySource, known_labels, open_source

    if args.demo:
        from sklearn.datasets import load_digits

        images = load_digits().images / 16.0
        source: Any = ArraySource(images, ids=[f"digit-{i:04d}" for i in range(len(images))])
        out = args.out or Path("skal-label-demo")
        return source, None, out, parse_classes(args.classes or "0,1,2,3,4,5,6,7,8,9"), {}
    settings = read_settings(args.out) if args.out is not None else {}
    name = args.source or settings.get("source")
    if name is None:
        raise SampleError("skal label needs a SOURCE: a folder of images, a table or an npz file. Or try --demo.")
    out = args.out or Path(f"{Path(name).resolve().name}-labels")
    settings = settings or read_settings(out)
    args.text = args.text or settings.get("text")
    source = open_source(name, text=args.text, size=args.size, cache=out)
    source.check_readable()
    known = dict(source.folder_labels) if args.labels == "folders" or isinstance(source, ArraySource) else {}
    if args.labels not in (None, "folders"):
        known |= known_labels(Path(args.labels), list(source.ids))
    classes = parse_classes(args.classes) if args.classes else settings.get("classes") or sorted(set(known.values()))
    if not classes:
        expected = "named at the first start, as in --classes cat,dog"
        raise InvalidParameterError.for_parameter("label", "classes", expected, None, "More can be added on the page.")
    strangers = sorted(set(known.values()) - {*classes, *settings.get("classes", [])})
    if strangers:
        expected = f"among the classes {classes}"
        raise InvalidParameterError.for_parameter("label", "labels", expected, strangers, "Name them in --classes too.")
    return source, str(Path(name).resolve()), out, classes, known


def _print_summary(result: Any) -> None:
    _say(f"\n{len(result.labels)} labels in {result.folder / 'labels.jsonl'}.")
    _say(result.forecast.text)
    if (result.folder / "model" / "model.json").exists():
        _say(f"The model: skal.load_model({str(result.folder / 'model')!r})")
    if result.unreadable:
        _say(f"{len(result.unreadable)} files could not be read and were skipped:\n  " + "\n  ".join(result.unreadable))
    _say(f"Export: skal export {result.folder} --to csv")


def _say(text: str) -> None:
    """Print a text that may hold a path which is not UTF-8."""
    print(text.encode("utf-8", "backslashreplace").decode())


def add_export(commands: Any) -> None:
    """``skal export``."""
    from skal.labelling._exchange import FORMATS

    parser = commands.add_parser(
        "export",
        help="write the labels of skal label in another format",
        description="Write the labels of a folder as CSV, TSV, JSONL, Label Studio's JSON or COCO for classification.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the --out folder of skal label")
    parser.add_argument("--to", choices=FORMATS, default="csv", help="the format (csv)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write; standard output by default")
    parser.add_argument("--prefix", default="", metavar="TEXT", help="what to put before every file name")
    safe = "put an apostrophe before what a spreadsheet could take for a formula; skal import takes it away again"
    parser.add_argument("--safe-csv", action="store_true", help=safe)
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from skal.labelling._exchange import export_labels

    text = export_labels(args.folder, args.to, prefix=args.prefix, safe_csv=args.safe_csv)
    data = text.encode("utf-8", "surrogatepass")  # bytes: no system may change the ends of lines
    if args.out is not None:
        args.out.write_bytes(data)
    elif hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:  # a notebook's
        sys.stdout.write(text)


def add_import(commands: Any) -> None:
    """``skal import``."""
    parser = commands.add_parser(
        "import",
        help="put labels from a file into a folder of skal label",
        description="Put the labels of Label Studio's or COCO's JSON, or of a CSV, TSV or JSONL file, into a folder "
        "of skal label.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the --out folder of skal label")
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="Label Studio's or COCO's JSON, or a table with id and label"
    )
    parser.add_argument("--overwrite", action="store_true", help="take the file's label where it differs")
    parser.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> None:
    from skal.labelling._exchange import import_labels

    counts = import_labels(args.folder, args.file, overwrite=args.overwrite)
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
