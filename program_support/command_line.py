"""Start and error handling of all entry points: flags are parsed once; a user error is one line and exit code 2."""

import dataclasses
import io
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import flags

from program_support.checked_fields import Config, field_types, help_of, limits_of, plain_types, refusal
from program_support.errors import InputError, nearest_name, printable
from program_support.signals import Listener, exit_code

USER_ERROR_EXIT_CODE = 2  # absl's own is 1, which a launcher cannot distinguish from a crash
_SIGNAL_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
REMOVED = "Removed: "  # beginning of the help of a flag that is only defined to be refused with a reason
_HELP = {"-h", "--help", "-help", "--helpshort", "--helpfull"}


def run(
    main: Callable[[], None], argv: list[str] | None = None, *, ends_at_once: bool = False, needs_reader: bool = True
) -> None:
    """Parse the flags, call `main` and exit: 0, or 2 with one line for an invalid flag or an `InputError`.

    With --help among the flags, print the help and exit with 0; --helpfull also lists removed flags. Ctrl-C exits with
    one line and code 130. Any other exception is a bug and keeps its traceback.

    ends_at_once: SIGTERM exits likewise with 143, and both signals end the process immediately, without cleanup.
    Otherwise Ctrl-C raises KeyboardInterrupt, so that `main` can clean up.

    needs_reader: False: output is dropped where its reader, such as `tee` or a launcher, was killed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The rules of stderr: a file name need not be valid text, and a service's log has each line at once.
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    arguments = sys.argv if argv is None else argv
    program = arguments[0].rsplit("/", 1)[-1]
    for stream in () if needs_reader else (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            _drop_unread_output(stream)
    if ends_at_once:
        listener = Listener(lambda number: listener.end(number, f"{program}: ended by {_SIGNAL_NAMES[number]}"))
        listener.start()  # never stopped: interpreter shutdown takes a moment, too
    elif signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # during the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _HELP & {*arguments[1:]}:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `head` closes the pipe early: end without a traceback
        print(f"{sys.modules['__main__'].__doc__}\n\n{_help(is_full='--helpfull' in arguments)}")
        sys.exit(0)
    try:
        rest = _parsed(arguments)
        if len(rest) > 1:
            raise InputError(f"unexpected argument {rest[1]!r}: every option is a flag such as --name=value")
        main()
    except (flags.Error, InputError) as error:
        print(f"{program}: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(USER_ERROR_EXIT_CODE)
    except KeyboardInterrupt:
        print(f"{program}: ended by {_SIGNAL_NAMES[signal.SIGINT]}", file=sys.stderr)
        sys.exit(exit_code(signal.SIGINT))
    except Exception:
        # Printed by the interpreter, it would live on in sys.last_value, and tf.data's iterators with it, until the
        # interpreter's shutdown, where these wait forever for threads that need Python.
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


def _drop_unread_output(stream: io.TextIOWrapper) -> None:
    """Continue without output, from a write or flush on that finds the reader of a stream gone."""

    def dropping(operation: Callable[..., Any]) -> Callable[..., Any]:
        def drop(*arguments: str) -> Any:
            try:
                return operation(*arguments)
            except BrokenPipeError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
                return len(arguments[0]) if arguments else None

        return drop

    stream.write, stream.flush = dropping(stream.write), dropping(stream.flush)  # type: ignore[method-assign]


def _help(*, is_full: bool) -> str:
    """Return the help of all flags, and unless `is_full` only the number of the removed ones."""
    removed = [name for name in flags.FLAGS if (flags.FLAGS[name].help or "").startswith(REMOVED)]
    if is_full or not removed:
        return flags.FLAGS.get_help()
    for name in removed:  # the process ends after the help
        delattr(flags.FLAGS, name)
    return f"{flags.FLAGS.get_help()}\n\n{len(removed)} removed flags are not listed; --helpfull lists them."


def _parsed(arguments: list[str]) -> list[str]:
    """Return the remaining arguments; replace absl's hints for unknown flags, which may be far from the given name."""
    try:
        return flags.FLAGS(arguments)
    except flags.UnrecognizedFlagError as error:
        hint = unknown_name_hint(error.flagname, list(flags.FLAGS))
        raise InputError(f"unknown flag --{error.flagname}" + (f"; {hint}" if hint else "")) from error


