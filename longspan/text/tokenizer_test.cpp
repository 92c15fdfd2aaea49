#include "longspan/text/tokenizer.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace fs = std::filesystem;

namespace longspan {
namespace {

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += "The quick brown fox jumps over the lazy dog number " + std::to_string(i) + ".\n\n";
  }
  return text + "été 日本語 🙂\r\n";
}

std::string trained(const testing::TemporaryFolder& folder) {
  train_byte_level_bpe({folder.write("text.txt", sample_text())}, 400, folder / "tokenizer");
  return folder / "tokenizer";
}

}  // namespace

TEST_CASE("tokenizer: a trained one round-trips any text") {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(trained(folder));
  CHECK(tokenizer.vocab_size() > 259);
  CHECK(tokenizer.vocab_size() <= 400);
  for (const std::string text : {"", " ", "The quick brown fox", "\t\r\n  x \n\n",
                                 "never seen: Привет, 世界 🙂👩‍👩‍👧",
                                 "a<|im_start|>b<|im_end|>", "\x01\x02\x7f"}) {
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
  // Merges were learnt: a frequent word is one token.
  CHECK(tokenizer.encode(" quick").size() == 1);
}

TEST_CASE("tokenizer: special tokens in the text are single ids and can be skipped") {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(trained(folder));
  const auto start = tokenizer.id_of("<|im_start|>");
  const auto end = tokenizer.id_of("<|im_end|>");
  REQUIRE(start.has_value());
  REQUIRE(end.has_value());
  CHECK_FALSE(tokenizer.id_of("no such token").has_value());
  const auto ids = tokenizer.encode("<|im_start|>fox<|im_end|>");
  CHECK(ids.front() == *start);
  CHECK(ids.back() == *end);
  CHECK(tokenizer.decode(ids, true) == "fox");
  CHECK(tokenizer.eos_token() == "<|im_end|>");
  CHECK(tokenizer.pad_token() == "<|endoftext|>");
  CHECK_FALSE(tokenizer.bos_token().has_value());
  CHECK(tokenizer.chat_template()->find("<|im_start|>") != std::string::npos);
}

TEST_CASE("tokenizer: a batch gives what one text after the other gives") {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(trained(folder));
  const std::vector<std::string> texts = {"The lazy dog", "", "<|im_end|>\n", sample_text()};
  const auto batch = tokenizer.encode_batch(texts);
  REQUIRE(batch.size() == texts.size());
  for (size_t i = 0; i < texts.size(); ++i) CHECK(batch[i] == tokenizer.encode(texts[i]));
  CHECK(tokenizer.encode_batch({}).empty());
}

TEST_CASE("tokenizer: broken UTF-8 is read with replacement characters, NUL is a character") {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(trained(folder));
  CHECK(tokenizer.decode(tokenizer.encode("a\xff z")) == "a\xef\xbf\xbd z");
  const std::string with_nul("a\0b", 3);
  CHECK(tokenizer.decode(tokenizer.encode(with_nul)) == with_nul);
}

TEST_CASE("tokenizer: training twice gives the same file") {
  testing::TemporaryFolder folder;
  const std::string text = folder.write("text.txt", sample_text());
  train_byte_level_bpe({text}, 350, folder / "a");
  train_byte_level_bpe({text}, 350, folder / "b");
  CHECK(read(folder / "a/tokenizer.json") == read(folder / "b/tokenizer.json"));
}

TEST_CASE("tokenizer: named templates, token objects, a template file") {
  testing::TemporaryFolder folder;
  const fs::path tokenizer = trained(folder);
  std::ofstream(tokenizer / "tokenizer_config.json")
      << R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": null,
             "chat_template": [{"name": "tool_use", "template": "T"},
                               {"name": "default", "template": "D"}]})";
  const Tokenizer loaded = Tokenizer::load(tokenizer.string());
  CHECK(loaded.bos_token() == "<s>");
  CHECK_FALSE(loaded.eos_token().has_value());
  CHECK(loaded.chat_template() == "D");
  // A token that only the config names is added to the vocabulary.
  REQUIRE(loaded.id_of("<s>").has_value());
  CHECK(loaded.encode("<s>") == std::vector<int32_t>{*loaded.id_of("<s>")});

  std::ofstream(tokenizer / "chat_template.jinja") << "J";
  CHECK(Tokenizer::load(tokenizer.string()).chat_template() == "J");
}

TEST_CASE("tokenizer: a processor's template counts where the tokenizer has none") {
  testing::TemporaryFolder folder;
  const std::string tokenizer = trained(folder);
  const std::string config = tokenizer + "/tokenizer_config.json";
  std::ofstream(tokenizer + "/chat_template.json") << R"({"chat_template": "P"})";
  std::ofstream(config) << R"({"chat_template": "D"})";
  CHECK(Tokenizer::load(tokenizer).chat_template() == "D");
  CHECK_FALSE(Tokenizer::load(tokenizer).has_processor_template());
  std::ofstream(config) << "{}";
  CHECK(Tokenizer::load(tokenizer).chat_template() == "P");
  CHECK(Tokenizer::load(tokenizer).has_processor_template());
  std::ofstream(tokenizer + "/chat_template.json") << R"({"chat_template": 7})";
  CHECK_THROWS_WITH_AS(Tokenizer::load(tokenizer),
                       doctest::Contains("chat_template.json has no text \"chat_template\""),
                       UserError);
}

