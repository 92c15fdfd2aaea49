"""What is trained: a checkpoint, rows of an exact length, and the work that they ask for."""

import dataclasses
import json
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

# Qwen2's family at a size that two cores train in seconds a step: the ratios between width, MLP,
# heads and kv heads are those of Qwen2.5-0.5B to 3B, the head dim is theirs (64).
D_MODEL, D_MLP, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 512, 1408, 8, 8, 2, 64
TOKENIZER_SIZE = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Case:
    tokens: int  # of each row, exactly
    vocab: int
    answer_share: float  # of the row's tokens that have a label
    checkpointing: bool

    @property
    def name(self) -> str:
        how = "on" if self.checkpointing else "off"
        return f"T{self.tokens}-V{self.vocab}-answer{self.answer_share:g}-checkpointing-{how}"


def model_config(vocab: int, heads: tuple[int, int] = (HEADS, KV_HEADS)) -> dict:
    """`heads`: query and kv heads."""
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": vocab,
        "hidden_size": D_MODEL, "intermediate_size": D_MLP, "num_hidden_layers": LAYERS,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "hidden_act": "silu",
        "max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "tie_word_embeddings": True, "attention_dropout": 0.0,
        "use_sliding_window": False, "use_cache": True, "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
    } | ({} if heads[0] * HEAD_DIM == D_MODEL else {"head_dim": HEAD_DIM})


def block_parameters(heads: tuple[int, int] = (HEADS, KV_HEADS)) -> int:
    """Parameters of the blocks' matrices: every token is multiplied by each of them once."""
    attention = D_MODEL * HEAD_DIM * (2 * heads[0] + 2 * heads[1])
    return LAYERS * (attention + 3 * D_MODEL * D_MLP)


def _flops(case: Case, tokens: int, pairs: float, labels: int, passes: int,
           heads: tuple[int, int] = (HEADS, KV_HEADS)) -> dict[str, float]:
    """FLOPs that the mathematics asks for, 2 for a multiply-add; a pass is a forward's work, and a
    backward's is two. Blocks 2 x parameters x tokens; attention 4 N H x pairs of query and key a
    layer; head 2 D V x label positions (a position without a label asks for no logits).
    Recomputation under gradient checkpointing or inside flash attention is not counted, for
    anybody."""
    return {
        "blocks": passes * 2.0 * block_parameters(heads) * tokens,
        "attention": passes * 4.0 * heads[0] * HEAD_DIM * pairs * LAYERS,
        "head": passes * 2.0 * D_MODEL * case.vocab * labels,
    }


def model_flops(case: Case, labels: int) -> dict[str, float]:
    """One step on one row: forward and backward."""
    return _flops(case, case.tokens, case.tokens * (case.tokens + 1) / 2, labels, passes=3)


def training_flops(case: Case, labels: int, heads: tuple[int, int]) -> float:
    """One step on one row of a model with these query and kv heads."""
    return sum(_flops(case, case.tokens, case.tokens * (case.tokens + 1) / 2, labels, 3, heads).values())


def preference_flops(case: Case, labels: int, share_prompt: bool = False) -> dict[str, float]:
    """One step on one pair of rows: forward and backward of the model, forward of the reference.
    `labels` are those of both rows. A shared prompt is counted once, but for its last token, which
    predicts both answers."""
    shared = case.tokens - labels // 2 - 1 if share_prompt else 0
    pairs = case.tokens * (case.tokens + 1) - shared * (shared + 1) / 2
    return _flops(case, 2 * case.tokens - shared, pairs, labels, passes=4)


def train_tokenizer(folder: Path, special: list[str] = SPECIAL) -> None:
    """A byte-level BPE tokenizer of the Python standard library's own text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(str(p) for p in library.glob("*.py"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(files, trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "bos_token": None, "unk_token": None,
        "additional_special_tokens": SPECIAL[1:2], "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "model_max_length": 32768,
        "chat_template": CHATML,
    }, indent=1))


def make_checkpoint(folder: Path, vocab: int, embedding_std: float | None = None,
                    heads: tuple[int, int] = (HEADS, KV_HEADS)) -> Path:
    """A folder with random weights (seeded), config and tokenizer; kept between calls. `embedding_std`: of the
    input embeddings, where it is another than the config's."""
    done = folder / ".done"
    if not done.exists():
        print(f"== Making the checkpoint {folder}", flush=True)
        train_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps(model_config(vocab, heads), indent=1))
        # In a process of its own: torch stays out of the one that watches the others.
        subprocess.check_call([sys.executable, "-c", (
            "import sys, torch\n"
            "from transformers import AutoConfig, AutoModelForCausalLM\n"
            "torch.manual_seed(0)\n"
            "config = AutoConfig.from_pretrained(sys.argv[1])\n"
            "model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)\n"
            "for std in sys.argv[2:]:\n"
            "    torch.nn.init.normal_(model.get_input_embeddings().weight, std=float(std))\n"
            "model.save_pretrained(sys.argv[1])\n"
        ), str(folder), *([] if embedding_std is None else [str(embedding_std)])])
        done.touch()
    return folder


