"""Write AP and AP50 of detections on resamples of their images, for the paired intervals of compare_recipes.py.

`recipe_samples.py --results=detections.json --records='DIR/test-*' --output=samples.json`. The resamples depend on the
number of images alone, so that they are the same for all cells of a data set.
"""

import argparse
import json

from recipe_tables import MEASURES

from dataset.records.record_index import index_records
from efficientdet.configuration.flag_paths import class_names_for, records_of
from efficientdet.evaluation.data_set_evaluator import read_evaluator, read_results
from object_detection.coco.bootstrap import RESAMPLES, multiplicities, resampled
from object_detection.coco.measures import MEASURE_NAMES
from program_support.atomic_files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("results", "records", "output"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    records = records_of(options.records, "records")
    index, class_names = index_records(records), class_names_for(records, json_file=None)
    evaluator = read_evaluator(index, class_names, json_file=None)
    comparison = evaluator.compare(read_results(options.results, index, evaluator.ground_truth, class_names))
    images = len(comparison.image_ids)
    samples = resampled(comparison, multiplicities(images, RESAMPLES, seed=images)).numbers.round(6)
    values = {measure: samples[MEASURE_NAMES.index(measure)].tolist() for measure in MEASURES}
    write_text(options.output, json.dumps({"images": images, **values}))


if __name__ == "__main__":
    main()