TEST_CASE("tokenizer: keys of its config that nobody knows are named") {
  testing::TemporaryFolder folder;
  const fs::path tokenizer = trained(folder);
  CHECK(Tokenizer::load(tokenizer.string()).left_out() == "");
  const auto left_out = [&](const std::string& config) {
    std::ofstream(tokenizer / "tokenizer_config.json") << config;
    return Tokenizer::load(tokenizer.string()).left_out();
  };
  CHECK(left_out(R"({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1e30,
                     "padding_side": "left", "clean_up_tokenization_spaces": true,
                     "image_token": "<image>", "of_tomorrow": null, "another": [], "third": false,
                     "add_eos_token": true, "legacy": true})") == "");
  CHECK(left_out(R"({"do_lower_case": true, "tokenizer_class": "ErnieTokenizer",
                     "add_eod_token": true})") ==
        "tokenizer_config.json: not read: do_lower_case true, add_eod_token true, tokenizer_class "
        "ErnieTokenizer; tokens are those of tokenizer.json.");
  // A special token of the model is named and added.
  std::ofstream(tokenizer / "tokenizer_config.json")
      << R"({"model_specific_special_tokens": {"image_token": "<image>"}})";
  const Tokenizer with_image = Tokenizer::load(tokenizer.string());
  CHECK(with_image.id_of("<image>").has_value());
  CHECK(with_image.left_out() == "");
}

TEST_CASE("tokenizer: a byte order mark is no part of a file, here as elsewhere") {
  testing::TemporaryFolder folder;
  const std::string mark = "\xef\xbb\xbf";
  train_byte_level_bpe({folder.write("plain.txt", sample_text())}, 400, folder / "plain");
  train_byte_level_bpe({folder.write("marked.txt", mark + sample_text())}, 400, folder / "marked");
  CHECK(read(folder / "plain/tokenizer.json") == read(folder / "marked/tokenizer.json"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    folder.write(std::string("marked/") + name,
                 mark + read(folder / ("plain/" + std::string(name))));
  }
  folder.write("marked/chat_template.jinja", mark + "T");
  // The pipeline depends on model_type, so config.json is read.
  const std::string model = R"({"model_type": "qwen2"})";
  folder.write("marked/config.json", mark + model);
  folder.write("plain/config.json", model);
  const Tokenizer plain = Tokenizer::load(folder / "plain");
  const Tokenizer marked = Tokenizer::load(folder / "marked");
  CHECK(marked.chat_template() == "T");
  CHECK(marked.encode(sample_text()) == plain.encode(sample_text()));
  CHECK(marked.pad_token() == plain.pad_token());
}

TEST_CASE("tokenizer: an adapter's model says in config.json which kind it is") {
  testing::TemporaryFolder folder;
  const std::string adapter = trained(folder);
  folder.write("tokenizer/tokenizer_config.json", "{}");
  folder.write("tokenizer/adapter_config.json",
               "\xef\xbb\xbf{\"base_model_name_or_path\": \"" + folder.path + "/base\"}");
  CHECK_FALSE(Tokenizer::load(adapter).pad_token().has_value());
  const std::string config =
      folder.write("base/config.json", "\xef\xbb\xbf{\"model_type\": \"qwen2\"}");
  CHECK(Tokenizer::load(adapter).pad_token() == "<|endoftext|>");
  fs::remove(config);
  REQUIRE(::mkfifo(config.c_str(), 0600) == 0);
  std::string message;
  try {
    Tokenizer::load(adapter);
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message == "Cannot read " + config + ": it is a pipe; wanted is a regular file.");
}

TEST_CASE("tokenizer: errors name the file") {
  testing::TemporaryFolder folder;
  const auto message = [](auto action) -> std::string {
    try {
      action();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  const std::string path = folder.path;
  const auto contains = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  contains(message([&] { Tokenizer::load(path); }), "No tokenizer.json in " + path);
  folder.write("tokenizer.json", "{\n\"model\": nonsense}");
  contains(message([&] { Tokenizer::load(path); }), "tokenizer.json, line 2, column");
  folder.write("tokenizer.json", "{\"model\": {\"type\": \"Unheard\"}}");
  contains(message([&] { Tokenizer::load(path); }), "tokenizer.json is not a tokenizer");
  contains(message([&] { train_byte_level_bpe({path + "/absent"}, 300, path); }), "/absent");
  contains(message([&] { train_byte_level_bpe({}, 100, path); }), "259 at least");
}

}  // namespace longspan
