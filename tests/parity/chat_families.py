"""Chat templates of published models: where each comes from, which texts of its renderings are answers, and by which
tokens its server stops. The templates are files of the packages from which they are read.

Where a family's tokenizer is not to be had, another one gets the tokens that the template writes.
"""

import json
import pathlib
from typing import NamedTuple

import tokenizers
import transformers
import trl
from test_text import fetch

PUBLISHED = pathlib.Path(trl.__file__).parent / "chat_templates"

# Formats for which no package has a template, written down from their descriptions.
PHI4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
PHI4_MINI = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)
GLM4 = (
    "[gMASK]<sop>{% for m in messages if m.role != 'tool' %}<|{{ m.role }}|>{{ '\\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

CALLS = {"call", "call_again", "call_many", "two_calls", "call_last", "call_text", "call_thoughts"}
THOUGHTS = {"thoughts", "thoughts_twice", "call_thoughts"}


class Family(NamedTuple):
    tokenizer: str  # a package of npm, see test_text.fetch
    template: str  # a file of TRL's, a template, or "": the tokenizer's own
    answer: str  # a regular expression of an answer in a rendering: its group is labelled
    stops: list  # tokens that stop its server: eos_token_id of generation_config.json
    eos: str = ""  # eos_token, where it is not the tokenizer's
    bos: str = ""
    added: list = []  # tokens that the tokenizer lacks
    strips: bool = False  # the added tokens take white space behind them
    text_arguments: bool = False  # it wants a call's arguments as JSON text, and no content beside calls as null
    keys: dict = {}  # of a configuration and of apply_chat_template
    end: str = ""  # which token ends the last answer, where the template writes none
    call_end: str = ""  # the same behind a call
    unended: set = set()  # chats with earlier answers behind which the template writes no token that stops
    refused: set = set()  # chats of which it leaves out a part that would be trained or that an answer needs
    left_out: set = set()  # chats that it garbles
    prints_tools: bool = True


def chatml(thinks=""):
    return rf"<\|im_start\|>assistant\n{thinks}(.*?<\|im_end\|>\n)"


QWEN_STOPS = ["<|im_end|>", "<|endoftext|>"]
LLAMA_ANSWER = r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.+?<\|eot_id\|>)"
PHI3 = dict(
    tokenizer="llama2", answer=r"<\|assistant\|>\n(.*?<\|end\|>\n)", stops=["<|endoftext|>", "<|assistant|>", "<|end|>"],
    bos="<s>", eos="<|endoftext|>", added=["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"],
    strips=True, refused=CALLS | THOUGHTS,
)
# Behind tool output the template writes no <｜Assistant｜>.
DEEPSEEK = dict(
    tokenizer="deepseek_v3", bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>", stops=["<｜end▁of▁sentence｜>"],
    answer=r"(?:<｜Assistant｜>|<｜tool▁outputs▁end｜>)(.*?(?:<｜end▁of▁sentence｜>|(?=<｜tool▁outputs▁begin｜>)|\Z))",
    text_arguments=True, left_out={"call_again", "call_many"}, prints_tools=False,
)
ONE_CALL = dict(end="<｜end▁of▁sentence｜>", unended={"call"})  # the end is written behind a second call
GLM = dict(
    tokenizer="qwen3", answer=r"<\|assistant\|>(\n.*?(?:<\|user\|>|<\|observation\|>|\Z))", eos="<|endoftext|>",
    stops=["<|endoftext|>", "<|user|>", "<|observation|>"], end="<|endoftext|>", call_end="<|observation|>",
    added=["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
)

FAMILIES = {
    "qwen2_5": Family("qwen2_5", "", chatml(), QWEN_STOPS, refused=THOUGHTS),
    "qwen3": Family("qwen3", "qwen3", chatml(), QWEN_STOPS),
    "qwen3_nothink": Family("qwen3", "qwen3", chatml(r"(?:<think>\n\n</think>\n\n)?"), QWEN_STOPS,
                            keys=dict(enable_thinking=False), left_out=THOUGHTS | {"thoughts_in_text"}),
    "qwen3_5": Family("qwen3", "qwen3_5_think", chatml(r"(?:<think>\n)?"), QWEN_STOPS),
    "llama3": Family("llama3", "", LLAMA_ANSWER, ["<|end_of_text|>", "<|eot_id|>"], refused=CALLS | THOUGHTS),
    "llama3_2": Family("llama3_2", "llama3_2", LLAMA_ANSWER, ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
                       refused=THOUGHTS | {"two_calls", "call_text"}),
    "phi3": Family(template="phi3", **PHI3),
    "phi3_5": Family(template="phi3_5", **PHI3),
    "phi4": Family("gpt35turbo", PHI4, r"<\|im_start\|>assistant<\|im_sep\|>(.*?<\|im_end\|>)",
                   ["<|endoftext|>", "<|im_end|>"], eos="<|im_end|>", added=["<|im_start|>", "<|im_sep|>", "<|im_end|>"],
                   refused=CALLS | THOUGHTS),
    "phi4_mini": Family("gpt4o", PHI4_MINI, r"<\|assistant\|>(.*?<\|end\|>)", ["<|end|>", "<|endoftext|>"],
                        eos="<|endoftext|>", added=["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
                        refused=CALLS | THOUGHTS),
    # <|end|> ends a message, and no answer: the thoughts of an answer are a message of their own.
    "gpt_oss": Family("gptoss", "gptoss",
                      r"<\|start\|>assistant((?:<\|channel\|>analysis<\|message\|>.*?<\|end\|><\|start\|>assistant)?"
                      r"(?:<\|channel\|>final| to=\S*<\|channel\|>commentary json)<\|message\|>.*?"
                      r"(?:<\|return\|>|<\|call\|>|(?=<\|end\|>)))",
                      ["<|return|>", "<|endoftext|>", "<|call|>"],
                      unended={"two", "four", "many", "thoughts_first", "thoughts_twice", "untrained", "call_again", "call_many"},
                      refused={"two_calls", "call_text"}),
    "deepseek_v3": Family(template="", **DEEPSEEK | ONE_CALL, refused=THOUGHTS | {"call_text"}),
    # Its prompt ends with <think>, of which the renderings of answers have nothing.
    "deepseek_r1": Family(template="deepseekv3", **DEEPSEEK, refused=THOUGHTS | {"thoughts_in_text"}),
    "deepseek_r1_distill": Family(template="deepseek_r1_distill", **DEEPSEEK | ONE_CALL,
                                  refused=THOUGHTS | {"thoughts_in_text", "call_text"}),
    "glm4": Family(template=GLM4, **GLM, refused=CALLS | THOUGHTS),
    "glm4_5": Family(template="glm4moe", **GLM),
    "gemma3": Family("gemma3", "", r"<start_of_turn>model\n(.*?<end_of_turn>\n)", ["<eos>", "<end_of_turn>"],
                     refused=CALLS | THOUGHTS),
    # It prints the system message before the last question, and only where no answer follows.
    "mistral": Family("mistral_nemo", "", r"(?:\[/INST\]|\[/TOOL_RESULTS\](?!\[TOOL_RESULTS\]))(.*?</s>)", ["</s>"],
                      refused=THOUGHTS | {"call_text", "system", "four"}),
}


def write_folder(family, folder):
    """The family's model folder without weights. Returns its tokenizer, as transformers reads it."""
    source = fetch(family.tokenizer)
    given = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, rstrip=family.strips, special=True) for token in family.added])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": given.get("chat_template")}
    if family.template:
        published = PUBLISHED / f"{family.template}.jinja"
        config["chat_template"] = family.template if "{" in family.template else published.read_text()
    for name in ("bos_token", "eos_token"):
        if token := getattr(family, name[:3]) or given.get(name):
            config[name] = token
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    stops = [tokenizer.token_to_id(token) for token in family.stops]
    assert None not in stops, family.stops
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return transformers.AutoTokenizer.from_pretrained(folder)
