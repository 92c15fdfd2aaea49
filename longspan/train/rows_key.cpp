#include "longspan/train/rows_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/file_kinds.h"
#include "longspan/data/template_format.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/text/shown.h"
#include "longspan/text/tokenizer.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Changes whenever the code makes other rows or another file of the same inputs.
constexpr const char* kFormat = "1";
constexpr size_t kShownBytes = 80;  // of a value

RowsFile file_of(const std::string& what, const fs::path& path) {
  return {.what = what,
          .path = fs::absolute(path).string(),
          .stamp = stamp_of_file(path.string()),
          .digest = std::nullopt};
}

/// Returns all that an entry says about its rows.
std::string text_of(const DatasetEntry& entry) {
  const DatasetColumns& columns = entry.columns;
  const MessageTags& tags = entry.tags;
  Json texts = Json::array(), kinds = Json::array();
  for (const std::string& file : entry.files) {
    const std::optional<FileKind> kind = kind_of_file(file);
    kinds.push_back(kind ? Json(static_cast<int>(*kind)) : Json());
  }
  for (const std::optional<std::string>& name :
       {columns.prompt,  columns.query,     columns.response, columns.history, columns.system,
        columns.tools,   columns.documents, columns.messages, columns.chosen,  columns.rejected,
        columns.kto_tag, columns.images,    columns.videos,   tags.role,       tags.content,
        tags.user,       tags.assistant,    tags.observation, tags.function,   tags.system}) {
    texts.push_back(name ? Json(*name) : Json());
  }
  return Json{static_cast<int>(entry.kind),
              static_cast<int>(entry.formatting),
              static_cast<int>(entry.joined),
              entry.between_prompt_and_query,
              entry.num_samples ? Json(*entry.num_samples) : Json(),
              entry.is_guessed,
              entry.columns_given,
              entry.notes,
              kinds,
              texts}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

void add_data(const RowSettings& config, const std::string& names, const std::string& what,
              bool& draws, RowsKey& key) {
  if (names.empty()) return;
  int number = 0;
  for (const DatasetEntry& entry :
       read_dataset_info(config.data.dataset_dir, names, config.method.stage)) {
    key.values.emplace_back(fmt::format("columns of {} ({}, entry {})", entry.name, what, ++number),
                            text_of(entry));
    draws = draws || entry.num_samples.has_value();
    for (const std::string& file : entry.files) {
      key.files.push_back(file_of(what, file));
      key.num_data_bytes += key.files.back().stamp.size;
    }
  }
}

/// Whether the chat template may write the time. Says yes where a text names the function.
bool may_write_time(const DataSettings& config, const fs::path& model) {
  if (!config.chat_template.empty()) return template_format(config.chat_template).tools.has_date();
  return std::ranges::any_of(Tokenizer::kFiles, [&](const std::string& name) {
    if (name == "tokenizer.json") return false;
    const auto text = read_text_file_if_there((model / name).string(), "tokenizer", kMaxTableBytes);
    return text && text->find("strftime_now") != std::string::npos;
  });
}

uint64_t digest_of(const RowsFile& file) {
  std::vector<uint64_t> blocks;
  for (int64_t i = 0; i < num_digest_blocks(file.stamp.size); ++i) {
    blocks.push_back(digest_of_block(file.path, i));
  }
  if (stamp_of_file(file.path) != file.stamp) {
    throw UserError(
        fmt::format("{} is being written while the run reads it. Start again.", file.path));
  }
  return digest_from_blocks(blocks);
}

std::string text_of(const RowsFile& file) {
  return fmt::format("{} bytes, XXH64 {:016x}", file.stamp.size, file.digest.value_or(0));
}

}  // namespace

