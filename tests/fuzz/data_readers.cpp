// Readers of data sets: dataset_info.json, row files in every layout, contents of columns, prompts.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/config/config.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/dataset.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/row_file.h"
#include "longspan/data/turns.h"
#include "longspan/generation/prompt_file.h"
#include "longspan/registers/stage.h"
#include "longspan/text/shown.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

using fuzz::choose;
using fuzz::Folder;

constexpr const char* kStages[] = {"sft", "pt", "dpo", "kto", "rm"};
constexpr const char* kEndings[] = {"json", "jsonl", "txt", "csv"};

FUZZ_READER(dataset_info) {
  const std::string stage = kStages[choose(input, 5)];
  const Folder folder;
  folder.write("rows.json", "[]");
  folder.write("dataset_info.json", input);
  for (const DatasetEntry& entry : read_dataset_info(folder.path(), "d", stage)) {
    fuzz::require(!entry.files.empty(), "an entry that is taken has files");
  }
}

FUZZ_READER(row_files) {
  const std::string ending = kEndings[choose(input, std::size(kEndings))];
  const bool unwraps_data = choose(input, 2) == 1;
  const Folder folder;
  const std::string path = folder.write("rows." + ending, input);
  int64_t num_rows = 0;
  const RowTaker taker{[&](const nlohmann::ordered_json& row, const std::string&) {
                         row.dump();
                         return ++num_rows < 10'000;
                       },
                       [](const std::string&) { return true; },
                       [](const std::string& note) { shown(note); }};
  for_each_row(path, unwraps_data, taker);
}

struct Way {
  const char* stage;
  const char* entry;
};

/// Entries that name every possible column.
constexpr Way kWays[] = {
    {"sft", R"("columns": {"prompt": "p", "query": "q", "response": "r", "system": "s",
                           "history": "h"})"},
    {"sft", R"("formatting": "sharegpt", "columns": {"messages": "m", "system": "s"})"},
    {"sft", R"("formatting": "sharegpt", "columns": {"messages": "m"}, "tags": {"role_tag": "role",
              "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
              "observation_tag": "tool", "function_tag": "call", "system_tag": "system"})"},
    {"pt", R"("columns": {"prompt": "p", "query": "q"})"},
    {"dpo", R"("ranking": true, "columns": {"prompt": "p", "chosen": "c", "rejected": "n",
                                            "history": "h", "system": "s"})"},
    {"rm", R"("ranking": true, "formatting": "sharegpt",
             "columns": {"messages": "m", "chosen": "c", "rejected": "n", "system": "s"})"},
    {"kto", R"("columns": {"prompt": "p", "response": "r", "kto_tag": "k"})"},
    {"kto", R"("formatting": "sharegpt", "columns": {"messages": "m", "kto_tag": "k"})"},
    {"sft", R"("num_samples": 3)"},
    {"sft", R"("formatting": "openai")"},
    {"dpo", R"("ranking": true, "formatting": "openai",
              "columns": {"messages": "m", "chosen": "c", "rejected": "n", "tools": "t"})"},
    {"sft",
     R"("formatting": "openai", "columns": {"messages": "m", "images": "i", "videos": "v"})"}};

/// Returns a configuration that reads the rows by one of kWays.
Config config_of(const Way& way, const Folder& folder, const std::string& ending,
                 std::string_view rows) {
  folder.write("rows." + ending, rows);
  folder.write("dataset_info.json",
               fmt::format(R"({{"d": {{"file_name": "rows.{}", {}}}}})", ending, way.entry));
  Config config;
  config.method.stage = way.stage;
  config.data.dataset = "d";
  config.data.dataset_dir = folder.path();
  config.data.preprocessing_num_workers = 1;
  return config;
}

FUZZ_READER(conversations) {
  const Way& way = kWays[choose(input, std::size(kWays))];
  const std::string ending = kEndings[choose(input, std::size(kEndings))];
  const Folder folder;
  Config config = config_of(way, folder, ending, input);
  config.data.on_bad_row = "skip";
  config.data.val_size = 1;
  const RunRows rows =
      read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
  fuzz::require(!rows.train.empty(), "some row is left to train on");
}

FUZZ_READER(stops_at_bad_rows) {
  const Way& way = kWays[choose(input, std::size(kWays))];
  const Folder folder;
  const Config config = config_of(way, folder, "jsonl", input);
  read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
}

/// From a file to tokens and labels.
FUZZ_READER(examples) {
  const Way& way = kWays[choose(input, std::size(kWays))];
  const int how = choose(input, 6);
  const Folder folder;
  Config config = config_of(way, folder, "json", input);
  config.data.on_bad_row = "skip";
  config.data.cutoff_len = how % 2 == 0 ? 16 : 4096;
  config.data.mask_history = how == 1;
  config.data.packing = how == 2;
  config.data.neat_packing = how == 2;
  config.data.enable_thinking = how != 3;
  constexpr const char* kTemplates[] = {"", "chatml", "qwen", "default", "empty", "qwen3_nothink"};
  config.data.chat_template = kTemplates[how];
  const Tokenizer& tokenizer = fuzz::small_tokenizer();
  const EncodedExamples encoded = encode_examples(
      config.data, stage_of(config.method), tokenizer,
      read_conversations(config.data, stage_of(config.method), config.optimization.seed, "d"),
      local_time_now(), tokenizer.vocab_size());
  for (const Example& example : encoded.examples) {
    for (const Sample& sample : example.documents) {
      fuzz::require(sample.input_ids.size() == sample.labels.size(), "each token has a label");
      fuzz::require(std::ssize(sample.input_ids) <= config.data.cutoff_len, "rows are cut");
    }
  }
  if (!encoded.examples.empty()) {
    describe_example(encoded.examples.front(), config.method.stage, tokenizer);
  }
}

FUZZ_READER(function_calls) {
  const std::string content(input);
  for (const FunctionCall& call : parse_function_calls(content, "rows.json, row 1")) {
    fuzz::require(nlohmann::json::accept(call.arguments), "arguments of a call are JSON");
    python_json_string(call.name);
  }
}

FUZZ_READER(prompt_files) {
  const std::string ending = kEndings[choose(input, std::size(kEndings))];
  const Folder folder;
  for (const PromptRow& row : read_prompt_file(folder.write("prompts." + ending, input), 1000)) {
    const std::string line = answered_row(row, "an answer", "stop");
    fuzz::require(line.find('\n') == std::string::npos, "an answered row is one line");
    fuzz::require(nlohmann::json::accept(line), "an answered row is JSON");
  }
}

}  // namespace
}  // namespace longspan
