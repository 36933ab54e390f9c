"""The structure of the project (DESIGN.md 1): who may import whom. Read with `ast`; nothing is imported.

Every rule is a function of a folder that returns what breaks it, so that each can also be shown a tree that does.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from text_tables import rows

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {  # folder -> the folders of ours that it may use
    "program_support": {"program_support"},
    "object_detection": {"object_detection", "program_support"},
    "model": {"model", "object_detection", "program_support"},
    "dataset": {"dataset", "object_detection", "program_support"},
    "efficientdet": {"efficientdet", "dataset", "model", "object_detection", "program_support"},
}
ROOMS = {  # packages of a floor; each may use itself and the ones before it, and no other
    "object_detection": (
        "coco",  # evaluation measures and error analysis on NumPy arrays
        "geometry",  # boxes, box coding, anchors
        "assignment",  # ground truth to anchors
        "suppression",  # of overlapping detections
    ),
    "dataset": (
        "files",  # of strangers: read safely, recognized, told what is wrong with them
        "records",  # TFRecords: their schema, their index, what is in them
        "conversion",  # annotated images become records
        "input",  # records become batches
    ),
    "efficientdet": (
        "run_log",  # the log of a run in all its formats, clocks
        "reports",  # HTML pages and drawn images
        "families",  # detectors: one package each, looked up by name; the hyperparameters that all share
        "options",  # what a user may choose, one class for each program
        "configuration",  # flags and the values they may have
        "data_checks",  # data sets as a family's network is shown them: what is wrong, and which setting fixes it
        "devices",  # devices, memory, precision, several processes
        "optimization",  # the training step: gradients, optimizers, moving average, learning rate
        "weights",  # published and third-party weights: downloads, PyTorch, safetensors
        "checkpoints",  # written, read, and restored into a detector
        "inference",  # networks in any runtime, detectors of images
        "serving",  # detectors over HTTP
        "evaluation",  # detections of records, measured
        "exports",  # files of exported detectors: written, opened, compared with their checkpoint
        "prediction",  # a stored model opened; images, videos and cameras in, annotated copies and result files out
        "training",  # the loop and its parts
        "quickstart",  # all of it one after another, with settings chosen for the data and the machine
        "operations",  # what each root script does, shared with the Python interface
        "plugins",  # what only some users need; found through program_support/plugins.py, imported by no other package
        "programs",  # empty here; a wheel has the root scripts in it
    ),
}
MOST_LINES_OF_A_FILE = 500
LEAST_LINES_OF_A_FILE = 35  # of a module that only one other imports: below, it belongs into that one
MAY_BE_SMALL = {
    "efficientdet.optimization.build_step",  # one class for each backend, imported where the backend is known
}
ENTRY_POINTS = (
    "train",
    "eval",
    "compare",
    "infer",
    "inspector",
    "export",
    "quickstart",
    "serve",
    "doctor",
    "next_images",
    "monitor",
)
ENTRY_POINTS_MAY_USE = {"efficientdet", "program_support.command_line", "program_support.startup"}
SCRIPTS = (
    "dataset.create_tfrecord",
    "dataset.create_coco_tfrecord",
    "dataset.create_pascal_tfrecord",
    "dataset.create_open_images_tfrecord",
    "dataset.synthetic",
)
SLOW = {"tensorflow", "keras", "jax", "tensorboard"}  # seconds to import: a user's mistake is reported before

# Packages that some floors must not know, and the modules that may.
KNOWN_IN = {
    "tensorflow": {"dataset.*", "efficientdet.*", "model.batch_norm", "model.tensorflow_cpu"},
    "keras": {"object_detection.*", "model.*", "efficientdet.*"},
    "jax": {
        "efficientdet.optimization.jax_step",
        "efficientdet.devices.runtime",
        "efficientdet.devices.runtime_environment",
        "efficientdet.devices.distributed",
        "efficientdet.devices.device",
        "efficientdet.plugins.jax_processes.jax_world",
        "efficientdet.devices.mesh",
    },
    "horovod": {"efficientdet.devices.distributed"},
    "pycocotools": {"object_detection.coco.run_length_masks", "dataset.*"},  # in dataset/ for the masks of records
    "PIL": {
        "efficientdet.reports.drawing",
        "dataset.*",
        "efficientdet.prediction.annotate",
        "efficientdet.inference.image_detections",
        "efficientdet.plugins.small_devices.cvat_handler",  # runs without this project
        "efficientdet.plugins.monitor.estimates",
        "efficientdet.plugins.ssd.overlap_crop",
        "dataset.files.image_files",
    },
    "absl": {
        "dataset.*",
        "program_support.*",
        "efficientdet.configuration.flag_paths",
        "efficientdet.configuration.program_flags",
    },
    "fsspec": {"efficientdet.plugins.cluster.remote_files"},
    "rasterio": {"dataset.files.image_windows"},
    "ray": {"efficientdet.plugins.cluster.ray_cluster"},
    "tensorboard": {"efficientdet.run_log.loggers"},
    "trackers": {"efficientdet.plugins.streams.tracks"},
    "supervision": {"efficientdet.plugins.streams.tracks", "efficientdet.inference.image_detections"},
    "starlette": {
        "efficientdet.serving.application",
        "efficientdet.plugins.labeling.label_studio",
        "efficientdet.serving.batching",
        "efficientdet.serving.request_body",
        "efficientdet.serving.server",
    },
    "uvicorn": {"efficientdet.serving.server"},
    "paho": {"efficientdet.plugins.streams.messages"},
    "prometheus_client": {"efficientdet.serving.batching", "efficientdet.plugins.monitor.served_images"},
}
INSIDE_FUNCTIONS_ONLY = {  # module -> package: imported where the backend is known, so that the others need not have it
    "model.batch_norm": "tensorflow",
    "model.tensorflow_cpu": "tensorflow",
    "efficientdet.devices.device": "tensorflow",
    "efficientdet.devices.runtime": "tensorflow",
    "efficientdet.checkpoints.checkpoint": "tensorflow",
}
ASKS_FOR_THE_BACKEND = {
    "efficientdet.plugins.cluster.ray_cluster",  # passes it on to other machines
    "model.batch_norm",  # TensorFlow's fused kernel, a third of the training speed on a CPU
    "model.tensorflow_cpu",
    "efficientdet.families.registry",  # under JAX each of Keras's initializers is a program to compile
    "object_detection.suppression.tensor_suppression",  # TensorFlow's kernel on a CPU
    "efficientdet.optimization.build_step",  # one class for each backend
    "efficientdet.devices.distributed",
    "efficientdet.devices.runtime",
    "efficientdet.devices.device",
    "efficientdet.exports.saved_model",
    "efficientdet.exports.export_artifacts",  # SavedModels are TensorFlow's
    "efficientdet.plugins.small_devices.litert_files",  # and so is the converter
    "efficientdet.operations.benchmark_model",  # says whether XLA compiled: under JAX always
    "efficientdet.training.loop",  # an export at the end
    "efficientdet.training.run",  # whether shapes may vary between steps
}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc", "tools", "core", "stuff"}
TENSOR_NAMES = {
    "boxes",
    "anchors",
    "scores",
    "classes",
    "images",
    "targets",
    "objects",
    "detections",
    "batch",
    "logits",
    "deltas",
    "masks",
    "labels",
    "features",
}
MOST_LINES = 70
MODEL_NAME = re.compile(r"efficientdet-d\d|mask-?_?rcnn|retinanet|ssd\d*$|ssd300", re.IGNORECASE)
DETECTOR_KINDS = ("DenseDetector", "TwoStageDetector")
# What is in a folder, what other packages offer, and the names that a wheel has, only running tells.
IMPORTS_BY_NAME = {
    "efficientdet",  # the public names, whose modules its table lists
    "efficientdet.families.registry",
    "efficientdet.families.published_files",
    "efficientdet.checkout",
    "program_support.plugins",  # the table of plugins
}
DOOR = "efficientdet"  # what its __init__ offers to Python users comes from below, and is imported when it is asked for
IMPORTING_CALLS = {"import_module", "__import__", "find_loader", "exec_module"}
UNKNOWN = "?"


class Import(NamedTuple):
    """`name` is dotted: a module of ours where it is one, else what was written."""

    module: str
    name: str
    line: int
    inside_function: bool

    @property
    def package(self) -> str:
        return self.name.split(".")[0]


def modules(root: Path) -> dict[str, Path]:
    """Every module of the program by dotted name; a package is the name of its folder."""
    files = [*root.glob("*.py"), *(file for folder in FLOORS for file in (root / folder).rglob("*.py"))]
    names = {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    return {name: file for name, file in names.items() if name.split(".")[0] in {*FLOORS, *ENTRY_POINTS}}


def nodes(tree: ast.AST, *, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it runs only when some function does."""
    for child in ast.iter_child_nodes(tree):
        yield child, inside
        only_read = isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"  # never run
        yield from nodes(
            child, inside=inside or only_read or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        )


