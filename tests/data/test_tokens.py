"""Tokenizers: the built-in words and a tokenizer.json; special tokens by text and by id."""

import sys

import pytest
from files_case import write_tokenizer
from pydantic import ValidationError

from hyperparallel.data import FilesConfig
from hyperparallel.data.tokens import TokenNames, load_tokens
from hyperparallel.errors import DataError

NAMES = {"pad": "[PAD]", "bos": None, "eos": "[EOS]", "image": "[IMG]"}


def test_the_words_have_the_ids_of_the_vocabulary():
    tokens = load_tokens("words", TokenNames())
    assert (tokens.size, tokens.pad, tokens.bos, tokens.eos, tokens.image) == (16, 0, 1, 2, 3)
    assert tokens.encode("reads three two") == [4, 9, 8]


def test_a_tokenizer_file(tmp_path):
    path = write_tokenizer(tmp_path)
    tokens = load_tokens(path, TokenNames(**NAMES))
    assert (tokens.pad, tokens.bos, tokens.eos, tokens.image) == (20, None, 21, 22)
    # Nothing is added, cut off or padded, whatever the file says.
    assert tokens.encode("the cat sat " * 5) == [1, 2, 3] * 5
    assert tokens.encode("[EOS] dog") == [21, 0] and tokens.size == 23


def test_special_tokens_by_id(tmp_path):
    names = TokenNames(**NAMES | {"bos": 21, "image": 40})
    tokens = load_tokens(write_tokenizer(tmp_path), names)
    assert (tokens.bos, tokens.image, tokens.size) == (21, 40, 41)


def test_an_image_token_is_needed_only_for_images(tmp_path):
    path, names = write_tokenizer(tmp_path), TokenNames(**NAMES | {"image": "<image>"})
    assert load_tokens(path, names, images=False).image is None
    with pytest.raises(DataError, match=r"tokens.image is '<image>', which .* does not have.*\[PAD\] \[EOS\] \[IMG\]"):
        load_tokens(path, names)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bos": "<bos>"}, r"tokens.bos is '<bos>'.*\(null for none\)"),
        ({"eos": "</s>"}, "tokens.eos is '</s>'"),
        ({"pad": "[IMG]"}, "tokens.pad and tokens.image are both 22"),
        ({"eos": 22}, "tokens.eos and tokens.image are both 22"),
        ({"bos": "[IMG]", "image": 22}, "tokens.bos and tokens.image are both 22"),
        ({"eos": ""}, "tokens.eos is '', which"),
    ],
)
def test_tokens_that_do_not_fit(tmp_path, change, said):
    with pytest.raises(DataError, match=said):
        load_tokens(write_tokenizer(tmp_path), TokenNames(**NAMES | change))


@pytest.mark.parametrize(
    ("content", "said"), [(None, "is not a file; give 'words' or"), ("{}", "is not a tokenizer.json")]
)
def test_files_that_are_no_tokenizer(tmp_path, content, said):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=said):
        load_tokens(str(path), TokenNames())


def test_the_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"needs the library tokenizers; pip install 'hyperparallel\[files\]'"):
        load_tokens(write_tokenizer(tmp_path, text="{}"), TokenNames())


@pytest.mark.parametrize("values", [{"bos": False}, {"pad": -1}, {"pad": None}, {"unk": "<unk>"}])
def test_wrong_names_are_refused(values):
    with pytest.raises(ValidationError):
        TokenNames(**values)


@pytest.mark.parametrize("role", ["pad", "bos", "eos"])
def test_an_image_token_that_is_another_one_too_is_refused_before_the_tokenizer_is_read(role):
    for tokens in ({role: "<image>"}, {"image": f"<{role}>"}, {role: 7, "image": 7}):
        said = f"tokens.{role} and tokens.image are both {tokens['image' if 'image' in tokens else role]!r}, but"
        with pytest.raises(ValidationError, match=said):
            FilesConfig(path="gone.jsonl", tokenizer="gone.json", tokens=tokens)
    with pytest.raises(ValidationError, match=f"tokens.{role} is empty; give the token's text or its id"):
        FilesConfig(path="gone.jsonl", tokens={role: ""})


def test_other_tokens_may_be_the_same(tmp_path):
    # As in tokenizers with one special token.
    names = FilesConfig(path="gone.jsonl", tokens={"pad": "[EOS]", "bos": "[EOS]", "eos": 21, "image": "[IMG]"}).tokens
    tokens = load_tokens(write_tokenizer(tmp_path), names)
    assert tokens.pad == tokens.bos == tokens.eos == 21
