#include "longspan/data/dataset_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/data/row_file.h"
#include "longspan/data/v1_datasets.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"
#include "longspan/registers/stage.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::pair<const char*, Formatting> kFormattings[] = {{"alpaca", Formatting::kAlpaca},
                                                               {"sharegpt", Formatting::kShareGpt},
                                                               {"openai", Formatting::kOpenAi}};

/// Reads one entry. `fail` throws a message that begins with the entry's place.
class EntryReader {
 public:
  EntryReader(DatasetEntry& entry, const json& values, const Stage& stage)
      : entry_(entry), values_(values), stage_(stage) {}

  void read(const std::string& dataset_dir) {
    if (!values_.is_object()) fail("wanted is an object with a file_name");
    refuse_unsupported();
    entry_.kind = stage_.rows;
    read_formatting();
    if (values_.contains("columns")) {
      entry_.columns_given = true;
      read_columns();
    }
    if (values_.contains("tags")) read_tags();
    require_columns_of_stage();
    if (const auto number = values_.find("num_samples");
        number != values_.end() && !number->is_null()) {
      entry_.num_samples = as_whole(*number);
      if (!entry_.num_samples || *entry_.num_samples < 1) {
        fail("num_samples: wanted is a whole number, at least 1");
      }
    }
    find_files(dataset_dir);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw UserError(fmt::format("{}: dataset {}: {}", entry_.info_file, entry_.name, problem));
  }

  void refuse_unsupported() const {
    static const std::vector<std::string> known = {"file_name", "formatting",  "columns", "tags",
                                                   "split",     "num_samples", "ranking"};
    static const std::vector<std::string> unsupported = {
        "hf_hub_url",      "ms_hub_url", "om_hub_url", "script_url",
        "cloud_file_name", "subset",     "folder"};
    for (const auto& [key, value] : values_.items()) {
      if (std::ranges::find(known, key) != known.end() || value.is_null()) continue;
      if (std::ranges::find(unsupported, key) != unsupported.end()) {
        fail(fmt::format("{} is known but not supported; fetch the files and give file_name", key));
      }
      fail(fmt::format("unknown key {}; {}", shortened(key, 60),
                       suggestion(key, known, "known key")));
    }
    if (values_.value("split", json("train")) != "train") {
      fail("split: only train is supported; files have no other splits");
    }
  }

  void read_formatting() {
    const json formatting = values_.value("formatting", json("alpaca"));
    for (const auto& [name, meaning] : kFormattings) {
      if (formatting != name) continue;
      entry_.formatting = meaning;
      if (meaning == Formatting::kOpenAi) take_names_of_openai();
      return;
    }
    fail(fmt::format("formatting: {} was given; wanted is alpaca, sharegpt or openai",
                     shortened(formatting.dump(), 60)));
  }

  void take_names_of_openai() {
    entry_.columns.messages = "messages";
    entry_.columns.tools = "tools";
    entry_.tags = {.role = "role",
                   .content = "content",
                   .user = "user",
                   .assistant = "assistant",
                   .observation = "tool",
                   .function = std::nullopt,
                   .system = "system"};
  }

  /// Throws unless ranking and the columns suit the stage.
  void require_columns_of_stage() const {
    const DatasetColumns& columns = entry_.columns;
    const RowParts parts = parts_of(entry_.kind);
    const bool holds_texts = !holds_messages(entry_.formatting);
    require_columns_of_pairs(parts.pair, holds_texts);
    require_desirability_column(parts.desirability);
    if (parts.text) require_columns_of_texts(holds_texts);
    if (holds_texts && parts.answer && !columns.response) {
      fail("columns lists no response: which column holds the answers?");
    }
    if (!holds_texts && !columns.messages) {
      fail("columns lists no messages: which column holds the conversations?");
    }
  }

