"""What tests/test_language.py looks for, and which findings are right."""

from typing import NamedTuple

_UNITS = "images?|milliseconds|seconds|bytes|steps|boxes|objects|classes|detections|masks"
_PER = "second|minute|image|step|epoch|class|box|level|batch|GPU|process|file"
RULES = {  # rule -> what it finds, what to write instead, a violation
    "British spelling": (
        r"\b\w*(?:colour|behaviour|neighbour|favour|honour|artefact|labell(?:ed|ing)|modell|travell|judgement"
        r"|(?:initial|normal|organ|quant|serial|recogn|summar|minim|maxim|visual|synchron|general|special|regular|util|parallel"
        r"|vector|final|penal|standard|optim|token|custom)is(?:e|ing|ation))\w*"
        r"|\b(?:centred?|centres|metres?|grey|licen[c]es?|catalogues?|analysed?|learnt|whilst|amongst|spelt)\b",
        "the American spelling", "the normalised colour"),
    "archaic word": (
        r"\b(?:anew|astray|by heart|farewell|heed(?:s|ed|ing)?|in vain|lest|whence|thereof|therein|now and then)\b"
        r"|\balarming\b",
        "from scratch, diverged, overfit, shutdown message, used, periodically", "training starts anew"),
    "a person in place of code": (
        r"\b(?:nobody|somebody)(?:'s)?\b|\bstrangers?\b|\bwho (?:wants|wishes|likes)\b|\bwants\b",
        "no one, third-party, untrusted; what has to be done", "nobody has said so"),
    "telling": (r"\b(?:is|are|was|were|be|been|being|gets?) told\b|\btell(?:ing)? (?:out|apart)\b|\bto tell\b",
                "is reported, is logged, to report", "the user is told"),
    "mend": (r"\bmend(?:s|ed|ing)?\b", "fix, suggested fix", "what mends it"),
    "seam": (r"\bseams?\b", "interface", "the seam of families"),
    "wanted": (r"\bwanted\b", "expected", "wanted a number"),
    "go on": (r"\b(?:go|goes|going|gone|went) on\b", "resume, continue", "the training goes on"),
    "so many": (r"\bso (?:many|much)\b(?! that)", "N", "every so many steps"),
    "no number": (r"\bno numbers?\b|\bnot? a number\b", "NaN or infinite", "a loss that is no number"),
    "picture": (r"\bpictures?\b", "image; plot", "turned pictures"),
    "per": (rf"\b(?:{_UNITS}) an? (?:{_PER})\b", "per, or /", "64 images a step"),
    "learning rate": (r"\brates? of learning\b", "learning rate", "the rate of learning"),
    "trained": (r"\b(?:knows?|learne?d?s?|learn) (?:something|crowds)\b|\bcrowds (?:are|is) learned\b",
                "pretrained, trained; crowd boxes are used as positives", "weights that know something"),
    "wish": (r"\bwish(?:es|ed)?\b", "stop request; if", "a wish to stop"),
    "house": (r"\bthe (?:house|rooms?|floors?)\b", "package", "the house of a family"),
    "what became": (
        r"\bbecame of\b|\bbecomes of\b|\bbe had\b|\bthe like\b",
        "result; available; similar",
        "what became of it",
    ),
}  # fmt: skip


class RightFinding(NamedTuple):
    """A finding that is right."""

    path: str
    rule: str
    text: str  # which the line or the string has
    reason: str


EXCEPTIONS = (RightFinding("scripts/install_horovod.sh", "mend", "mend", "a name in the key of cached wheels"),)
