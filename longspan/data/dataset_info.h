// dataset_info.json: where a dataset lies and what its columns are called. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/data/row_kind.h"

namespace longspan {

/// Names of columns; nullopt: the rows have no such column.
struct DatasetColumns {
  std::optional<std::string> prompt = "instruction", query = "input", response = "output";
  std::optional<std::string> history, system, tools;
  std::optional<std::string> messages = "conversations";
  std::optional<std::string> chosen, rejected, kto_tag;
};

/// Names inside a message; the defaults are those of sharegpt.
struct MessageTags {
  std::optional<std::string> role = "from", content = "value";
  std::optional<std::string> user = "human", assistant = "gpt";
  std::optional<std::string> observation = "observation", function = "function_call";
  std::optional<std::string> system = "system";
};

/// How a row holds its conversation.
enum class Formatting {
  kAlpaca,    // parts in columns of their own, as text
  kShareGpt,  // messages with tags, in one column
  kOpenAi,    // the same by OpenAI's names, and a column of tools
};

/// Are the parts of such a row messages? Else they are texts.
constexpr bool holds_messages(Formatting formatting) {
  switch (formatting) {
    case Formatting::kAlpaca:
      return false;
    case Formatting::kShareGpt:
    case Formatting::kOpenAi:
      return true;
  }
  throw std::logic_error("rows of no formatting");
}

/// One entry of dataset_info.json.
struct DatasetEntry {
  std::string name;
  std::string info_file;           // the dataset_info.json that it was read from
  std::string file_name;           // as written there
  std::vector<std::string> files;  // json, jsonl, txt; a folder's files in the order of their names
  RowKind kind = RowKind::kAnswer;
  Formatting formatting = Formatting::kAlpaca;
  DatasetColumns columns;
  MessageTags tags;
  bool columns_given = false;
  std::optional<int64_t> num_samples;
};

/// The entries that a comma list names, for a stage. A `columns` or `tags` block that is given
/// resets what it does not list. Throws UserError: no dataset_info.json, broken JSON (line), no
/// such entry (names the nearest), an entry for another stage, what is known but unsupported (hub
/// datasets, images, csv, ...), no file.
std::vector<DatasetEntry> read_dataset_info(const std::string& dataset_dir,
                                            const std::string& names, const std::string& stage);

}  // namespace longspan