@cache  # most rules read the same files
def nodes_of(source: str) -> list[tuple[ast.AST, bool]]:
    return list(nodes(ast.parse(source)))


def imports(root: Path) -> list[Import]:
    known, found = modules(root), []
    for module, file in known.items():
        for node, inside in nodes_of(file.read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Call) and _called(node) in IMPORTING_CALLS:
                names = [
                    argument.value if isinstance(argument, ast.Constant) else UNKNOWN for argument in node.args[:1]
                ]
            elif isinstance(node, ast.ImportFrom):
                source = "." * node.level + (node.module or "")
                names = [dotted if (dotted := f"{source}.{alias.name}") in known else source for alias in node.names]
            else:
                continue
            found += [Import(module, name, node.lineno, inside) for name in dict.fromkeys(names)]
    return found


def _written(node: ast.AST) -> list[str]:
    """The dotted names that an import statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def _called(call: ast.Call) -> str:
    """The last word of what is called: `import_module`, also of importlib.import_module(..)."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def breaks_of_small_files(root: Path) -> list[str]:
    importers: dict[str, set[str]] = {}
    for entry in imports(root):
        importers.setdefault(entry.name, set()).add(entry.module)
    lengths = {
        name: len(file.read_text(encoding="utf-8").splitlines())
        for name, file in modules(root).items()
        if file.name != "__init__.py" and name not in MAY_BE_SMALL
    }
    return [
        f"{name} has {length} lines, for {min(importers[name])} alone"
        for name, length in lengths.items()
        if length < LEAST_LINES_OF_A_FILE and len(importers.get(name, ())) == 1
    ]


