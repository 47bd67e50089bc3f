"""Data sets, collation and the feed of a step."""

from hyperparallel.data.collate import COLUMNS, collate
from hyperparallel.data.digits import Digits, DigitsConfig
from hyperparallel.data.feed import MicroBatchInfo, StepFeed
from hyperparallel.data.list_source import ListSource
from hyperparallel.data.sample import IGNORE, Sample, SampleInfo, Source, next_token_labels
from hyperparallel.data.vocabulary import BOS, EOS, IMAGE, PAD, VOCABULARY_SIZE, WORDS, decode, encode

__all__ = [
    "BOS",
    "COLUMNS",
    "Digits",
    "DigitsConfig",
    "EOS",
    "IGNORE",
    "IMAGE",
    "ListSource",
    "MicroBatchInfo",
    "PAD",
    "Sample",
    "SampleInfo",
    "Source",
    "StepFeed",
    "VOCABULARY_SIZE",
    "WORDS",
    "collate",
    "decode",
    "encode",
    "next_token_labels",
]