  void require_columns_of_pairs(bool wants_pairs, bool holds_texts) const {
    const DatasetColumns& columns = entry_.columns;
    const std::vector<std::string_view> of_pairs = names_of_stages_with(RowKind::kPair);
    const json ranking = values_.value("ranking", json(false));
    if (!ranking.is_boolean() && !ranking.is_null()) fail("ranking: wanted is true or false");
    const bool ranks = ranking == true;
    const std::string pair_columns =
        holds_texts ? R"("columns": {"prompt": ..., "chosen": "chosen", "rejected": "rejected"})"
                    : R"("columns": {"messages": ..., "chosen": "chosen", "rejected": "rejected"})";
    if (wants_pairs && !ranks) {
      fail(
          fmt::format("stage {} compares two answers a row: the entry must say \"ranking\": true, "
                      "{}",
                      stage_.name, pair_columns));
    }
    if (ranks && !wants_pairs) {
      fail(fmt::format(
          "ranking: true is for pairs of answers (stages {}), the stage is {}. {}",
          enumerated(of_pairs), stage_.name,
          holds_texts
              ? "To train on the better answers alone, make an entry of the same file without "
                "ranking, with \"columns\": {\"prompt\": ..., \"response\": \"chosen\"}"
              : fmt::format("Name another dataset, or set stage: {}", of_pairs.front())));
    }
    if (wants_pairs && (!columns.chosen || !columns.rejected)) {
      fail(fmt::format("columns lists no {}: which columns hold the two answers? {}",
                       columns.chosen ? "rejected" : "chosen", pair_columns));
    }
    if (!wants_pairs && (columns.chosen || columns.rejected)) {
      fail(
          fmt::format("columns lists {}, but stage {} has one answer a row: remove it (stages {} "
                      "want \"ranking\": true beside it)",
                      columns.chosen ? "chosen" : "rejected", stage_.name, enumerated(of_pairs)));
    }
  }

  void require_desirability_column(bool wants_desirability) const {
    const DatasetColumns& columns = entry_.columns;
    if (wants_desirability && !columns.kto_tag) {
      fail(
          fmt::format("columns lists no kto_tag: stage {} wants to know which column says whether "
                      "an answer is good (true) or bad (false)",
                      stage_.name));
    }
    if (!wants_desirability && columns.kto_tag) {
      fail(fmt::format(
          "columns lists kto_tag, which is for stage {}; the stage is {}, which would "
          "train on good and bad answers alike. Name another dataset, or remove kto_tag",
          enumerated(names_of_stages_with(RowKind::kUnpairedPreference)), stage_.name));
    }
  }

  void require_columns_of_texts(bool holds_texts) const {
    const DatasetColumns& columns = entry_.columns;
    if (!holds_texts) {
      fail(
          fmt::format("stage {} reads one text a row: formatting alpaca (or none), with "
                      "\"columns\": {{\"prompt\": \"<the column with the text>\"}}",
                      stage_.name));
    }
    if (!columns.prompt) {
      fail(
          fmt::format("columns lists no prompt: which column holds the texts that stage {} trains "
                      "on?",
                      stage_.name));
    }
    if (entry_.columns_given && (columns.response || columns.history || columns.system ||
                                 columns.messages || columns.tools || columns.documents)) {
      fail(
          fmt::format("stage {} trains on the text of prompt (and query) alone; list no other "
                      "columns than these",
                      stage_.name));
    }
  }

  using Names = std::map<std::string, std::optional<std::string>*>;

  /// Reads a block of names: sets those that it lists, and resets the others.
  void read_block(const std::string& block, const Names& names,
                  const std::vector<std::string>& unsupported) const {
    const json& given = values_.at(block);
    if (!given.is_object()) fail(fmt::format("{}: wanted is an object", block));
    for (const auto& [key, name] : names) name->reset();
    for (const auto& [key, value] : given.items()) {
      if (value.is_null()) continue;
      if (std::ranges::find(unsupported, key) != unsupported.end()) {
        fail(fmt::format("{}: {} is known but not supported", block, key));
      }
      const auto name = names.find(key);
      if (name == names.end()) {
        std::vector<std::string> known;
        for (const auto& item : names) known.push_back(item.first);
        fail(fmt::format("{}: unknown key {}; {}", block, shortened(key, 60),
                         suggestion(key, known, "known key")));
      }
      if (!value.is_string()) fail(fmt::format("{}: {} must be text", block, key));
      *name->second = value.get<std::string>();
    }
  }

  void read_columns() {
    DatasetColumns& columns = entry_.columns;
    read_block("columns",
               {{"prompt", &columns.prompt},
                {"query", &columns.query},
                {"response", &columns.response},
                {"history", &columns.history},
                {"system", &columns.system},
                {"messages", &columns.messages},
                {"chosen", &columns.chosen},
                {"rejected", &columns.rejected},
                {"kto_tag", &columns.kto_tag},
                {"tools", &columns.tools},
                {"documents", &columns.documents},
                {"images", &columns.images},
                {"videos", &columns.videos}},
               {"audios"});
  }

