// `longspan tokenizer`: trains a byte-level BPE tokenizer.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

namespace {

int run_tokenizer(const Arguments& arguments) {
  const Options options("tokenizer", arguments, {"vocab-size", "output"}, {"files"});
  const std::vector<std::string> files = options.required_list("files");
  const std::string output = options.required("output");
  require_free_folder("tokenizer", output);
  options.required("vocab-size");
  // The 256 bytes and three special tokens are always included.
  constexpr int64_t kMostTokens = 10'000'000;  // memory for all of them is allocated at once
  train_byte_level_bpe(files, *options.whole_number("vocab-size", 259, kMostTokens), output);
  print_out("Trained a tokenizer with {} on {} in {}\n",
            counted(Tokenizer::load(output).vocab_size(), "token"),
            counted(std::ssize(files), "file"), output);
  return 0;
}

constexpr const char* kTokenizerHelp =
    R"(Trains a byte-level BPE tokenizer (the kind of Qwen and GPT-2) on text files and writes a Hugging Face
tokenizer folder with the chatml template.

  longspan tokenizer --files texts/*.txt --vocab-size 4096 --output models/my-tokenizer

  --files FILE ...    UTF-8 text
  --vocab-size N      number of tokens, at least 259: all bytes and three special tokens
  --output FOLDER     where tokenizer.json and tokenizer_config.json go; must not exist, or be empty
)";

}  // namespace

Command tokenizer_command() {
  return {"tokenizer", "train a byte-level BPE tokenizer on text files", kTokenizerHelp,
          run_tokenizer,
          /*computes=*/false};
}

}  // namespace longspan