def breaks_of_plain_imports(root: Path) -> list[str]:
    """Imports of a name that is only known when they run cannot be checked."""
    return [
        f"{entry.module}:{entry.line} imports what only running it tells"
        for entry in imports(root)
        if entry.name == UNKNOWN and entry.module not in IMPORTS_BY_NAME
    ]


def _matches(module: str, patterns: set[str]) -> bool:
    return module in patterns or f"{module.split('.')[0]}.*" in patterns


def breaks_of_floors(root: Path) -> list[str]:
    broken = []
    for entry in imports(root):
        owner = entry.module.split(".")[0]
        where = f"{entry.module}:{entry.line} imports {entry.name}"
        if {entry.package, entry.name} & {*ENTRY_POINTS}:
            broken.append(f"{where}: an entry point")
        elif entry.package in FLOORS and owner in FLOORS and entry.package not in FLOORS[owner]:
            broken.append(f"{where}: not a floor below")
        elif (
            entry.package in FLOORS and owner in ENTRY_POINTS and not {entry.package, entry.name} & ENTRY_POINTS_MAY_USE
        ):
            broken.append(f"{where}: not for an entry point")
    return broken


def breaks_of_rooms(root: Path) -> list[str]:
    broken = []
    for entry in imports(root):
        (floor, room, *_), (other_floor, other, *_) = (f"{name}..".split(".") for name in (entry.module, entry.name))
        order = ROOMS.get(floor, ())
        if floor == other_floor and other in order and room in order and order.index(other) > order.index(room):
            broken.append(f"{entry.module}:{entry.line} imports {entry.name}: not a room before its own")
    return broken


def breaks_of_file_length(root: Path) -> list[str]:
    lengths = {name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in modules(root).items()}
    return [f"{name} has {length} lines" for name, length in lengths.items() if length > MOST_LINES_OF_A_FILE]


def breaks_of_package_places(root: Path) -> list[str]:
    broken = [
        f"{entry.module}:{entry.line} imports {entry.package}"
        for entry in imports(root)
        if entry.package in KNOWN_IN and not _matches(entry.module, KNOWN_IN[entry.package])
    ]
    return broken + [
        f"{entry.module}:{entry.line} imports {entry.package} outside a function"
        for entry in imports(root)
        if INSIDE_FUNCTIONS_ONLY.get(entry.module) == entry.package and not entry.inside_function
    ]


def breaks_by_circles(root: Path) -> list[str]:
    """Modules that can be reached from themselves, imports inside functions included."""
    below = _graph(root, top_level_only=False)
    below[DOOR] = set()
    return [
        f"{name} imports itself by way of {' '.join(sorted(reached))}"
        for name in below
        if name in (reached := _reached(below, below[name]))
    ]


