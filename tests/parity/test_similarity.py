"""BLEU and ROUGE of answers, by LLaMA-Factory's own metric, which calls jieba, rouge_chinese and nltk."""

import json
import random

import llamafactory_data
import pytest
from llamafactory_metric import scores_of
from test_text import probe  # noqa: F401

CHINESE, ENGLISH = "alpaca_zh_demo", "alpaca_en_demo"
SHORT = ["", " ", "\n", "a", "。", "no", "是", "是的", "Yes.", "1.5%", "a-b_c.d", "AT&T", "C++", "\u3000", "\x1c", "\U00020000", "鿕鿖"]
# Characters that separate words or sentences.
ODD = ("abcZ019.%+#&_-, ", "。，！？?“”’…", "\t\n\r\x0b\x1c\x85\xa0\u2028\u3000\u200b〇鿕鿖豈㐀𠀀é́🙂")


@pytest.fixture(scope="module")
def texts():
    def answers(name):
        rows = json.loads((llamafactory_data.source() / "data" / f"{name}.json").read_text())
        return [row["output"][:150] for row in rows[:120]]

    return {name: answers(name) for name in (CHINESE, ENGLISH)}


def spliced(rng, text, other):
    """An answer that shares parts with the text."""
    begin, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    return text[:begin] + other[: rng.randrange(30)] + text[end:]


def pairs(kind, texts):
    rng = random.Random(kind)
    if kind == "short":
        return [(answer, label) for answer in SHORT for label in SHORT]
    if kind == "odd":
        letters = [letter for text in texts[CHINESE] for letter in text]

        def text():
            return "".join(rng.choice(rng.choice([letters, letters, *ODD])) for _ in range(rng.randrange(50)))

        whole = [text() for _ in range(300)]
        return [(spliced(rng, one, other), one) for one, other in zip(whole, whole[1:])]
    whole = texts[kind]
    return [(spliced(rng, one, other), one) for one, other in zip(whole, whole[1:])] + [(one, one) for one in whole[:5]]


@pytest.mark.parametrize("kind", [CHINESE, ENGLISH, "short", "odd"])
def test_scores(kind, texts, probe):  # noqa: F811
    """Each number, after rounding."""
    some = pairs(kind, texts)
    ours = probe.ask("similarity", pairs=some)["scores"]
    wanted = scores_of(some)
    for pair, score, other in zip(some, ours, wanted, strict=True):
        assert score == other, pair
    # Scores that tell something.
    assert len({tuple(score) for score in ours}) > 10
