"""LLaMA-Factory's metric of generated answers (train/sft/metric.py), for texts."""

import dataclasses
import types
import typing

import jieba
import llamafactory_data
import numpy
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from rouge_chinese import Rouge

NAMES = ["rouge-1", "rouge-2", "rouge-l", "bleu-4"]
jieba.setLogLevel(60)  # it speaks of its dictionary


class Texts:
    """In the place of a tokenizer: a token is the number of a text."""

    def __init__(self, texts):
        self.pad_token_id, self.texts = 0, texts

    def batch_decode(self, ids, skip_special_tokens):
        return [self.texts[number] for [number] in ids]


def metric_of(pairs, **call):
    """The metric after a call with the answers and labels."""
    [metric] = llamafactory_data.functions("train/sft/metric.py", ["ComputeSimilarity"], dict(
        dataclass=dataclasses.dataclass, np=numpy, numpify=numpy.asarray, IGNORE_INDEX=-100, jieba=jieba, Rouge=Rouge,
        sentence_bleu=sentence_bleu, SmoothingFunction=SmoothingFunction, Optional=typing.Optional))
    made = metric(tokenizer=Texts([text for pair in pairs for text in pair]))
    numbers = numpy.arange(2 * len(pairs)).reshape(-1, 2)
    return made, made(types.SimpleNamespace(predictions=numbers[:, :1], label_ids=numbers[:, 1:]), **call)


def scores_of(pairs):
    """Of each pair of an answer and a label, in the order of NAMES."""
    made, _ = metric_of(pairs, compute_result=False)
    return [list(scores) for scores in zip(*(made.score_dict[name] for name in NAMES))]


def means_of(pairs):
    return metric_of(pairs)[1]
