"""Export of a detector to a static web page, which detects in the browser with ONNX Runtime Web."""

import json
import tarfile
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.input.resize import host_resize
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.families.published_files import PublishedFile
from efficientdet.plugins.small_devices.image_model import MODEL, image_model
from efficientdet.serving.pages import model_description, static_page
from efficientdet.weights.downloads import cache_folder, cached_file
from program_support.atomic_files import write_bytes

# Its SHA-512 is the one in npm's registry, which begins with q0y+JrrtukXSzsBW in base64.
RUNTIME = PublishedFile(
    "onnxruntime-web-1.30.0.tgz",
    33_106_585,
    "ONNX Runtime Web",
    "",
    site="https://registry.npmjs.org/onnxruntime-web/-",
    sha256="d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
)
# Name in the folder -> in the package. Some servers do not know the suffix .mjs.
_RUNTIME_FILES = {
    "onnxruntime.js": "package/dist/ort.wasm.bundle.min.mjs",
    "ort-wasm-simd-threaded.wasm": "package/dist/ort-wasm-simd-threaded.wasm",
}


def write_web_page(restored: Restored, folder: Path) -> None:
    """Write the page, the model and ONNX Runtime Web, which is downloaded once, to a folder.

    Raises:
        InputError: the runtime cannot be downloaded or the detector has no translation to ONNX; OSError of the
            disk.
    """
    runtime = cached_file(RUNTIME, cache_folder())
    model = image_model(restored.detector, host_resize(restored.resize))
    description = restored.description
    threshold = ScoreThresholds.stored_in(description).overall
    about = model_description(description.model_name, ClassNames.from_categories(description.categories), threshold)
    page, worker = static_page(threshold)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / MODEL, model.SerializeToString(), flush=True)
    with tarfile.open(runtime) as package:
        for name, member in _RUNTIME_FILES.items():
            if content := package.extractfile(member):
                write_bytes(folder / name, content.read(), flush=True)
    for name, text in (("model.json", json.dumps(about)), ("worker.js", worker), ("index.html", page)):
        write_bytes(folder / name, text.encode(), flush=True)
