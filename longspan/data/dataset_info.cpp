#include "longspan/data/dataset_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/data/conversation_format.h"
#include "longspan/data/dataset_files.h"
#include "longspan/data/fetch_command.h"
#include "longspan/data/info_file.h"
#include "longspan/data/known_columns.h"
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

void take_files(DatasetEntry& entry, DatasetFiles found) {
  entry.files = std::move(found.files);
  if (!found.note.empty()) entry.notes.push_back(std::move(found.note));
}

/// Reads one entry. `fail` throws a message that begins with the entry's place.
class EntryReader {
 public:
  EntryReader(DatasetEntry& entry, const json& values, const Stage& stage,
              const std::string& dataset_dir)
      : entry_(entry), values_(values), stage_(stage), dataset_dir_(dataset_dir) {}

  void read() {
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
    find_files();
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw UserError(fmt::format("{}: dataset {}: {}", entry_.info_file, entry_.name, problem));
  }

  void refuse_unsupported() const {
    static const std::vector<std::string> known = {"file_name", "formatting",  "columns", "tags",
                                                   "split",     "num_samples", "ranking"};
    static const std::vector<std::string> fetched = {"hf_hub_url", "ms_hub_url", "om_hub_url",
                                                     "script_url", "cloud_file_name"};
    static const std::vector<std::string> unsupported = {"subset", "folder"};
    for (const std::string& key : fetched) {
      if (const auto value = values_.find(key); value != values_.end() && !value->is_null()) {
        refuse_to_fetch(key, *value);
      }
    }
    for (const auto& [key, value] : values_.items()) {
      if (std::ranges::find(known, key) != known.end() || value.is_null()) continue;
      if (std::ranges::find(unsupported, key) != unsupported.end()) {
        fail(
            fmt::format("{} is known but not supported: it chooses files of a hub. Name the files "
                        "themselves in file_name",
                        key));
      }
      fail(fmt::format("unknown key {}; {}", shortened(key, 60),
                       suggestion(key, known, "known key")));
    }
    if (values_.value("split", json("train")) != "train") {
      fail("split: only train is supported; files have no other splits");
    }
  }

  [[noreturn]] void refuse_to_fetch(const std::string& key, const json& value) const {
    const std::string command =
        value.is_string() ? fetch_command(key, value.get<std::string>(), dataset_dir_, entry_.name)
                          : "";
    fail(fmt::format(
        "{}: nothing is fetched during a run; {}", key,
        command.empty() ? "fetch the files before, and give their place in file_name" : command));
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

  void find_files() {
    const auto name = values_.find("file_name");
    if (name == values_.end() || !name->is_string()) fail("file_name is missing");
    entry_.file_name = name->get<std::string>();
    try {
      // An absolute name stays.
      take_files(entry_, find_dataset_files(fs::path(dataset_dir_) / entry_.file_name));
    } catch (const UserError& error) {
      fail(error.what());
    }
  }

  DatasetEntry& entry_;
  const json& values_;
  const Stage& stage_;
  const std::string& dataset_dir_;
};

/// Reads a data set that is named by its path.
void read_path(DatasetEntry& entry, const std::string& dataset_dir, const Stage& stage) {
  fs::path path = entry.name;
  if (!has_dataset_files(path)) path = fs::path(dataset_dir) / path;
  if (!has_dataset_files(path)) {
    const bool may_be_on_hub = std::ranges::count(entry.name, '/') == 1;
    const std::string fetch =
        may_be_on_hub ? fetch_command("hf_hub_url", entry.name, dataset_dir, path.stem().string())
                      : "";
    throw UserError(
        fmt::format("dataset {}: there is no such file, neither here nor in {}, and no entry of "
                    "that name in {}{}",
                    entry.name, dataset_dir, entry.info_file,
                    fetch.empty() ? "" : ". If it is on Hugging Face's hub, " + fetch));
  }
  const DatasetFiles found = find_dataset_files(path);
  const std::optional<nlohmann::ordered_json> row = first_row(found.files.front());
  if (!row) throw UserError(fmt::format("dataset {}: there are no rows in it", entry.name));
  const std::optional<KnownColumns> known = known_columns(*row, stage.rows);
  json values = known ? parse_json(known->entry, entry.name) : json::object();
  values["file_name"] = fs::absolute(path).string();
  if (!known) {
    entry.kind = stage.rows;
    entry.file_name = values["file_name"];
    std::vector<std::string> names;
    for (const auto& item : row->items()) names.push_back(item.key());
    DatasetEntry named = entry;
    named.name = path.stem().string();
    throw UserError(fmt::format(
        "dataset {}: its columns ({}) do not say how rows of stage {} are read. Write an entry in "
        "{}, and give its name in dataset, for example\n  {}",
        entry.name, shortened(fmt::format("{}", fmt::join(names, ", ")), 400), stage.name,
        entry.info_file, suggested_entry(named, *row)));
  }
  EntryReader(entry, values, stage, dataset_dir).read();
  entry.is_guessed = true;
  entry.joined = known->joined;
  entry.notes.push_back(
      fmt::format("there is no entry of that name; the columns {} are read as by {}", known->text,
                  known->entry));
}

}  // namespace

std::vector<DatasetEntry> read_dataset_info(const std::string& dataset_dir,
                                            const std::string& names, const std::string& stage) {
  const std::string info_file = (fs::path(dataset_dir) / "dataset_info.json").string();
  std::optional<json> info;  // read once an entry is asked for
  std::vector<DatasetEntry> entries;
  for (const std::string& name : split_names(names)) {
    if (is_v1_list(name)) {
      for (const auto& [entry_name, values] : read_v1_list(name)) {
        DatasetEntry& entry = entries.emplace_back();
        entry.name = entry_name;
        entry.info_file = name;
        EntryReader(entry, values, stage_named(stage), /*dataset_dir=*/"").read();
        take_v1_columns(entry);
      }
      continue;
    }
    if (!info) info = read_info(info_file);
    DatasetEntry& entry = entries.emplace_back();
    entry.name = name;
    entry.info_file = info_file;
    if (info->contains(name)) {
      EntryReader(entry, info->at(name), stage_named(stage), dataset_dir).read();
    } else if (is_path_of_rows(name)) {
      read_path(entry, dataset_dir, stage_named(stage));
    } else {
      refuse_name(name, *info, info_file);
    }
  }
  return entries;
}

}  // namespace longspan
