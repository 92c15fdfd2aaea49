"""A model, a tokenizer and data that are small enough for a CPU. Replace them with your own."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WORDS = [f"w{number}" for number in range(93)]


def model(family="llama", **options):
    torch.manual_seed(0)  # the same weights on all ranks
    config = AutoConfig.for_model(family, vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2, head_dim=16, use_cache=False, **options)
    return AutoModelForCausalLM.from_config(config)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    fast = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<pad>", "<eos>", *WORDS])}, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>")


class Rows(torch.utils.data.Dataset):
    """Rows of counting numbers, which a model learns fast."""

    def __init__(self, count=16, tokens=128):
        self.count, self.tokens = count, tokens

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        ids = (torch.arange(self.tokens) * (1 + number % 3) + number) % 90 + 3
        return dict(input_ids=ids, labels=ids)


def texts(count, length):
    return [" ".join(WORDS[(number + place) % 93] for place in range(length)) for number in range(count)]