def _words(tokenizer) -> list[str]:
    """Words that are one token each after a space."""
    words = []
    for token in tokenizer.get_vocab():
        word = token[1:]
        if token.startswith("\u0120") and len(word) > 2 and word.isascii() and word.isalpha():
            if len(tokenizer.encode(" " + word).ids) == 1:
                words.append(word)
    return sorted(words)


class _Writer:
    """Texts of random words (seeded) that make rows of exactly the case's tokens under chatml."""

    HEAD, MIDDLE = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    END = "<|im_end|>\n"

    def __init__(self, checkpoint: Path, case: Case):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self._words, self._chance = _words(self._tokenizer), random.Random(case.tokens)
        self.labels = round(case.tokens * case.answer_share)  # of a row
        self._num_answer = self.labels - len(self._ids(self.END))
        self._num_prompt = case.tokens - self.labels - len(self._ids(self.HEAD + self.MIDDLE))
        if self._num_prompt < 8 or self._num_answer < 8:
            raise SystemExit(f"{case}: prompt and answer need 8 tokens each; change their shares")

    def _ids(self, string: str) -> list[int]:
        return self._tokenizer.encode(string).ids

    def _text(self, num_tokens: int) -> str:
        """Its first word has no space before it and may be several tokens."""
        first = self._chance.choice(self._words)
        rest = num_tokens - len(self._ids(first))
        return " ".join([first] + [self._chance.choice(self._words) for _ in range(rest)])

    def prompt(self) -> tuple[str, list[int]]:
        """As written in a dataset, and its tokens with the template around it."""
        text = self._text(self._num_prompt)
        return text, self._ids(self.HEAD + text + self.MIDDLE)

    def answer(self) -> tuple[str, list[int]]:
        text = self._text(self._num_answer)
        return text, self._ids(text + self.END)


def _write_dataset(folder: Path, dataset: list, tokens: list, entry: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.json").write_text(json.dumps(dataset))
    (folder / "tokens.json").write_text(json.dumps(tokens))
    info = {"rows": {"file_name": "rows.json"} | entry}
    (folder / "dataset_info.json").write_text(json.dumps(info))


def make_rows(folder: Path, checkpoint: Path, case: Case, count: int) -> int:
    """Writes `count` rows. Returns the labels of a row."""
    make_documents(folder, checkpoint, [case] * count)
    return round(case.tokens * case.answer_share)


def make_documents(folder: Path, checkpoint: Path, cases: list[Case]) -> None:
    """Writes a conversation of each case as an alpaca dataset (rows.json with its dataset_info.json) and as ids
    and labels (tokens.json)."""
    writers, dataset, tokens = {case: _Writer(checkpoint, case) for case in set(cases)}, [], []
    for case in cases:
        writer = writers[case]
        (prompt, question), (answer, reply) = writer.prompt(), writer.answer()
        dataset.append({"instruction": prompt, "input": "", "output": answer})
        tokens.append({"input_ids": question + reply, "labels": [-100] * len(question) + reply})
        assert len(tokens[-1]["input_ids"]) == case.tokens, len(tokens[-1]["input_ids"])
    _write_dataset(folder, dataset, tokens, {})


def make_pairs(folder: Path, checkpoint: Path, case: Case, count: int) -> int:
    """Writes `count` pairs of answers to one prompt as make_rows does; each answer makes a row of
    the case's tokens. Returns the labels of a pair."""
    writer, dataset, tokens = _Writer(checkpoint, case), [], []
    for _ in range(count):
        prompt, question = writer.prompt()
        (chosen, better), (rejected, worse) = writer.answer(), writer.answer()
        dataset.append({"instruction": prompt, "chosen": chosen, "rejected": rejected})
        tokens.append({"prompt_ids": question, "chosen_ids": better, "rejected_ids": worse})
        for reply in (better, worse):
            assert len(question + reply) == case.tokens, len(question + reply)
    columns = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}
    _write_dataset(folder, dataset, tokens, {"ranking": True, "columns": columns})
    return 2 * writer.labels
