import itertools
import json

import numpy as np
import pytest

from object_detection.coco.results import TESTDEV_FILE_NAME, CocoResults, results_json, write_results
from object_detection.coco.run_length_masks import decoded, pasted_run_lengths
from program_support.errors import InputError


def batch(**changes):
    arguments = {
        "image_ids": np.array([0, 2**53 + 1]),
        "boxes": np.array([[[1, 2, 11, 22], [5, 5, 6, 6.126]], [[0, 0, 0, 0], [3, 4, 8, 10]]], np.float32),
        "scores": np.array([[0.9, 0.123456], [np.nan, 0.7]], np.float32),
        "category_ids": np.array([[3, 7], [1, 90]]),
        "valid": np.array([[True, True], [False, True]]),
        **changes,
    }
    results = CocoResults()
    results.add(arguments.pop("image_ids"), arguments.pop("boxes"), **arguments)
    return results


def test_by_hand():
    results = batch()
    assert len(results) == 2
    assert results_json(results.rows()) == [
        {"image_id": 0, "category_id": 3, "bbox": [2.0, 1.0, 20.0, 10.0], "score": 0.9},
        {"image_id": 0, "category_id": 7, "bbox": [5.0, 5.0, 1.13, 1.0], "score": 0.12346},
        {"image_id": 2**53 + 1, "category_id": 90, "bbox": [4.0, 3.0, 6.0, 5.0], "score": 0.7},
    ]


def test_ranks_are_joined():
    whole, part = CocoResults(), batch()
    whole.add_rows(part.rows())
    assert results_json(whole.rows()) == results_json(part.rows())
    with pytest.raises(InputError, match="image id 0 was evaluated twice"):
        whole.add_rows(part.rows())


def test_masks_are_pasted_by_the_rule_that_is_asked_for():
    masks, sizes = np.random.default_rng(0).random((2, 2, 3, 3), np.float32), np.array([[12, 30], [20, 20]])
    whole = batch(masks=masks, original_sizes=sizes, masks_in_whole_pixels=True).rows()
    wanted = pasted_run_lengths(masks[0], whole.boxes[:2], size=(12, 30), in_whole_pixels=True)
    assert whole.masks[:2].tolist() == wanted
    assert batch(masks=masks, original_sizes=sizes).rows().masks[:2].tolist() != wanted


def test_masks_are_pasted_into_the_original_image(tmp_path):
    masks = np.zeros((2, 2, 2, 2), np.float32)
    masks[0, 0] = [[1, 0], [0, 0]]  # of the box 1 2 11 22
    masks[0, 1], masks[1, 1] = 1.0, 0.4
    rows = batch(masks=masks, original_sizes=np.array([[12, 30], [20, 20]])).rows()
    shown = [decoded(mask) for mask in rows.masks]
    assert [mask.shape for mask in shown] == [(12, 30), (12, 30), (20, 20)]
    wanted = np.zeros((12, 30), bool)
    for y, x in itertools.product(range(1, 11), range(2, 22)):  # bilinear between the four middles
        down, right = (
            np.clip((place + 0.5 - low) / side * 2 - 0.5, 0, 1) for place, low, side in ((y, 1, 10), (x, 2, 20))
        )
        wanted[y, x] = (1 - down) * (1 - right) > 0.5
    np.testing.assert_array_equal(shown[0], wanted)
    assert np.argwhere(shown[1]).tolist() == [[5, 5]]  # the only pixel whose middle lies in 5 5 6 6.126
    assert not shown[2].any()
    write_results(tmp_path / "r.json", results_json(rows))
    assert [result["segmentation"] for result in json.loads((tmp_path / "r.json").read_text())] == rows.masks.tolist()
    joined = CocoResults()
    joined.add_rows(rows)
    assert joined.rows().masks.tolist() == rows.masks.tolist()
    assert rows.chosen(rows.scores > 0.5).masks.tolist() == [rows.masks[0], rows.masks[2]]


def test_nothing():
    rows = CocoResults().rows()
    assert [part.shape for part in rows[:5]] == [(0,), (0, 4), (0,), (0,), (0,)]
    assert rows.masks is None
    assert results_json(rows) == []
    rows = batch(valid=np.zeros((2, 2), bool)).rows()
    assert rows.evaluated_ids.tolist() == [0, 2**53 + 1]
    assert len(rows.scores) == 0


def test_float_ids_are_refused():
    with pytest.raises(ValueError, match="image ids are float32"):
        batch(image_ids=np.array([1, 2], np.float32))


@pytest.mark.parametrize("changes", [{"valid": np.ones((2, 2), bool)}, {"boxes": np.full((2, 2, 4), np.inf)}])
def test_what_is_not_finite_is_refused(changes):
    with pytest.raises(ValueError, match="NaN or infinite box or score in image"):
        batch(**changes)


def test_the_file(tmp_path):
    path = tmp_path / "new" / TESTDEV_FILE_NAME
    assert path.name == "detections_test-dev2017_test_results.json"
    for results in ([], results_json(batch().rows())):
        write_results(path, results)
        assert json.loads(path.read_text()) == results
    assert len(path.read_text().splitlines()) == 5
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
