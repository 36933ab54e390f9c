"""What conversions do with signals, each in a process of its own: `python tests/signal_scenarios.py NAME [ARGUMENTS]`.

A scenario prints, as json, what became of it. For tests/test_shard_processes.py: a signal that goes wrong ends its
process.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.shards import convert
from program_support.signals import DeferredSignals, Interrupted

_handle = threading.Event()  # by the thread that listens: on a busy machine that takes its time


def replace_hearing(heard):
    """`heard(real)` in place of what the thread that listens does with a signal, in blocks that are entered later."""
    real = DeferredSignals._handle
    DeferredSignals._handle = lambda self, number: heard(lambda: real(self, number))


def raised(number):
    """The signal comes to this thread, and the one that listens has heard it."""
    signal.raise_signal(number)
    assert _handle.wait(60)


def interrupted_by(action):
    """The number of the signal that ended it, None if it came to its end."""
    try:
        action()
    except Interrupted as error:
        return error.number
    return None


def converted(place):
    """Of the ten images in a folder."""
    return convert(
        read_coco(object_annotations_file=f"{place}/a.json"),
        ConversionConfig(
            image_folder=f"{place}/images",
            output_prefix=f"{place}/out/train",
            num_shards=3,
            processes=1,
            max_bad_fraction=0.0,
        ),
        log=lambda line: None,
    )


def among_the_images(place, number, image):
    """The signal comes with that image; then the same conversion once more."""
    from dataset.conversion import convert as convert_module

    number, real, checked, handler = int(number), convert_module.check_image, [], signal.getsignal(int(number))

    def check(*arguments, **settings):
        checked.append(1)
        if len(checked) == int(image):
            raised(number)
        return real(*arguments, **settings)

    convert_module.check_image = check
    found = {
        "raised": interrupted_by(lambda: converted(place)),
        "checked": len(checked),
        "handler_is_back": signal.getsignal(number) == handler,
        "names": sorted(os.listdir(f"{place}/out")),
    }
    return {**found, "images_of_the_next": converted(place).images, "checked_in_all": len(checked)}


def while_shards_get_their_names(place, number):
    """The signal comes with the second name."""
    real, renamed = os.replace, []

    def replace(source, target):
        if str(source).endswith(".finished"):
            renamed.append(target)
            if len(renamed) == 2:
                raised(int(number))
        return real(source, target)

    os.replace = replace
    return {"raised": interrupted_by(lambda: converted(place))}


def noted(what):
    """A block that notes a signal and then looks, fails or comes to its end: what it raises and how far it went."""
    steps = []
    try:
        with DeferredSignals() as signals:
            signals.check()
            raised(signal.SIGTERM)
            steps.append("noted")
            if what == "look":
                signals.check()
            if what == "fail":
                raise KeyError
            steps.append("end")
    except (Interrupted, KeyError) as error:
        return {"raised": type(error).__name__, "steps": steps}
    return {"raised": None, "steps": steps}


def heard_late(number):
    """The thread that listens comes to it only after the end of the block."""
    replace_hearing(lambda real: (time.sleep(1.0), real()))

    def block():
        with DeferredSignals():
            signal.raise_signal(int(number))

    return {"raised": interrupted_by(block)}


if __name__ == "__main__":
    replace_hearing(lambda real: (real(), _handle.set()))
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
