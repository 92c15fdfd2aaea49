// Readers of data sets: dataset_info.json, row files in every layout, contents of columns, prompts.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/config/config.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/dataset.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/example_file.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/packed_bytes.h"
#include "longspan/data/row_file.h"
#include "longspan/data/turns.h"
#include "longspan/files/checksum.h"
#include "longspan/generation/prompt_file.h"
#include "longspan/registers/stage.h"
#include "longspan/rollouts/completion.h"
#include "longspan/rollouts/group.h"
#include "longspan/rollouts/rollout_examples.h"
#include "longspan/rollouts/rollout_file.h"
#include "longspan/text/shown.h"
#include "longspan/train/rows_key.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

using fuzz::choose;
using fuzz::Folder;

constexpr const char* kStages[] = {"sft", "pt", "dpo", "kto", "rm"};
constexpr const char* kEndings[] = {"json",    "jsonl", "txt",     "csv",
                                    "parquet", "arrow", "json.gz", "jsonl.zst"};

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

/// A data set without an entry.
FUZZ_READER(known_columns) {
  const std::string stage = kStages[choose(input, 5)];
  const std::string ending = kEndings[choose(input, std::size(kEndings))];
  const Folder folder;
  Config config;
  config.method.stage = stage;
  config.data.dataset = folder.write("rows." + ending, input);
  config.data.dataset_dir = folder.path();
  config.data.on_bad_row = "skip";
  read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
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
      {config.data, stage_of(config.method), tokenizer, local_time_now(), tokenizer.vocab_size()},
      read_conversations(config.data, stage_of(config.method), config.optimization.seed, "d"));
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

/// Returns the file of one example, whose record has these bytes.
std::string file_of_record(std::string_view record) {
  const auto checksum = [](std::string_view bytes) {
    Xxh64 hash;
    hash.add(bytes.data(), bytes.size());
    const uint64_t value = hash.value();
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  PackedBytes header, places;
  for (const char letter : std::string_view("LSEXAMP1")) header.add(letter);
  const int64_t begin = 4 * sizeof(int64_t), note = begin + std::ssize(record) + 8,
                index = note + 8;
  header.add(int64_t{2});
  header.add(index);
  for (const int64_t place : {begin, note, index}) places.add(place);
  std::string file = header.bytes() + checksum(header.bytes());
  file += record;
  return file + checksum(record) + checksum("") + places.bytes();
}

/// A file of encoded rows that tokenized_path names.
FUZZ_READER(example_files) {
  const bool is_record = choose(input, 2) == 1;
  const Folder folder;
  const std::string path = folder.write("rows", is_record ? file_of_record(input) : input);
  const ExampleFile file(InputFile(path, "encoded rows"), ExampleRules{.vocab_size = 100});
  file.note();
  for (int64_t i = 0; i < std::min<int64_t>(file.num_examples(), 100); ++i) {
    for (const Sample& sample : file.example(i).documents) {
      fuzz::require(!sample.input_ids.empty() && sample.input_ids.size() == sample.labels.size(),
                    "each token has a label");
      for (const int32_t id : sample.input_ids) fuzz::require(id >= 0 && id < 100, "ids are known");
    }
  }
}

FUZZ_READER(rows_keys) { text_of(rows_key_from(std::string(input))); }

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

/// Returns the rollouts that a file which grows by half its bytes gives.
std::vector<Rollout> followed(const Folder& folder, std::string_view bytes,
                              const RolloutRules& rules) {
  const std::string path = folder.write("grows.jsonl", bytes.substr(0, bytes.size() / 2));
  RolloutFollower follower(path, rules);
  BadRows bad;
  std::vector<Rollout> rollouts = follower.next(1000, bad);
  folder.write("grows.jsonl", bytes);
  RolloutFollower resumed(path, rules, follower.position());
  for (Rollout& rollout : resumed.next(1000, bad)) rollouts.push_back(std::move(rollout));
  return rollouts;
}

/// From a file to groups and samples, and back to lines.
FUZZ_READER(rollouts) {
  const int how = choose(input, 4);
  const Tokenizer& tokenizer = fuzz::small_tokenizer();
  static const std::unique_ptr<TurnEncoder> turns =
      make_named_template("chatml", tokenizer, std::nullopt, {}, local_time_now());
  RolloutRules rules{.vocab_size = tokenizer.vocab_size(), .needs_reward = how != 1};
  if (how != 2) {
    rules.tokenizer = &tokenizer;
    rules.turns = turns.get();
  }
  const Folder folder;
  std::vector<std::string> notes;
  std::vector<Rollout> rollouts;
  if (how == 3) {
    rollouts = followed(folder, input, rules);
  } else {
    rollouts = read_rollouts(folder.write("rollouts.jsonl", input), rules, OnBadRow::kSkip, notes);
  }
  GroupCollector collector({.num_generations = how == 1 ? std::optional<int64_t>(2) : std::nullopt,
                            .max_staleness = how == 2 ? std::optional<int64_t>(1) : std::nullopt});
  for (Rollout& rollout : rollouts) {
    Rollout again = parse_rollout(write_rollout(rollout), "again", 1, {.needs_reward = false});
    again.source = rollout.source;
    fuzz::require(again == rollout, "a written rollout is read unchanged");
    collector.add(std::move(rollout));
  }
  collector.finish();
  const std::vector<RolloutGroup> groups = collector.take(collector.num_complete(), 2, notes);
  const RolloutEncoding encoding{
      .cutoff_len = 64, .columns = columns_of(groups), .masks_truncated = how == 0};
  BadRows bad;
  for (const RolloutGroup& group : groups) {
    const RolloutExample encoded = encode_rollouts(group, encoding, bad);
    for (const Sample& sample : encoded.example.documents) {
      fuzz::require(sample.input_ids.size() == sample.labels.size(), "each token has a label");
      fuzz::require(std::ssize(sample.input_ids) <= 64, "no rollout is longer than cutoff_len");
    }
  }
}

/// An answer of a server of rollouts.
FUZZ_READER(completions) {
  const ServerKind& kind = kServerKinds[choose(input, std::size(kServerKinds))];
  const Tokenizer& tokenizer = fuzz::small_tokenizer();
  const CompletionRules rules{.kind = kind,
                              .model = "",
                              .adapter = "",
                              .max_length = 8,
                              .temperature = 1,
                              .end_tokens = {2},
                              .vocab_size = tokenizer.vocab_size(),
                              .tokenizer = tokenizer,
                              .end_of_text = 2};
  for (const Completion& answer : completions_from(input, rules, {1, 5}, 2, "an answer")) {
    fuzz::require(answer.logprobs.size() == (kind.logprobs.empty() ? 0 : answer.token_ids.size()),
                  "each token has a number, or none has one");
    fuzz::require(!answer.token_ids.empty() && answer.token_ids.size() <= 8, "1 to 8 tokens");
    for (size_t i = 0; i < answer.token_ids.size(); ++i) {
      const bool is_last = i + 1 == answer.token_ids.size();
      fuzz::require(answer.token_ids[i] >= 0 && answer.token_ids[i] < tokenizer.vocab_size(),
                    "ids are known");
      fuzz::require(answer.token_ids[i] != 2 || (is_last && answer.has_end), "one end at most");
      fuzz::require(answer.logprobs.empty() || answer.logprobs[i] <= 0,
                    "log-probabilities are at most 0");
    }
  }
}

}  // namespace
}  // namespace longspan