RowsKey rows_key(const RowSettings& config, const ModelConfig& model,
                 const std::vector<std::pair<std::string, std::string>>& keys) {
  RowsKey key;
  key.values = {{"the format", kFormat}, {"Longspan", LONGSPAN_VERSION}};
  key.values.insert(key.values.end(), keys.begin(), keys.end());
  // Rows have token ids below vocab_size. Notes on rows depend on the other values.
  key.values.emplace_back("vocab_size", fmt::format("{}", model.spec.vocab_size));
  key.values.emplace_back("max_position_embeddings",
                          fmt::format("{}", model.max_position_embeddings));
  key.values.emplace_back("model_type", model.model_type);
  bool draws = config.data.val_size > 0 || !config.data.interleave_probs.empty();
  add_data(config, config.data.dataset, "training data", draws, key);
  add_data(config, config.data.eval_dataset, "evaluation data", draws, key);
  key.values.emplace_back("seed", draws ? fmt::format("{}", config.seed) : "of no effect");
  const fs::path folder = config.model.model_name_or_path;
  std::error_code error;
  for (const std::string name : Tokenizer::kFiles) {
    if (fs::exists(folder / name, error)) key.files.push_back(file_of(name, folder / name));
  }
  // Both name the tokens that end an answer.
  for (const std::string name : {"config.json", "generation_config.json"}) {
    if (!fs::exists(folder / name, error)) continue;
    const auto text = read_text_file((folder / name).string(), name);
    const Json json = parse_json(text, name);
    const auto eos_of = [](const Json& values) {
      return values.is_object() ? values.value("eos_token_id", Json()) : Json();
    };
    const Json of_text = json.is_object() ? json.value("text_config", Json()) : Json();
    key.values.emplace_back("eos_token_id of " + name,
                            Json::array({eos_of(json), eos_of(of_text)}).dump());
  }
  key.writes_time = may_write_time(config.data, folder);
  return key;
}

void complete(RowsKey& key) {
  for (RowsFile& file : key.files) {
    if (!file.digest) file.digest = digest_of(file);
  }
}

std::string difference(const RowsKey& then, RowsKey& now) {
  for (const auto& [name, value] : now.values) {
    const auto old =
        std::ranges::find(then.values, name, &std::pair<std::string, std::string>::first);
    const std::string before = old == then.values.end() ? "not set" : old->second;
    if (before == value) continue;
    return fmt::format("{} {} instead of {}", name, shown(shortened(before, kShownBytes)),
                       shown(shortened(value, kShownBytes)));
  }
  if (then.values != now.values) return "keys that this run does not have";
  if (then.files.size() != now.files.size()) {
    return fmt::format("{} files instead of {}", then.files.size(), now.files.size());
  }
  for (size_t i = 0; i < now.files.size(); ++i) {
    const RowsFile& old = then.files[i];
    RowsFile& file = now.files[i];
    if (!file.digest) {
      const bool is_known = old.path == file.path && old.stamp == file.stamp;
      file.digest = is_known ? old.digest : digest_of(file);
    }
    if (old.what != file.what || old.stamp.size != file.stamp.size || old.digest != file.digest) {
      return fmt::format("other {} ({} instead of {}, {})", file.what, text_of(old), text_of(file),
                         file.path);
    }
  }
  return "";
}

std::string text_of(const RowsKey& key) {
  Json files = Json::array();
  for (const RowsFile& file : key.files) {
    files.push_back({{"what", file.what},
                     {"path", file.path},
                     {"size", file.stamp.size},
                     {"mtime_ns", file.stamp.mtime_ns},
                     {"ctime_ns", file.stamp.ctime_ns},
                     {"inode", file.stamp.inode},
                     {"xxh64", file.digest.value_or(0)}});
  }
  return Json{{"values", key.values}, {"files", files}}.dump(-1, ' ', true,
                                                             Json::error_handler_t::replace);
}

RowsKey rows_key_from(const std::string& text) {
  const Json json = parse_json(text, "the key of encoded rows");
  try {
    RowsKey key;
    key.values = json.at("values").get<std::vector<std::pair<std::string, std::string>>>();
    for (const Json& file : json.at("files")) {
      key.files.push_back({.what = file.at("what"),
                           .path = file.at("path"),
                           .stamp = {.size = whole_number(file.at("size"), "size"),
                                     .mtime_ns = whole_number(file.at("mtime_ns"), "mtime_ns"),
                                     .ctime_ns = whole_number(file.at("ctime_ns"), "ctime_ns"),
                                     .inode = unsigned_number(file.at("inode"), "inode")},
                           .digest = unsigned_number(file.at("xxh64"), "xxh64")});
    }
    return key;
  } catch (const Json::exception& error) {
    throw UserError(fmt::format("the key of encoded rows: {}", error.what()));
  }
}

}  // namespace longspan
