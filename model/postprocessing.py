"""Interface of post-processing outside of a compiled program."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from object_detection.onnx_nodes import Graph, Output
from object_detection.structures import Detections, Tensor
from program_support.errors import InputError


class Postprocessing:
    """Post-processing outside of a compiled program.

    A family defines what it supports; the defaults report that it does not.
    """

    detects_on_host = False  # True: `host_outputs` and `detections_on_host` are defined

    def host_outputs(self, outputs: Any) -> tuple[Tensor, ...]:
        """Return the inputs of `detections_on_host`, [B, ...] each, which are also the outputs of an exported file."""
        raise NotImplementedError

    def detections_on_host(self, outputs: Sequence[np.ndarray], size: np.ndarray) -> Detections[np.ndarray]:
        """Return one image's Detections, arrays without B, in pixels of the network input. size: height and width."""
        raise NotImplementedError

    def onnx_outputs(self, graph: Graph, tensors: Sequence[str]) -> dict[str, Output] | None:
        """Return the outputs of an exported network by name, from its tensors.

        None (default): the network's own outputs, named `output_names` if set.
        """
        return None

    def onnx_detections(self, graph: Graph, tensors: Sequence[str], sizes: str) -> dict[str, Output] | None:
        """Add post-processing to an exported network: `boxes`, `scores`, `classes` of D slots, best first.

        Scores are 0 in empty slots. sizes: the tensor [B, 2] int32, height and width of the images. None (default): the
        network's outputs are detections.
        """
        return None

    def litert_operator(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Return anchors and attributes of LiteRT's operator `TFLite_Detection_PostProcess`.

        Anchors are [A, 4] float32: center y and x, height and width as fractions of the image.

        Raises:
            InputError: (default) if the operator cannot do this detector's post-processing.
        """
        raise InputError(
            "litert-full-int8: TFLite_Detection_PostProcess cannot do the post-processing of this detector; use "
            "another format"
        )

    def probabilities(self, outputs: Any) -> Tensor:
        """Return probabilities [B, A, K], including the background's: the scores for `litert_operator`."""
        raise NotImplementedError
