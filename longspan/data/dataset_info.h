// dataset_info.json: files and column names of datasets. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/registers/row_kind.h"

namespace longspan {

/// Names of columns; nullopt: rows have no such column.
struct DatasetColumns {
  std::optional<std::string> prompt = "instruction", query = "input", response = "output";
  std::optional<std::string> history, system, tools;
  std::optional<std::string> documents;  // for the model's own chat template
  std::optional<std::string> messages = "conversations";
  std::optional<std::string> chosen, rejected, kto_tag;
  std::optional<std::string> images, videos;  // files: one for each tag in the messages
};

/// Names inside a message. The defaults are the names of sharegpt.
struct MessageTags {
  std::optional<std::string> role = "from", content = "value";
  std::optional<std::string> user = "human", assistant = "gpt";
  std::optional<std::string> observation = "observation", function = "function_call";
  std::optional<std::string> system = "system";
};

/// The form in which a row stores its conversation.
enum class Formatting {
  kAlpaca,    // parts in separate columns, as text
  kShareGpt,  // messages with tags, in one column
  kOpenAi,    // like kShareGpt with OpenAI's names, and a column of tools
};

/// True if rows of this formatting have messages; false if rows have texts.
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

/// The way in which columns with lists of messages become columns of other names (known_columns.h).
enum class Joined {
  kNothing,
  kPromptAndCompletion,  // prompt, completion: one list, of which completion alone is trained
  kAnswersInLists,       // chosen, rejected: lists of one message
  kCommonMessages,       // chosen, rejected: lists that begin with the messages of the question
};

/// One entry of dataset_info.json, or what the columns say of a data set without an entry.
struct DatasetEntry {
  std::string name;
  std::string info_file;           // path of the dataset_info.json
  std::string file_name;           // text in dataset_info.json
  std::vector<std::string> files;  // of one kind, sorted by name
  RowKind kind = RowKind::kAnswer;
  Formatting formatting = Formatting::kAlpaca;
  DatasetColumns columns;
  MessageTags tags;
  bool columns_given = false;
  bool is_guessed = false;  // there is no entry: some columns may be missing
  Joined joined = Joined::kNothing;
  std::vector<std::string> notes;  // sentences for the user: the guess, files that are not read
  std::string between_prompt_and_query = "\n";
  std::optional<int64_t> num_samples;
  std::string media_dir;  // folder of images and videos; set by the reader of rows
};

/// Returns the entries that a comma list names, for a stage. If an entry has a `columns` or `tags`
/// block, names that the block omits have no default. A name that ends with .yaml or .yml is the
/// path of a list of data sets of LLaMA-Factory's v1, all of whose entries are taken. Another name
/// without an entry may be the path of a file, a folder or a pattern; then the columns of its first
/// row say how rows are read (known_columns.h). Throws UserError: no dataset_info.json, broken JSON
/// (with line), unknown entry (with the nearest name), an entry for another stage, unsupported
/// kinds (hub datasets, audios, ...), no file, columns that do not say enough.
std::vector<DatasetEntry> read_dataset_info(const std::string& dataset_dir,
                                            const std::string& names, const std::string& stage);

}  // namespace longspan