  void read_tags() {
    MessageTags& tags = entry_.tags;
    read_block("tags",
               {{"role_tag", &tags.role},
                {"content_tag", &tags.content},
                {"user_tag", &tags.user},
                {"assistant_tag", &tags.assistant},
                {"observation_tag", &tags.observation},
                {"function_tag", &tags.function},
                {"system_tag", &tags.system}},
               {});
    if (!tags.role || !tags.content || !tags.user || !tags.assistant) {
      fail(
          "keys that tags does not list have no default: role_tag, content_tag, user_tag and "
          "assistant_tag must be there");
    }
  }

  void find_files(const std::string& dataset_dir) {
    const auto name = values_.find("file_name");
    if (name == values_.end() || !name->is_string()) fail("file_name is missing");
    entry_.file_name = name->get<std::string>();
    const fs::path path = fs::path(dataset_dir) / entry_.file_name;  // an absolute name stays
    std::error_code error;
    if (fs::is_directory(path, error)) {
      for (const auto& file : fs::directory_iterator(path, error)) {
        if (file.path().filename().string().starts_with(".")) continue;
        if (file.is_regular_file(error)) entry_.files.push_back(file.path().string());
      }
      std::ranges::sort(entry_.files);
      if (entry_.files.empty()) fail(fmt::format("there are no files in {}", path.string()));
    } else if (is_there(path)) {
      entry_.files.push_back(path.string());
    } else {
      fail(fmt::format("there is no file {}", path.string()));
    }
    for (const std::string& file : entry_.files) {
      const std::string ending = fs::path(file).extension().string();
      static const std::vector<std::string> supported = {".json", ".jsonl", ".csv", ".txt"};
      if (std::ranges::find(supported, ending) != supported.end()) continue;
      static const std::vector<std::string> unsupported = {".parquet", ".arrow"};
      const bool is_known = std::ranges::find(unsupported, ending) != unsupported.end();
      fail(fmt::format("{}: {} files are {}; json, jsonl, csv and txt are read", file,
                       ending.empty() ? "such" : ending.substr(1),
                       is_known ? "known but not supported" : "not known"));
    }
    for (const std::string& file : entry_.files) require_readable_file(file, "dataset", kAnySize);
  }

  DatasetEntry& entry_;
  const json& values_;
  const Stage& stage_;
};

DatasetEntry read_info_file(const std::string& dataset_dir, const std::string& name,
                            const std::string& stage) {
  const std::string info_file = (fs::path(dataset_dir) / "dataset_info.json").string();
  if (!is_there(info_file)) {
    throw UserError(fmt::format(
        "there is no {}. It says where datasets lie, for example\n  {{\"{}\": {{\"file_name\": "
        "\"my_rows.json\"}}}}\nSet dataset_dir to the folder that holds it.",
        info_file, name));
  }
  refuse_utf16(info_file);
  const json info = read_json_file(info_file, "dataset list");
  if (!info.is_object()) throw UserError(fmt::format("{}: wanted is an object", info_file));
  if (!info.contains(name)) {
    std::vector<std::string> known;
    for (const auto& item : info.items()) known.push_back(item.key());
    throw UserError(
        fmt::format("{}: there is no dataset {}{}", info_file, name,
                    known.empty() ? "; the file is empty" : "; " + suggestion(name, known)));
  }
  DatasetEntry entry;
  entry.name = name;
  entry.info_file = info_file;
  EntryReader(entry, info.at(name), stage_named(stage)).read(dataset_dir);
  return entry;
}

}  // namespace

std::vector<DatasetEntry> read_dataset_info(const std::string& dataset_dir,
                                            const std::string& names, const std::string& stage) {
  std::vector<DatasetEntry> entries;
  for (const std::string& name : split_names(names)) {
    if (!is_v1_list(name)) {
      entries.push_back(read_info_file(dataset_dir, name, stage));
      continue;
    }
    for (const auto& [entry_name, values] : read_v1_list(name)) {
      DatasetEntry& entry = entries.emplace_back();
      entry.name = entry_name;
      entry.info_file = name;
      EntryReader(entry, values, stage_named(stage)).read(/*dataset_dir=*/"");
      take_v1_columns(entry);
    }
  }
  return entries;
}

}  // namespace longspan
