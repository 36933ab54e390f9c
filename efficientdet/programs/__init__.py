"""The programs at the top of a checkout (train.py, eval.py, ...); an installed wheel has them here."""
