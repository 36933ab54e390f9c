"""The formats of this project. A new one is a class of `ExportFormat` and an entry here, or an entry point."""

from efficientdet.exports.folder_formats import SavedModel, Web
from efficientdet.exports.litert.formats import Litert, LitertFullInt8, LitertFullInt8Raw, LitertInt8
from efficientdet.exports.onnx.formats import Onnx, OnnxEfficientNms, OnnxInt8, OnnxRaw, OpenVino

FORMATS = (
    Onnx(),
    OnnxRaw(),
    OnnxInt8(),
    OnnxEfficientNms(),
    OpenVino(),
    Litert(),
    LitertInt8(),
    LitertFullInt8(),
    LitertFullInt8Raw(),
    SavedModel(),
    Web(),
)
