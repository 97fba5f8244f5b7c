#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the tokenizers of tests/data/tokenizers with Hugging Face's library and writes its tokens for nasty texts.

reference.json has the texts and their tokens, pieces.json the bytes of the pieces that they are cut into before.

Run by hand where the package tokenizers is installed, when something here has changed."""
import json
import pathlib
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
STORY = HERE.parent.parent / "examples" / "tiny.txt"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def byte_level(**arguments):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **arguments})


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level(use_regex=True)
    return tokenizer, ["<|endoftext|>"], []


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(Regex(LLAMA3)), byte_level()])
    return tokenizer, [], [AddedToken(text, special=True) for text in
                           ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot|>", "<|eot")]


def odd():
    """NFC, a space in front, and added tokens of every kind."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=True, use_regex=True)
    return tokenizer, ["<unk>"], [
        AddedToken("<mask>", lstrip=True, special=True), AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, special=True), AddedToken("word", single_word=True),
        AddedToken("<alone>", single_word=True, lstrip=True, special=True), AddedToken("wordy", normalized=False),
        AddedToken("  ", normalized=False), AddedToken("é", normalized=True)]


def deepseek():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*(split(Regex(one)) for one in DEEPSEEK), byte_level()])
    return tokenizer, [], [AddedToken("<｜end▁of▁sentence｜>", special=True)]


def behaviors():
    """The other things that can be done with a match; a prefix space for each piece."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        split(Regex(r"^x|y$|(?=[éöü])"), "isolated"), split(Regex("(?i)the"), "merged_with_previous"),
        split(",", "merged_with_next"), split(Regex(r"[\S]+"), "contiguous", True), split("_", "removed"),
        split(Regex(r"(?<=[a-c])\d+|\p{Han}|\p{^L}\x{1F642}"), "contiguous"),
        pre_tokenizers.Digits(individual_digits=True), byte_level(add_prefix_space=True)])
    return tokenizer, [], []


TEXTS = [
    "", " ", "\n", "a", "Hello, world!", "Once upon a time there was a little pot.",
    "it's they're I'VE we'll he'd 'tis ''s", "IT'S I'Ll don'T 'ſ ſ'ſ", "   three spaces   and trailing   ",
    "tabs\t\tand\u00a0no-break\u3000wide\u2009thin\u1680ogham", "a\n\nb\r\n\r\nc\n \n d \n\n\n", "\r\n\r",
    "12345678901234567890 1 12 123 1234 ½ ² Ⅷ ٣٤٥ १२३", "3.14159e-10 0x1F 1,000,000", "naïve café résumé Ærøskøbing",
    "e\u0301 cafe\u0301 a\u0308\u0323 \u0915\u093c \u0e17\u0e35\u0e48", "Здравствуй, мир! Ёлка.",
    "日本語のテキスト、中文文本。한국어 텍스트", "漢字かなカナ一二三", "مرحبا بالعالم שלום עולם", "नमस्ते दुनिया", "🎉🎊 👨‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ ☃",
    "mixed🙂emoji🙂words 🙂 🙂", "\u180e\u200b\u200d\ufeff\u0085x\u0085 y\u2028z\u2029w", "\x00\x01\x02\x7f control",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c", "<|begin_of_text|>Once<|eot_id|><|eot|><|eot_|>",
    "<|end_of_text|><|end_of_text|>", "<|eot<|eot|>", "<|EOT|>", "x <mask> y<mask>z  <mask>\n<mask>",
    " <both>  <both> a <both>\u3000b<right>   c",
    "word words sword word. (word) word\u200d wordy word_ word1 \u20ddword",
    "<alone>x <alone> x<alone> \u00e9<alone>", "two  spaces   three    four  <mask>",
    "def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass\n", "https://example.org/a_b?c=d&e=f#g~h%20i",
    "{\"key\": [1, 2.5, null], \"b\": \"\\u00e9\"}", "a" * 300, "ab" * 200 + " " + "the" * 70, " " * 70,
    "=" * 100 + "\n" + "-" * 65, "!?!?...---***", "thethethe The,the, tHe ,,, _a__b_ xylophone y\ny",
    "Ǆ ǅ ß ẞ ﬁ ﬀ K Å", "once upon a time the pot cooked" + " and cooked" * 20,
    "<｜end▁of▁sentence｜>x<｜end▁of▁sentence｜", "\U0001F980\U00020000\U0010FFFF\uE000", "-a+b*c /d\\e [f] ^g `h {i} ~j",
    "a\u0300\u0301b", "가\u1100\u1161", "\u05d1\u05b0\u05bc", "\u05d1\u05bc\u05b0", "lll eee ooo sss ttt ppp nnnnn",
    "a12b c3 4d 漢字12", "xx\nxa ay\nyy", "the,the,,theThe the",
]


def unsupported(name, text):
    """What Sherd refuses: texts that NFC would change."""
    return name == "odd" and unicodedata.normalize("NFC", text) != text


def main():
    folder = HERE / "tokenizers"
    folder.mkdir(exist_ok=True)
    reference = {"tokenizers": tokenizers.__version__, "texts": TEXTS, "tokens": {}}
    pieces = {}
    for make in (gpt2, llama3, odd, deepseek, behaviors):
        tokenizer, special, added = make()
        tokenizer.train([str(STORY)], trainers.BpeTrainer(
            vocab_size=500, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tokenizer.add_tokens(added)
        file = json.loads(tokenizer.to_str())
        if make is gpt2:  # as files were written before 2024
            file["model"]["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in file["model"]["merges"])]
        if make is llama3:  # a token that no merge leads to, so that ignore_merges matters
            vocab = file["model"]["vocab"]
            last = max(vocab, key=vocab.get)
            vocab["Once"] = vocab.pop(last)
            file["model"]["merges"] = [pair for pair in file["model"]["merges"] if "".join(pair) != last]
        text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
        (folder / f"{make.__name__}.json").write_text(text + "\n")
        tokenizer = Tokenizer.from_str(text)
        reference["tokens"][make.__name__] = [
            None if unsupported(make.__name__, one) else tokenizer.encode(one, add_special_tokens=False).ids for one in TEXTS]
        pieces[make.__name__] = [
            [len(piece) for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(one)] for one in TEXTS]
    (folder / "pieces.json").write_text(json.dumps(pieces, separators=(",", ":")) + "\n")
    (folder / "reference.json").write_text(json.dumps(reference, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
