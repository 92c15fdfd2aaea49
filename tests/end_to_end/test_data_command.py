"""`longspan data`: its numbers beside transformers' tokenizer, its marks, its page, and texts of strangers."""

import json
import os
import pty
import re
import shutil
import subprocess
from collections import Counter

import html5lib
import pytest
from conftest import PROGRAM, add_dataset, settings_of, words_of_real_text, write_config, write_tokenizer

CONFIG = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu",
}
XHTML = "{http://www.w3.org/1999/xhtml}"
# As CHATML of conftest.py, with marks: transformers says which tokens are an answer's.
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HOSTILE = "</script></pre><img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>\x1b]0;stolen\x07\u202e&amp;"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A model's folder without weights, and data sets."""
    folder = tmp_path_factory.mktemp("data_command")
    model = folder / "model"
    write_tokenizer(model)
    (model / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(tokenizer)}))
    (model / "chat_template.jinja").write_text(MARKED)
    words = words_of_real_text()

    def text(place, size):
        return " ".join(words[place : place + size])

    chats = [
        {"messages": [message for turn in range(1 + i % 3) for message in (
            {"role": "user", "content": text(40 * i + turn, 3 + i)},
            {"role": "assistant", "content": text(900 + 40 * i + turn, 5 + 2 * i)})]}
        for i in range(12)
    ]
    chats += [chats[3], chats[3], chats[7]]
    add_dataset(folder / "data", "chats", chats, formatting="openai")
    short = [{"messages": [{"role": "user", "content": text(i, 4)}, {"role": "assistant", "content": text(2 * i, 3 + 9 * i)}]}
             for i in range(9)]
    add_dataset(folder / "data", "short", short, formatting="openai")
    return folder, {"chats": chats, "short": short}


def data_of(settings, *arguments, status=0, **variables):
    """Output and page. A path of a page among the arguments is its own."""
    config = write_config(settings)
    page = config.with_suffix(".html")
    ran = subprocess.run([PROGRAM, "data", config, "--html", page, *arguments], capture_output=True, timeout=60,
                         env=os.environ | {"OMP_NUM_THREADS": "1"} | variables)
    assert ran.returncode == status, ran.stderr.decode()
    return ran.stdout.decode(), (page.read_text() if status == 0 else ran.stderr.decode())


def table_of(output):
    """The numbers of each data set, by column."""
    lines = output.splitlines()
    heading = re.split(r"\s{2,}", lines[0])
    columns = heading[: heading.index("trained") + 1] + ["share"] + heading[heading.index("trained") + 1 :]
    table = {}
    for line in lines[1:]:
        if not line:
            break
        cells = re.split(r"\s{2,}", line)
        table[cells[0]] = {name: cell.replace(",", "") for name, cell in zip(columns, cells, strict=True)}
    return table


def encoded(tokenizer, row):
    """Tokens and, by {% generation %}, labels."""
    out = tokenizer.apply_chat_template(row["messages"], chat_template=MARKED, tokenize=True, return_dict=True,
                                        return_assistant_tokens_mask=True)
    return out["input_ids"], out["assistant_masks"]


def parsed(page):
    """Throws at anything that is not HTML by the standard."""
    return html5lib.HTMLParser(strict=True).parse(page)


def text_of(element):
    return "".join(element.itertext())