def breaks_of_quick_start(root: Path) -> list[str]:
    """Entry points and scripts whose own imports, and theirs, bring in a slow package."""
    below, broken = _graph(root, top_level_only=True), []
    for start in {*ENTRY_POINTS, *SCRIPTS} & {*below}:
        for name in sorted({start} | _reached(below, below[start])):
            broken += [
                f"{start} imports {slow} by way of {name}"
                for slow in sorted({other.split(".")[0] for other in below.get(name, ())} & SLOW)
            ]
    return broken


def _graph(root: Path, *, top_level_only: bool) -> dict[str, set[str]]:
    """Module -> what it imports; a module of a package brings the package's __init__ with it."""
    below: dict[str, set[str]] = {name: set() for name in modules(root)}
    for entry in imports(root):
        if not (top_level_only and entry.inside_function):
            below[entry.module].add(entry.name)
    return below


def _reached(below: dict[str, set[str]], start: set[str]) -> set[str]:
    reached, waiting = set(), list(start)
    while waiting:
        name = waiting.pop()
        if name in below and name not in reached:
            reached.add(name)
            waiting += below[name]
            parts = name.split(".")
            waiting += [".".join(parts[:count]) for count in range(1, len(parts))]
    return reached


def breaks_of_backend_places(root: Path) -> list[str]:
    broken = []
    for module, file in modules(root).items():
        for node, _ in nodes_of(file.read_text(encoding="utf-8")):
            # keras.backend, keras.config.backend, K.backend, and each of them under a name of its own
            asks = isinstance(node, ast.Attribute) and node.attr == "backend"
            asks = asks or any(
                name.split(".")[0] == "keras" and "backend" in name.split(".") for name in _written(node)
            )
            asks = asks or (isinstance(node, ast.Constant) and node.value == "KERAS_BACKEND")
            asks = asks or (
                isinstance(node, ast.Compare)
                and any(  # to print it is no question
                    isinstance(side, ast.Call) and _called(side) == "backend_name"
                    for side in (node.left, *node.comparators)
                )
            )
            if asks and module not in ASKS_FOR_THE_BACKEND:
                broken.append(f"{module}:{node.lineno} asks for the backend")
    return broken


def breaks_of_names(root: Path) -> list[str]:
    return [
        f"{name}: says nothing" if name.split(".")[-1] in VAGUE_NAMES else f"{name}: named like a tensor"
        for name in modules(root)
        if name.split(".")[-1] in VAGUE_NAMES | TENSOR_NAMES
    ]


def breaks_of_length(root: Path) -> list[str]:
    return [
        f"{module}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for module, file in modules(root).items()
        for node, _ in nodes_of(file.read_text(encoding="utf-8"))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > MOST_LINES
    ]


def breaks_of_detector_kinds(root: Path) -> list[str]:
    """The program asks a detector what it can do (model/detection_model.py), not which kind it is."""
    return [
        f"{module}:{node.lineno} asks for {ast.unparse(node.args[1])}"
        for module, file in modules(root).items()
        for node, _ in nodes_of(file.read_text(encoding="utf-8"))
        if module.split(".")[0] != "model"
        and isinstance(node, ast.Call)
        and _called(node) in ("isinstance", "issubclass")
        and any(part in ast.unparse(node.args[1]) for part in DETECTOR_KINDS)
    ]


def breaks_of_family_names(root: Path) -> list[str]:
    """Outside the families and plugins no text in code, docstrings apart, is a family's model or published file."""
    broken = []
    for module, file in modules(root).items():
        if module.split(".")[0] in (*ENTRY_POINTS, "efficientdet") and not module.startswith(
            ("efficientdet.families", "efficientdet.plugins")
        ):
            found = [node for node, _ in nodes_of(file.read_text(encoding="utf-8"))]
            statements = {id(node.value) for node in found if isinstance(node, ast.Expr)}
            compared = {
                id(side) for node in found if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)
            }
            broken += [
                f"{module}:{node.lineno} names {node.value}"
                for node in found
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in statements
                and (MODEL_NAME.match(node.value) or (node.value == "efficientdet" and id(node) in compared))
            ]
    return broken


RULES = (
    breaks_of_floors,
    breaks_of_rooms,
    breaks_of_file_length,
    breaks_of_small_files,
    breaks_of_plain_imports,
    breaks_of_package_places,
    breaks_by_circles,
    breaks_of_quick_start,
    breaks_of_backend_places,
    breaks_of_names,
    breaks_of_length,
    breaks_of_detector_kinds,
    breaks_of_family_names,
)