# Flags of ultralytics, torchvision's references, detectron2 and MMDetection, and the flags here; the first that a
# program has is suggested. A sentence stands for "no flag".
_OTHER_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("batch", "bs", "samples_per_gpu", "ims_per_batch"): ("batch_size", "max_batch"),
    ("epochs", "max_epochs", "n_epochs"): ("num_epochs", "minutes"),
    ("time",): ("minutes", "max_minutes"),
    ("save_period",): ("checkpoint_period",),
    ("val_interval",): ("eval_period",),
    ("imgsz", "img_size", "img", "input_size", "image_size"): ("image_size", "hparams=image_size=N"),
    ("lr0", "learning_rate", "base_lr"): ("lr", "hparams=learning_rate=N"),
    ("momentum",): ("hparams=momentum=N",),
    ("weight_decay",): ("hparams=weight_decay=N",),
    ("optimizer", "opt"): ("hparams=optimizer=NAME",),
    ("freeze",): ("hparams=var_freeze_expr=EXPRESSION",),
    ("model", "arch", "cfg", "config", "config_file"): ("model_name",),
    ("weights", "checkpoint", "pretrained", "load_from"): ("pretrained_ckpt", "ckpt_path", "ckpt", "model", "weights"),
    ("weights_backbone",): ("backbone_init",),
    ("data", "data_path", "dataset"): ("training_file_pattern", "val_file_pattern", "images", "records"),
    ("val_data",): ("val_file_pattern", "val_records"),
    ("source", "input"): ("image_path", "images"),
    ("labels",): ("annotations",),
    ("conf", "conf_thres", "confidence_threshold", "score_thr"): ("min_score_thresh", "min_score"),
    ("max_det",): ("max_boxes_to_draw", "hparams=nms_configs.max_output_size=N"),
    ("iou", "iou_thres"): ("hparams=nms_configs.iou_thresh=N",),
    ("project", "work_dir", "out_dir", "save_dir", "logdir", "output", "out", "name"): ("model_dir", "output_dir"),
    ("half", "fp16"): ("precision=mixed_float16",),
    ("bf16",): ("precision=mixed_bfloat16",),
    ("include", "format"): ("formats",),
    ("save_txt",): ("format=yolo",),
    ("accumulate",): ("accumulate_steps",),
    ("device", "gpu", "gpus", "gpu_ids"): ("set CUDA_VISIBLE_DEVICES=0 to select a GPU",),
    ("workers", "num_workers"): ("the input pipeline uses all CPU cores available to the process",),
}


def unknown_name_hint(name: str, flags: Collection[str]) -> str:
    """Return a hint for an unknown name: the flag for another program's name, or the nearest of the `flags`, or ""."""
    key = name.replace("-", "_").lower()
    for hint in (key, *next((hints for names, hints in _OTHER_NAMES.items() if key in names), ())):
        if " " in hint and hint != key:
            return hint
        if hint.partition("=")[0] in flags:
            return f"use --{hint}"
    nearest = nearest_name(name, flags)
    return f"the nearest is --{nearest}" if nearest else ""


_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    tuple: flags.DEFINE_list,
    str: flags.DEFINE_string,
}


def define_flags_of(options: type, values: flags.FlagValues = flags.FLAGS) -> None:
    """Define a flag for each field of a dataclass; each has `Help` and a default."""
    kinds = field_types(options)
    for item in dataclasses.fields(options):
        note = help_of(kinds[item.name])
        assert note is not None
        shown: Any = item.default if note.default is None else note.default
        if note.repeats:
            flags.DEFINE_multi_string(item.name, shown or None, note.text, flag_values=values)
        else:
            define_flag(item.name, kinds[item.name], shown, note.text, values)


def options_of_flags(options: type[Config], values: flags.FlagValues = flags.FLAGS) -> Config:
    """Return the options that the flags state. One that is not given has the default of its field."""
    given = {}
    for name, kind in field_types(options).items():
        flag, note = values[name], help_of(kind)
        if flag.value is not None and (flag.present or not note or note.default is None):
            given[name] = tuple(flag.value) if isinstance(flag.value, list) else flag.value
    return options(**given)


def define_flag(name: str, kind: Any, default: Any, help_text: str, values: flags.FlagValues = flags.FLAGS) -> None:
    """Define a flag that accepts the values of a type, such as `Count | None`; see `checked_fields`."""
    plain = next(plain for plain in plain_types(kind) if plain in _DEFINE)
    choices = next((limit.choices for limit in limits_of(kind) if limit.choices), None)
    if choices:
        flags.DEFINE_enum(name, default, choices, help_text, flag_values=values)
        return
    _DEFINE[plain](name, list(default) if isinstance(default, tuple) else default, help_text, flag_values=values)
    if limits_of(kind):
        flags.register_validator(name, lambda value: _is_accepted(kind, value), flag_values=values)


def _is_accepted(kind: Any, value: Any) -> bool:
    if expected := refusal(kind, value):
        raise flags.ValidationError(f"expected {expected}")
    return True


def whole_numbers(texts: Sequence[str], flag: str) -> tuple[int, ...]:
    """Return the integers that a flag such as 40,50,55 lists.

    Raises:
        InputError: for anything else.
    """
    try:
        return tuple(map(int, texts))
    except ValueError as error:
        raise InputError(f"--{flag}={','.join(texts)}: expected integers such as 40,50,55") from error
