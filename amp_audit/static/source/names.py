"""Names that programs give to things of the world outside, and what they tell."""

from __future__ import annotations

import functools
import re

MOST_NAMES = 1 << 14
"""Names of which it is kept what they tell: a walk asks of the same few thousand by the hundred thousand."""

BORN_IN_BFLOAT16 = re.compile(
    r"(^|[/_-])(flan-?t5|u?mt5|byt5|t5|longt5|t0|ul2|pegasus|gemma)([-_.\d]|$)", re.IGNORECASE
)
"""Names of pretrained models whose activations go beyond float16, being trained in bfloat16 on TPUs."""

SKIP = re.compile(r"skip|overflow|(^|_)(inf|scale)(_|$)|finite|stepped|success|step_was|was_step", re.IGNORECASE)
"""How code speaks of whether the scaler left a step out."""

UNUSABLE = re.compile(r"isfinite|isnan|isinf|is_(nan|inf|finite)|(^|_)nan|norm|overflow", re.IGNORECASE)
"""What tests ask of gradients that are then dropped."""

UNFIT = re.compile(r"invalid|(^|_)(bad|skip|skipped|corrupt|broken|fail|failed|error)(_|$)", re.IGNORECASE)
"""What tests ask of a batch that is then left out."""

_SCHEDULER = re.compile(r"sched|warmup|(^|_)lr_?decay", re.IGNORECASE)


@functools.lru_cache(maxsize=MOST_NAMES)
def is_scheduler(name: str) -> bool:
    """Whether something is called a learning-rate scheduler."""
    return bool(_SCHEDULER.search(name))


_WEIGHTS = re.compile(r"state|weight|param|checkpoint|ckpt|(^|_)sd(_|$)", re.IGNORECASE)


def is_weights(name: str) -> bool:
    """Whether a dict is called what programs call the weights of a model."""
    return bool(_WEIGHTS.search(name))


_MODEL = re.compile(
    r"(^|_)(models?|u?nets?|networks?|module|encoder|decoder|generator|discriminator|backbone|critic|actor|teacher|student)"
    r"(_?\d+)?$|^(?-i:[GD])$",
    re.IGNORECASE,
)


def is_called_model(name: str) -> bool:
    """Whether something is called what programs call their models."""
    return bool(_MODEL.search(name))


_BESIDE_MODELS = re.compile(r"Tokenizer|Processor|Extractor|Config|Scheduler")


def loads_model(dotted: str) -> bool:
    """Whether ``X.from_pretrained`` gives a model, rather than what prepares its inputs or steps its noise."""
    owner, _, name = dotted.rpartition(".")
    return name == "from_pretrained" and _BESIDE_MODELS.search(owner.rpartition(".")[2]) is None


_SETTINGS = re.compile(r"(^|_)(args|cfg|conf|configs?|configuration|opts|options|settings|hparams)$", re.IGNORECASE)


@functools.lru_cache(maxsize=MOST_NAMES)
def is_settings(name: str) -> bool:
    """Whether something is called the settings of a program."""
    return bool(_SETTINGS.search(name))


_TESTS = re.compile(r"(^|[/\\])(test_[^/\\]*|[^/\\]*_test|conftest)\.(py|ipynb)$")


def is_of_tests(path: str) -> bool:
    """Whether a file is called what pytest takes its tests and fixtures from."""
    return bool(_TESTS.search(path))
