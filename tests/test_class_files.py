import pytest

from dataset.class_names import ClassNames, class_names_from, read_class_file
from program_support.errors import InputError

PETS = ClassNames((1, 2, 3), ("cat", "dög", "bird of prey"))
LABEL_MAP = """\
# written by hand
item {
  name: "/m/01yrx" # of Open Images
  id: 1
  display_name: 'cat'
}
item { id: 2, name: "dög" keypoints { id: 9 label: "nose" } }
item: <
  name: 'bird of prey'; id: 3
>
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("classes.json", '{"categories": [{"id": 2, "name": "dög"}, {"id": 1, "name": "cat"}, '
                         '{"id": 3, "name": "bird of prey"}]}'),
        ("names.json", '["cat", "dög", "bird of prey"]'),
        ("names.json", '["background", "cat", "dög", "bird of prey"]'),
        ("map.json", '{"background": 0, "cat": 1, "bird of prey": 3, "dög": 2}'),
        ("map.json", '{"1": "cat", "2": "dög", "3": "bird of prey"}'),
        ("label_map.pbtxt", LABEL_MAP),
        ("data.yaml", "path: here\nnames: [cat, dög, bird of prey]\n"),
        ("config.yaml", "num_classes: 4\nlabel_map:\n    1: cat\n    2: dög\n    3: bird of prey\n"),
        ("map.yml", "1: cat\n2: dög\n3: bird of prey\n"),
        ("labels.txt", "\ufeffcat\r\ndög\r\n\r\nbird of prey\r\n"),
        ("labels.txt", "???\ncat\ndög\nbird of prey\n"),
        ("labelmap.txt", "1: cat\n2: dög\n3: bird of prey\n"),
        ("obj.names", "1 cat\n2  dög\n3 bird of prey"),
    ],
)  # fmt: skip
def test_class_names_in_files_of_other_tools(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert read_class_file(tmp_path / name) == PETS


def test_ids_from_zero_and_names_that_are_numbers(tmp_path):
    assert class_names_from({"0": "cat", "7": "dog"}) == ClassNames((0, 7), ("cat", "dog"))
    assert class_names_from({"names": {"0": "1", "1": "2"}}) == ClassNames((0, 1), ("1", "2"))
    (tmp_path / "labels.txt").write_text("7 up\ncola\n")
    assert read_class_file(tmp_path / "labels.txt").names == ("7 up", "cola")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("classes.csv", "cat\n", "expected a file of class names with a suffix of .json, .pbtxt"),
        ("classes.txt", "\n", r"holds \[\]; expected class names"),
        ("classes.txt", "cat\ncat\n", "'cat' is the name of categories"),
        ("classes.json", '{"cat": "dog"}', "expected class names: a list, or a mapping"),
        ("classes.json", "3", "holds 3; expected class names"),
        ("classes.json", '["cat", 3]', "expected class names"),
        ("a.yaml", "num_classes: 4\nlr: 0.1\n", "expected class names"),
        ("a.pbtxt", "item { id: 1 }", "has the item {'id': '1'}; expected an id and a name"),
        ("a.pbtxt", "item { id: 1 name: 'a' } item { id: 1 name: 'b' }", "gives the id 1 twice"),
        ("a.pbtxt", "", "holds {}; expected class names"),
    ],
)
def test_refused_class_files(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=f"{name}: .*{message}"):
        read_class_file(tmp_path / name)


def test_refuses_a_file_that_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_class_file(tmp_path / "a.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_class_file(tmp_path / "nosuch.txt")