@pytest.mark.parametrize("rule", RULES)
def test_project_keeps(rule):
    assert rule(ROOT) == []


def test_every_folder_of_a_floor_with_rooms_is_a_room():
    for floor, rooms in ROOMS.items():
        assert {file.parent.name for file in (ROOT / floor).glob("*/__init__.py")} == {*rooms}


def test_every_folder_with_code_is_a_floor():
    with_code = {file.parent.name for file in ROOT.glob("*/*.py") if not file.parent.name.startswith(".")}
    assert with_code - {"tests", "docs", "scripts", "build", "benchmarks"} == {*FLOORS}


PLANTED = [  # rule, file, its text, message: one for each way to break a rule
    (globals()[f"breaks_{rule}"], file, text, message)
    for rule, file, text, message in rows(r"""
of_family_names | quickstart.py | 'def f(family):\n    return family.name == "efficientdet"' | names efficientdet
of_family_names | efficientdet/x.py | 'FILE = "retinanet_resnet50.pth"' | x:1 names retinanet
of_rooms | efficientdet/devices/x.py | 'def f():\n    from efficientdet.training.y import z' | x:2
of_small_files | dataset/x.py | from model import y | model.y has 1 lines, for dataset.x alone
of_floors | program_support/x.py | from object_detection.y import z | not a floor below
of_floors | dataset/x.py | 'def f():\n    from model.y import z' | x:2
of_floors | model/x.py | "from importlib import import_module\nimport_module('dataset.y')" | not a floor below
of_floors | efficientdet/x.py | import train | entry point
of_floors | train.py | from dataset.y import z | not for an entry point
of_detector_kinds | efficientdet/x.py | 'def f(d):\n    return isinstance(d, DenseDetector)' | x:2
of_package_places | model/x.py | 'def f():\n    import tensorflow.data' | tensorflow
of_package_places | model/batch_norm.py | import tensorflow as tf | outside a function
of_package_places | model/x.py | "def f():\n    return __import__('tensorflow.nn')" | tensorflow
by_circles | model/x.py | 'def f():\n    from model.y import g' | model.y
of_quick_start | train.py | import keras | train imports keras by way of train
of_quick_start | infer.py | from efficientdet import slow | by way of efficientdet.slow
of_backend_places | dataset/x.py | "import os\nos.environ['KERAS_BACKEND']" | x:2
of_backend_places | model/x.py | from keras.config import backend as b | x:1
of_backend_places | model/x.py | 'import keras as k\nk.config.backend()' | x:2
of_backend_places | efficientdet/x.py | "from a import backend_name\nif 'jax' == backend_name():\n    pass" | x:2
of_plain_imports | model/x.py | "from importlib import import_module\nimport_module('tensor' + 'flow')" | x:2
of_names | dataset/utils.py | '' | says nothing
of_names | object_detection/boxes.py | '' | tensor
""")
]
PLANTED += [
    (breaks_of_file_length, "model/x.py", "pass\n" * MOST_LINES_OF_A_FILE, "model.x has 501 lines"),
    (breaks_of_length, "model/x.py", "def f():\n" + "    pass\n" * MOST_LINES, "f has 71 lines"),
]


@pytest.mark.parametrize(("rule", "file", "text", "message"), PLANTED)
def test_planted_violation_is_seen(tmp_path, rule, file, text, message):
    plant(tmp_path, "model/y.py", "from model import x")
    plant(tmp_path, "efficientdet/slow.py", "import tensorflow")
    if rule is not breaks_by_circles:
        assert rule(tmp_path) == []
    plant(tmp_path, file, text)
    assert any(message in line for line in rule(tmp_path)), rule(tmp_path)


def test_slow_package_in_the_init_of_a_package_is_seen(tmp_path):
    plant(tmp_path, "train.py", "from efficientdet.options.train import f")
    plant(tmp_path, "efficientdet/options/train.py", "")
    plant(tmp_path, "efficientdet/__init__.py", "import keras")
    assert breaks_of_quick_start(tmp_path) == ["train imports keras by way of efficientdet"]


def test_slow_package_inside_a_function_is_no_violation(tmp_path):
    plant(tmp_path, "train.py", "def main():\n    from efficientdet.training.loop import train")
    plant(tmp_path, "efficientdet/training/loop.py", "import tensorflow")
    assert breaks_of_quick_start(tmp_path) == []


def plant(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text + "\n", encoding="utf-8")
