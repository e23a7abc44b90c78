# SPDX-License-Identifier: BSD-3-Clause
"""The commands ``skal label``, ``skal label-studio``, ``skal predict``, ``skal export`` and ``skal import``.

Parsers are made whenever somebody asks for help, so that this module imports nothing heavy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from skal._vocabulary import UsageError
from skal.labelling._words import FORMATS


def add_label(commands: Any) -> None:
    """``skal label``."""
    parser = commands.add_parser(
        "label",
        help="label images, texts or rows of a table in the browser, while a model learns what to ask",
        description="Label a folder of images, a file of texts or rows, or an npz in the browser. A model is trained "
        "in the background and chooses what to label next. Every label is on the disk before the next sample is shown. "
        "Repeat the command to go on.",
    )
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE", help="a folder of images, a CSV or JSONL file, or an npz"
    )
    parser.add_argument("--classes", metavar="A,B,…", help="more can be added on the page; quote a class with a comma")
    tasks, task = ("classification", "multilabel", "regression"), "one class for each sample, several, or a number"
    parser.add_argument("--task", choices=tasks, help=f"{task} (classification)")
    parser.add_argument("--unit", metavar="TEXT", help="of numbers, shown beside them")
    parser.add_argument("--range", metavar="LOW,HIGH", help="between which numbers are; one of the two may be empty")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where labels and model go (SOURCE-labels)")
    parser.add_argument("--labels", metavar="FILE", help="known labels (id, label), or 'folders' for sub-folders")
    _add_columns(parser)
    parser.add_argument("--strategy", default="auto", metavar="NAME", help="a function of skal.strategies (auto)")
    target = "the samples that the model is for, as SOURCE: what is asked for serves them"
    parser.add_argument("--target", metavar="FOLDER", help=target)
    parser.add_argument(
        "--query-size", type=int, default=20, metavar="N", help="new labels before the next training (20)"
    )
    parser.add_argument("--model", metavar="PATH:NAME", help="network, linear, or a function of your own: file.py:name")
    parser.add_argument("--features", type=Path, metavar="FILE.npy", help="a row of features for each sample")
    parser.add_argument("--backbone", metavar="NAME", help="a frozen network: images, timm:NAME, file.py:name, …")
    parser.add_argument(
        "--size", type=int, default=32, metavar="PIXELS", help="of the pictures that the network sees (32)"
    )
    hold_out = "share of the samples drawn at random and held out, to measure accuracy (0.2)"
    parser.add_argument("--hold-out", type=float, default=0.2, metavar="SHARE", help=hold_out)
    promise = "the share of errors that the page offers to promise for the whole data set (0.05)"
    parser.add_argument("--max-error", type=float, default=0.05, metavar="SHARE", help=promise)
    parser.add_argument("--annotator", metavar="NAME", help="written beside every label")
    team = "several people, each with a link of their own; the first decides where they differ"
    parser.add_argument("--team", metavar="A,B,…", help=team)
    parser.add_argument("--overlap", type=float, default=0.1, metavar="SHARE", help="labelled by two of a team (0.1)")
    parser.add_argument("--decider", metavar="NAME", help="who decides, if not the first of the team")
    parser.add_argument("--revoke", metavar="NAME", help="make somebody's link invalid, at once, and end")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (127.0.0.1)")
    parser.add_argument("--url", metavar="URL", help="the address that people open, if a proxy is in front")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="for https: a certificate, in PEM")
    parser.add_argument("--key", type=Path, metavar="FILE", help="its private key, in PEM")
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="0 takes the last one, or any that is free (0)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--demo", action="store_true", help="label scikit-learn's digits")
    parser.set_defaults(run=_label)


def add_label_studio(commands: Any) -> None:
    """``skal label-studio``."""
    parser = commands.add_parser(
        "label-studio",
        help="choose what a team labels next in Label Studio, while it labels",
        description="Read a project of Label Studio through its API, train on its annotations, and order its tasks by "
        "what is worth labelling. The token is read from the environment variable LABEL_STUDIO_API_KEY. Repeat the "
        "command to go on.",
    )
    parser.add_argument("--url", required=True, metavar="URL", help="where Label Studio is: http://localhost:8080")
    parser.add_argument("--project", required=True, type=int, metavar="ID", help="the number in the project's address")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where labels and model go")
    parser.add_argument("--control", metavar="NAME", help="the Choices control, if there are several")
    parser.add_argument("--strategy", default="auto", metavar="NAME", help="a function of skal.strategies (auto)")
    parser.add_argument("--query-size", type=int, default=20, metavar="N", help="new labels before a training (20)")
    parser.add_argument("--model", metavar="PATH:NAME", help="network, linear, or a function of your own: file.py:name")
    parser.add_argument("--backbone", metavar="NAME", help="a frozen network: images, timm:NAME, file.py:name, …")
    parser.add_argument("--size", type=int, default=32, metavar="PIXELS", help="of pictures that a network sees (32)")
    hold_out = "share of the samples drawn at random and held out, to measure accuracy (0.2)"
    parser.add_argument("--hold-out", type=float, default=0.2, metavar="SHARE", help=hold_out)
    parser.add_argument("--predictions", action="store_true", help="show what the model says of tasks to label")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="how often to look (5)")
    backend = "also answer Label Studio's protocol for models at this port of this machine"
    parser.add_argument("--backend-port", type=int, metavar="N", help=backend)
    parser.set_defaults(run=_label_studio)


def _label_studio(args: argparse.Namespace) -> None:
    import os

    from skal.labelling._studio._client import StudioClient

    _check_common(args)
    token = os.environ.get("LABEL_STUDIO_API_KEY", "").strip()
    client = StudioClient(args.url, token)
    if not token:
        raise UsageError("LABEL_STUDIO_API_KEY is not set. Put a token of Label Studio into this variable.")
    from skal.labelling._studio._backend import serve_backend
    from skal.labelling._studio._studio_project import StudioProject
    from skal.labelling._studio._sync import StudioSync

    studio = StudioProject(client, args.project, args.control)
    sync = StudioSync(
        studio,
        args.out,
        model=args.model,
        backbone=args.backbone,
        strategy=args.strategy,
        query_size=args.query_size,
        share=args.hold_out,
        size=args.size,
        predictions=args.predictions,
        say=lambda text: print(text, flush=True),
    )
    try:
        print(f"{len(sync.snapshot.tasks)} tasks. The model is {sync.project.model.words}.", flush=True)
        print("Press “Label All Tasks” in Label Studio: it hands out what to label next. Ctrl-C ends it.", flush=True)
        if args.backend_port is not None:
            serve_backend(sync, args.backend_port)
        sync.run(args.every)
    except KeyboardInterrupt:
        pass
    finally:
        result = sync.close()
    _print_summary(result, sync.project.worker.unsaved)


def _label(args: argparse.Namespace) -> None:
    if args.revoke is not None:
        _revoke(args)
        return
    door, team, form, out = _read_options(args)
    # heavy: what is wrong with the options has been said by now
    from skal.config import config_context
    from skal.labelling._label import print_links, serve
    from skal.labelling._models import aim_model, choose_model
    from skal.labelling._project import Project
    from skal.labelling._server import LabelServer
    from skal.labelling._settings import read_settings
    from skal.labelling._sources import open_source
    from skal.labelling._words import say_left_out

    source, name, classes, known = _what(args, out, form)
    target_name = args.target or read_settings(out).get("target")
    own = "linear" if args.demo and args.model is None else args.model
    how = {"model": own, "features": args.features, "backbone": args.backbone, "cache": out, "task": form.task}
    with config_context(progress=True):  # a bar while features are computed
        model = choose_model(source, **how)
        if target_name is not None:
            target = open_source(target_name, **source.chosen, size=args.size, cache=out)
            target.check_readable()
            model = aim_model(model, source, target, **how)
    project = Project(
        source,
        classes,
        model,
        out,
        strategy=args.strategy,
        query_size=args.query_size,
        share=args.hold_out,
        max_error=args.max_error,
        annotator=args.annotator,
        team=team,
        labels=known,
        source_name=name,
        form=form,
        target_name=None if target_name is None else str(Path(target_name).resolve()),
    )

    def announce(server: LabelServer) -> None:
        n_labelled = len(project.labels())
        _say(f"{len(source)} samples, {n_labelled} of them labelled, in {out}. The model is {project.model.words}.")
        for sentence in filter(None, [say_left_out(source.left_out), model.note]):
            _say(sentence)
        if team:
            print_links(server)
        print(f"Label at {server.address}\nCtrl-C ends it; every label is on the disk at once.", flush=True)

    result = serve(project, args.port, not args.no_browser and not team, announce, door)
    _print_summary(result, project.worker.unsaved)


def _read_options(args: argparse.Namespace) -> tuple[Any, Any, Any, Path]:
    """The door, the team, what an answer may be, and the folder; whatever can be refused without torch is."""
    from skal.labelling._answer_form import AnswerForm
    from skal.labelling._options import LIMITS, Door, find_file, find_source
    from skal.labelling._settings import parse_classes, parse_names, read_settings
    from skal.labelling._team import Team

    own = [flag for flag in ("labels", "text", "columns") if getattr(args, flag) is not None]
    if args.demo and (args.source is not None or own):
        also = "SOURCE" if args.source is not None else f"--{own[0]}"
        raise UsageError(f"--demo brings its own samples. Leave out {also}, or --demo.")
    settings = read_settings(args.out) if args.out is not None else {}
    name = args.source or settings.get("source")
    if name is None and not args.demo and not settings:
        raise UsageError("SOURCE is missing: a folder of images, a table or an npz file. Or try --demo.")
    _check_common(args)
    LIMITS["max_error"].check("skal label", "--max-error", args.max_error)
    LIMITS["port"].check("skal label", "--port", args.port)
    door = Door(args.host, args.url, args.certificate, args.key)
    door.check()
    team = Team([] if args.team is None else parse_names(args.team), args.overlap, args.decider)
    low, high = _bounds(args.range)
    if args.classes is not None:
        parse_classes(args.classes)
    for given in filter(None, (None if args.demo else name, args.target)):
        find_source(given)
    for path in (args.features, None if args.labels == "folders" else args.labels):
        if path is not None:
            find_file(path)
    out = args.out or Path("skal-label-demo" if args.demo else f"{Path(str(name)).resolve().name}-labels")
    said = {"task": args.task, "unit": args.unit, "low": low, "high": high}
    form = AnswerForm.of(read_settings(out) | {key: value for key, value in said.items() if value is not None})
    if form.task == "regression" and args.classes is not None:
        raise UsageError(f"Numbers have no classes. Got --task regression with --classes {args.classes}. Drop one.")
    return door, team, form, out


def _check_common(args: argparse.Namespace) -> None:
    """Options that two commands share."""
    from skal._vocabulary import parse_strategy
    from skal.labelling._options import LIMITS

    for name, flag in (("query_size", "--query-size"), ("share", "--hold-out"), ("size", "--size")):
        LIMITS[name].check(f"skal {args.command}", flag, getattr(args, flag.strip("-").replace("-", "_")))
    parse_strategy(args.strategy)


def _bounds(text: str | None) -> tuple[float | None, float | None]:
    """Two numbers from the command line, of which one may be missing."""
    try:
        low, high = ("," if text is None else text).split(",")
        return (float(low) if low.strip() else None), (float(high) if high.strip() else None)
    except ValueError as error:
        raise UsageError(
            f"--range needs two numbers, of which one may be empty. Got {text}. Say --range 0,100."
        ) from error


def _revoke(args: argparse.Namespace) -> None:
    if args.out is None:
        raise UsageError("--revoke needs --out FOLDER, the project. Say which one.")
    from skal.labelling._access import revoke

    revoke(args.out, args.revoke)
    print(f"The link of {args.revoke} is no longer valid. The next start makes another one for a team with that name.")


def _what(args: argparse.Namespace, out: Path, form: Any) -> tuple[Any, str | None, list[str], dict[str, str]]:
    """Source, its name, the classes and known labels."""
    from skal.exceptions import InvalidParameterError, SampleError
    from skal.labelling._settings import parse_classes, read_settings
    from skal.labelling._sources import ArraySource, TableRows, known_labels, open_source

    if args.demo:
        from sklearn.datasets import load_digits

        images = load_digits().images / 16.0
        source: Any = ArraySource(images, ids=[f"digit-{i:04d}" for i in range(len(images))])
        classes = [] if form.task == "regression" else parse_classes(args.classes or "0,1,2,3,4,5,6,7,8,9")
        return source, None, classes, {}
    settings = read_settings(out)
    name = args.source or settings.get("source")
    if name is None:
        raise SampleError("skal label needs a SOURCE: a folder of images, a table or an npz file. Or try --demo.")
    source = open_source(name, **_columns(args, settings), size=args.size, cache=out)
    source.check_readable()
    comes_along = args.labels == "folders" or isinstance(source, (ArraySource, TableRows))
    known = dict(source.folder_labels) if comes_along else {}
    if args.labels not in (None, "folders"):
        known |= known_labels(Path(args.labels), list(source.ids))
    classes = parse_classes(args.classes) if args.classes else settings.get("classes") or sorted(set(known.values()))
    if not classes and form.task != "regression":
        expected = "named at the first start, as in --classes cat,dog"
        raise InvalidParameterError.for_parameter("label", "classes", expected, None, "More can be added on the page.")
    strangers = sorted(set(known.values()) - {*classes, *settings.get("classes", [])})
    if strangers and form.task == "classification":
        expected = f"among the classes {classes}"
        raise InvalidParameterError.for_parameter("label", "labels", expected, strangers, "Name them in --classes too.")
    return source, str(Path(name).resolve()), classes, known


def _print_summary(result: Any, unsaved: str | None) -> None:
    from skal.labelling._words import say_certificate

    _say(f"\n{len(result.labels)} labels in {result.folder / 'labels.jsonl'}.")
    if result.audit is not None:
        _say(result.audit.say_accuracy())
    certificate = result.final.certificate
    if certificate is not None:
        _say(say_certificate(certificate, int(result.final.labels["by"].isna().sum())))
        _say(f"Who labelled what, and the certificate: skal export {result.folder} --to final")
    if unsaved is not None:
        _say(unsaved)
    elif (result.folder / "model" / "model.json").exists():
        _say(f"The model: skal.load_model({str(result.folder / 'model')!r})")
        _say(f"Classify other files: skal predict {result.folder} SOURCE --out predictions.csv")
    if result.unreadable:
        _say(f"{len(result.unreadable)} files could not be read and were skipped:\n  " + "\n  ".join(result.unreadable))
    _say(f"Export: skal export {result.folder} --to csv")


def _say(text: str) -> None:
    """Print a text that may hold a path which is not UTF-8."""
    print(text.encode("utf-8", "backslashreplace").decode())


def add_export(commands: Any) -> None:
    """``skal export``."""
    parser = commands.add_parser(
        "export",
        help="write the labels of skal label in another format",
        description="Write the labels of a folder as CSV, TSV, JSONL, Label Studio's JSON, COCO for classification or "
        "parquet, or sort the samples into a folder for each class. The format final is a JSON object that says who "
        "labelled what, people or the model, and has the certificate.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the --out folder of skal label")
    parser.add_argument(
        "--to", choices=(*FORMATS, "final", "parquet", "folders"), default="csv", help="the format (csv)"
    )
    parser.add_argument("--out", type=Path, metavar="PATH", help="where to write; standard output for texts by default")
    rest = "add all other samples with what the model says of them, marked as the model's"
    parser.add_argument("--predictions", action="store_true", help=rest)
    parser.add_argument("--source", type=Path, metavar="PATH", help="the samples, if they have been moved")
    parser.add_argument("--links", action="store_true", help="with --to folders: links in the place of copies")
    _add_trust(parser)
    parser.add_argument("--prefix", default="", metavar="TEXT", help="what to put before every file name")
    safe = "put an apostrophe before what a spreadsheet could take for a formula; skal import takes it away again"
    parser.add_argument("--safe-csv", action="store_true", help=safe)
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    if args.to in ("parquet", "folders") and args.out is None:
        raise UsageError(f"--to {args.to} needs --out PATH. Say where to write.")
    from skal._files.whole import write_result
    from skal.labelling._options import find_labels

    find_labels(args.folder)
    from skal.labelling._exchange import export_final, export_labels, export_parquet, labelled_rows

    rest = _rest(args) if args.predictions else []
    if args.to == "parquet":
        export_parquet(args.folder, args.out, rest)
        return
    if args.to == "folders":
        from skal.labelling._folders import write_folders
        from skal.labelling._rest import project_source

        rows = [*labelled_rows(args.folder), *rest]
        failed = write_folders(project_source(args.folder, args.source), rows, args.out, links=args.links)
        _print_unreadable(dict(failed))
        return
    if args.to == "final":
        text = export_final(args.folder)
    else:
        options = {"prefix": args.prefix, "safe_csv": args.safe_csv}
        text = export_labels(args.folder, args.to, rest=rest, **options)
    if args.out is not None:
        write_result(args.out, text)
    elif hasattr(sys.stdout, "buffer"):  # bytes: no system may change the ends of lines
        sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
        sys.stdout.buffer.flush()
    else:  # a notebook's
        sys.stdout.write(text)


def _rest(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Predict the samples that have no label."""
    from tqdm.auto import tqdm

    from skal.labelling._exchange import labelled_rows
    from skal.labelling._rest import predict_rest, project_source

    source = project_source(args.folder, args.source)
    labelled = {str(row["id"]) for row in labelled_rows(args.folder)}
    with tqdm(total=len(source) - len(labelled.intersection(source.ids)), desc="predict", unit="sample") as bar:
        found, unreadable = predict_rest(args.folder, source, labelled, trusted=args.trust, advance=bar.update)
    _print_unreadable(unreadable)
    return found


