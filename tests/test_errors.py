import pytest
from text_tables import rows

from program_support.errors import nearest_name, printable


@pytest.mark.parametrize(
    ("name", "candidates", "nearest"),
    rows(r"""
learning_rat | ['learning_rate', 'lr_warmup_init'] | learning_rate
nms_configs.methode | ['nms_configs.method', 'momentum'] | nms_configs.method
Batch_Size | ['batch_size', 'eval_batch_size'] | batch_size
bs | ['BS', 'EMA'] | BS
train_file_pattern | ['val_file_pattern', 'training_file_pattern'] | training_file_pattern
train_file_pattern | ['val_file_pattern', 'model_dir'] | None
grid_mask | ['gamma', 'alpha'] | None
mode | ['model_dir', 'model_name'] | None
'' | ['a'] | None
anything | [] | None
"""),
)
def test_only_a_name_that_is_near_is_named(name, candidates, nearest):
    assert nearest_name(name, candidates) == nearest


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two words, é, 细胞 🐈", "two words, é, 细胞 🐈"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
        ("\x1b[2J\x9b", r"\x1b[2J\x9b"),
        ("photo\u202egpj.exe", r"photo\u202egpj.exe"),
        ("\u2066a\u2028b\ud800", r"\u2066a\u2028b\ud800"),
        ("a\nb\0", r"a\nb\x00"),
    ],
)
def test_what_acts_on_a_terminal_is_escaped(text, shown):
    assert printable(text) == shown