@pytest.mark.parametrize("cutoff_len", [2048, 60])
def test_numbers_beside_transformers(folder, tokenizer, tmp_path, cutoff_len):
    place, rows = folder
    output, page = data_of(settings_of(place / "model", place / "data", tmp_path / "run", dataset="chats,short", cutoff_len=cutoff_len))
    table = table_of(output)
    assert list(table) == ["chats", "short"]
    kept_of_all = []
    for name, numbers in table.items():
        samples = [encoded(tokenizer, row) for row in rows[name]]
        lengths = sorted(len(ids) for ids, _ in samples)
        kept = [min(length, cutoff_len) for length in lengths]
        assert int(numbers["examples"]) == len(samples)
        assert int(numbers["longest"]) == lengths[-1]
        assert int(numbers["median"]) == lengths[(len(lengths) - 1) // 2]
        assert abs(int(numbers["mean"]) - sum(lengths) / len(lengths)) <= 0.5
        assert int(numbers["tokens"]) == sum(kept)
        assert int(numbers["cut"]) == sum(length > cutoff_len for length in lengths)
        assert int(numbers["lost"]) == sum(lengths) - sum(kept)
        drawn = re.search(rf"Lengths of {name}, [^\n]*\n((?:  \S+ to [^\n]*\n)+)", output)[1]
        for begin, end, count in re.findall(r"^  (\S+) to (\S+)\s+(\S+)", drawn.replace(",", ""), re.M):
            assert int(count) == sum(int(begin) <= length <= int(end) for length in lengths)
        counts = Counter(json.dumps(row) for row in rows[name])
        assert int(numbers["duplicates"]) == sum(count - 1 for count in counts.values())
        if cutoff_len == 2048:
            trained = sum(sum(mask) for _, mask in samples)
            assert int(numbers["trained"]) == trained
            assert numbers["share"] == f"{100 * trained / sum(lengths):.1f} %"
        kept_of_all.append((lengths, kept))
    assert "3 examples of chats are exact duplicates of earlier examples." in output
    lost = "are lost, in" in output
    assert lost == (cutoff_len == 60)
    if lost:  # a cutoff_len of the advice keeps as many tokens as it says
        all_lengths = [length for lengths, _ in kept_of_all for length in lengths]
        (advised, share), = re.findall(r"cutoff_len: (\d+) would keep ([\d.]+) %", output)
        expected = 100 * sum(min(length, int(advised)) for length in all_lengths) / sum(all_lengths)
        assert float(share) == pytest.approx(expected, abs=0.051) and expected >= 99
    cells = [text_of(cell) for cell in parsed(page).iter(f"{XHTML}td")]
    assert f"{int(table['chats']['trained']):,}" in cells


def test_trained_tokens_are_the_answers(folder, tokenizer, tmp_path):
    place, rows = folder
    output, page = data_of(settings_of(place / "model", place / "data", tmp_path / "run", dataset="short"), "--examples", "4")
    answers = [row["messages"][1]["content"] + "<|im_end|>" for row in rows["short"]]
    assert re.findall("⟦([^⟧]*)⟧", output.split("Example 1 of", 1)[1]) == answers[:4]
    document = parsed(page)
    texts = {text_of(mark) for mark in document.iter(f"{XHTML}mark")} - {"trained"}
    assert set(answers[:5]) <= texts <= set(answers)
    # Each token has its id.
    first = next(document.iter(f"{XHTML}pre"))
    ids = [int(one) for token in first.iter() if token.get("title") for one in token.get("title").split()]
    assert ids == encoded(tokenizer, rows["short"][0])[0]
    # One example alone.
    output, _ = data_of(settings_of(place / "model", place / "data", tmp_path / "run", dataset="short"), "--example", "8")
    assert re.findall("⟦([^⟧]*)⟧", output.split("Example 8 of 9", 1)[1]) == [answers[7]]


def best_fit(lengths, room_of_row):
    """How LLaMA-Factory's greedy_knapsack packs: the longest that fits, until none fits."""
    left, rows = sorted(lengths), []
    while left:
        room, row = room_of_row, []
        while fitting := [length for length in left if length <= room]:
            row.append(fitting[-1])
            left.remove(fitting[-1])
            room -= fitting[-1]
        rows.append(sum(row))
    return rows


@pytest.mark.parametrize("packing", ["packing", "neat_packing"])
def test_packing(folder, tokenizer, tmp_path, packing):
    place, rows = folder
    settings = settings_of(place / "model", place / "data", tmp_path / "run", dataset="chats,short", cutoff_len=256)
    output, page = data_of(settings | {packing: True})
    lengths = [min(256, len(encoded(tokenizer, row)[0])) for name in rows for row in rows[name]]
    packed = best_fit(lengths, 256)
    waste = 100 * (1 - sum(lengths) / (256 * len(packed)))
    assert f"Packing: {len(packed)} rows of up to 256 tokens out of {len(lengths)}; {waste:.1f} % empty" in output
    half = sum(2 * row < 256 for row in packed)
    assert (f"{half} row" in output.split("Packing: ")[1]) == (half > 0)
    assert "% empty" in page
    # Examples are shown one by one.
    assert "Example 1 of 24" in output


def test_texts_of_strangers(folder, tmp_path):
    place, _ = folder
    row = {"messages": [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": "⟦no⟧ " + HOSTILE}]}
    add_dataset(place / "data", "<b>hostile", [row, row], formatting="openai")
    output, page = data_of(settings_of(place / "model", place / "data", tmp_path / "run", dataset="<b>hostile"))
    assert "\x1b" not in output and "\u202e" not in output and "\\x1b]0;stolen\\x07" in output
    assert output.count("⟦") == output.count("⟧") == 3  # the legend, two examples
    document = parsed(page)
    assert "\x1b" not in page and "\u202e" not in page
    assert not {element.tag for element in document.iter() if element.tag.removeprefix(XHTML) in
                ("script", "img", "iframe", "object", "link", "a", "form", "base")}
    assert not [name for element in document.iter() for name in element.attrib if name.startswith("on") or name in ("src", "href", "style")]
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\u202e", "\\u202e")
    assert shown in text_of(next(document.iter(f"{XHTML}pre")))
    policy, = [meta.get("content") for meta in document.iter(f"{XHTML}meta") if meta.get("http-equiv")]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'") and "script" not in policy


def test_the_page_in_a_browser(folder, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no chromium (Debian: apt-get install chromium)")
    place, _ = folder
    row = {"messages": [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]}
    # A token alone is no tag; the list of duplicates has whole texts.
    add_dataset(place / "data", "browsed", [row, row], formatting="openai")
    data_of(settings_of(place / "model", place / "data", tmp_path / "run", dataset="browsed"))
    ran = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", "--dump-dom", (tmp_path / "run.html").as_uri()], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "<title>Data of a run</title>" in ran.stdout and "<script" not in ran.stdout and "<img" not in ran.stdout
    assert ran.stdout.count("<mark>") >= 2 and "</svg>" in ran.stdout
    assert "CONSOLE" not in ran.stderr, ran.stderr  # nothing was refused, nothing failed


def test_warnings(folder, tmp_path):
    place, rows = folder
    settings = settings_of(place / "model", place / "data", tmp_path / "run", dataset="chats", train_on_prompt=True)
    assert "Every token of chats is trained, the prompts too (train_on_prompt: true)." in data_of(settings)[0]
    bad = [rows["short"][0],
           {"messages": [{"role": "user", "content": "Is there"}, {"role": "assistant", "content": "Yes", "weight": 0}]},
           {"messages": [{"role": "user", "content": "Nobody answers"}]}]
    add_dataset(place / "data", "bad", bad, formatting="openai")
    output, page = data_of(settings | dict(train_on_prompt=False, dataset="bad,short", eval_dataset="short", do_eval=True))
    assert (table_of(output)["bad"]["bad"], table_of(output)["bad"]["untrained"]) == ("2", "1")
    for text in ("No token is trained in 1 example of bad.", "2 rows of bad cannot be used. Training stops there",
                 "9 examples of the evaluation are trained, too", "the chat ends with a question"):
        assert text in output and text in page, text
    assert list(table_of(output)) == ["bad", "short", "short (evaluation)"]


@pytest.mark.parametrize("stage", ["pt", "dpo", "rm", "kto"])
def test_other_stages(folder, tokenizer, tmp_path, stage):
    place, _ = folder
    rows = [{"q": f"question {i}", "a": f"better {i} " * i, "r": f"worse {i}", "t": i % 2 == 0} for i in range(1, 6)]
    columns = {"pt": {"prompt": "a"}, "kto": {"prompt": "q", "response": "a", "kto_tag": "t"}}
    add_dataset(place / "data", stage, rows, columns=columns.get(stage, {"prompt": "q", "chosen": "a", "rejected": "r"}),
                **({"ranking": True} if stage in ("dpo", "rm") else {}))
    output, page = data_of(settings_of(place / "model", place / "data", tmp_path / "run", dataset=stage, stage=stage))
    parsed(page)
    numbers = table_of(output)[stage]

    def size(text):
        return len(tokenizer(text)["input_ids"])

    if stage == "pt":  # packed: every text with its end token
        assert int(numbers["tokens"]) == sum(size(row["a"]) + 1 for row in rows)
        return
    answers = sum(size(row["a"]) + 1 for row in rows)
    if stage == "kto":
        assert int(numbers["trained"]) == answers
        assert "answer (good): " in output and "answer (bad): " in output
        return
    assert int(numbers["trained"]) == answers + sum(size(row["r"]) + 1 for row in rows)
    assert "chosen: " in output and "rejected: " in output


def test_colours_on_a_terminal(folder, tmp_path):
    place, rows = folder
    config = write_config(settings_of(place / "model", place / "data", tmp_path / "run", dataset="short"))

    def output(**variables):
        main, other = pty.openpty()
        process = subprocess.Popen([PROGRAM, "data", config, "--html", tmp_path / "page.html", "--examples", "1"], stdout=other,
                                   env=os.environ | {"TERM": "xterm", "OMP_NUM_THREADS": "1"} | variables)
        os.close(other)
        parts = []
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:
                break
            if not part:
                break
            parts.append(part)
        os.close(main)
        assert process.wait(60) == 0
        return b"".join(parts).decode()

    answer = rows["short"][0]["messages"][1]["content"]
    assert f"\x1b[32m{answer}\x1b[0m\x1b[1;32m<|im_end|>\x1b[0m" in output()
    assert f"⟦{answer}<|im_end|>⟧" in output(NO_COLOR="1")


def test_only_its_own_page_is_replaced(folder, tmp_path):
    place, _ = folder
    settings = settings_of(place / "model", place / "data", tmp_path / "run", dataset="short")
    data_of(settings)
    data_of(settings)  # replaces its own
    (tmp_path / "run.html").write_text("<p>mine</p>")
    _, error = data_of(settings, status=1)
    assert "run.html is there already" in error and (tmp_path / "run.html").read_text() == "<p>mine</p>"
    for words, message in ((["--example", "10"], "there are 9 examples"), (["--examples", "x"], "wanted is a whole number"),
                           (["dataset=none"], "none"), (["--exmple", "3"], "exmple")):
        (tmp_path / "run.html").unlink(missing_ok=True)
        _, error = data_of(settings, *words, status=1)
        assert message in error and not (tmp_path / "run.html").exists()
    assert not (tmp_path / "run").exists()