def add_predict(commands: Any) -> None:
    """``skal predict``."""
    parser = commands.add_parser(
        "predict",
        help="let the model of skal label classify other files",
        description="Write what a model says of every sample of a source: id, class, probability, and the class that "
        "comes next. Repeat the command to go on where it was stopped, or with files that are new.",
    )
    parser.add_argument("project", type=Path, metavar="PROJECT", help="the --out folder of skal label, or a model's")
    parser.add_argument("source", metavar="SOURCE", help="a folder of images, a CSV or JSONL file, or an npz")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a CSV or TSV file")
    _add_columns(parser)
    parser.add_argument("--features", type=Path, metavar="FILE.npy", help="features, if the model was trained on such")
    parser.add_argument("--safe-csv", action="store_true", help="make harmless what a spreadsheet takes for a formula")
    parser.add_argument("--overwrite", action="store_true", help="begin anew if FILE is another model's")
    _add_trust(parser)
    parser.set_defaults(run=_predict)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the columns of a CSV or JSONL file."""
    either = parser.add_mutually_exclusive_group()
    texts = "the column of the texts (text, or the only one beside id)"
    either.add_argument("--text", metavar="COLUMN", help=texts)
    rows = "the columns of a row, for a table (all but id and label, if there is no column of texts)"
    either.add_argument("--columns", metavar="A,B,…", help=rows)


def _columns(args: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """The columns that the user names, or else those that are known."""
    from skal.labelling._settings import chosen_columns, parse_names

    if args.text is None and args.columns is None:
        return chosen_columns(known)
    return {"text": args.text, "columns": None if args.columns is None else parse_names(args.columns)}


def _add_trust(parser: argparse.ArgumentParser) -> None:
    names = "a class or network that the model may use besides those on the list; may be repeated"
    parser.add_argument("--trust", action="append", default=[], metavar="NAME", help=names)


def _predict(args: argparse.Namespace) -> None:
    if args.out.suffix.lower() not in (".csv", ".tsv"):
        raise UsageError(f"--out must end in .csv or .tsv. Got {args.out}. Name for example predictions.csv.")
    from skal.labelling._options import find_model, find_source

    find_model(args.project)
    find_source(args.source)
    from tqdm.auto import tqdm

    from skal.labelling._models import read_features
    from skal.labelling._predict import check_kind, project_model, write_predictions
    from skal.labelling._settings import read_settings
    from skal.labelling._sources import open_source

    model = project_model(args.project, args.trust)
    names = getattr(model, "feature_names_in_", None)
    known = {"columns": list(names)} if names is not None else read_settings(args.project)
    source = open_source(args.source, **_columns(args, known))
    check_kind(args.project, source)
    features = None if args.features is None else read_features(args.features, len(source))
    options = {"features": features, "safe_csv": args.safe_csv, "overwrite": args.overwrite}
    options["names"] = read_settings(args.project).get("classes")
    with tqdm(total=len(source), desc="predict", unit="sample") as bar:
        n_new, n_before, unreadable = write_predictions(model, source, args.out, advance=bar.update, **options)
    print(f"{n_new} new predictions in {args.out}" + (f", {n_before} were there." if n_before else "."))
    _print_unreadable(unreadable)


def _print_unreadable(unreadable: dict[str, str]) -> None:
    if unreadable:
        print(f"{len(unreadable)} files could not be read and are left out:", file=sys.stderr)
        print(*(f"  {key}: {why}" for key, why in unreadable.items()), sep="\n", file=sys.stderr)


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
    control = "Label Studio's Choices or Number control, if there are several"
    parser.add_argument("--control", metavar="NAME", help=control)
    parser.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> None:
    from skal.labelling._options import find_file

    find_file(args.file)
    from skal.labelling._exchange import import_labels

    counts = import_labels(args.folder, args.file, overwrite=args.overwrite, control=args.control)
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
