"""Data sets, collation and the feed of a step."""

from hyperparallel.data.collate import COLUMNS, collate
from hyperparallel.data.digits import Digits, DigitsConfig
from hyperparallel.data.feed import MicroBatchInfo, StepFeed
from hyperparallel.data.files import Files, FilesConfig
from hyperparallel.data.held_out import HeldOut
from hyperparallel.data.list_source import ListSource
from hyperparallel.data.sample import IGNORE, BadSample, Sample, SampleInfo, Source, next_token_labels
from hyperparallel.data.source import DataConfig, make_source
from hyperparallel.data.vocabulary import BOS, EOS, IMAGE, PAD, VOCABULARY_SIZE, WORDS, decode, encode

__all__ = [
    "BOS",
    "BadSample",
    "COLUMNS",
    "DataConfig",
    "Digits",
    "DigitsConfig",
    "EOS",
    "Files",
    "FilesConfig",
    "HeldOut",
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
    "make_source",
    "next_token_labels",
]
