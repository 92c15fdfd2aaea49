#include "longspan/checkpoint/chat_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"
#include "longspan/models/composite.h"
#include "longspan/text/tokenizer.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

/// A JSON file that is rewritten only where it has changed.
class JsonFile {
 public:
  explicit JsonFile(fs::path path) : path_(std::move(path)) {
    const auto text = read_text_file_if_there(path_.string(), "tokenizer file", kMaxTableBytes);
    exists_ = text.has_value();
    if (exists_) before_ = parse_ordered_json(*text, path_.string());
    if (!before_.is_object()) {
      throw UserError(fmt::format("{} is broken: wanted is a JSON object.", path_.string()));
    }
    values = before_;
  }

  bool exists() const { return exists_; }
  void write() const {
    if (values == before_) return;
    write_file_atomically(path_.string(), values.dump(2) + "\n");
  }

  OrderedJson values;

 private:
  fs::path path_;
  bool exists_ = false;
  OrderedJson before_ = OrderedJson::object();
};

/// Whether the key names the token. A token may be a string, or an object with its content.
bool names(const OrderedJson& values, const char* key, const std::string& token) {
  const auto found = values.find(key);
  if (found == values.end()) return false;
  const OrderedJson& text = found->is_object() ? found->value("content", OrderedJson()) : *found;
  return text == token;
}

void set_token(OrderedJson& values, const char* key, const std::optional<SavedChat::Token>& token) {
  if (token && !names(values, key, token->text)) values[key] = token->text;
}

/// Returns eos_token_id, which may be a number, a list or missing.
std::vector<int64_t> ids_in(const OrderedJson& values) {
  const OrderedJson given = values.value("eos_token_id", OrderedJson());
  std::vector<int64_t> ids;
  for (const OrderedJson& id : given.is_array() ? given : OrderedJson::array({given})) {
    const std::optional<int64_t> whole = as_whole(id);
    if (whole) ids.push_back(*whole);
  }
  return ids;
}

}  // namespace

void write_chat(const std::string& folder, const SavedChat& chat) {
  const fs::path place(folder);
  JsonFile tokenizer(place / "tokenizer_config.json");
  set_token(tokenizer.values, "eos_token", chat.eos);
  set_token(tokenizer.values, "pad_token", chat.pad);
  if (chat.chat_template) {
    tokenizer.values["chat_template"] = *chat.chat_template;
    // transformers would read these files before tokenizer_config.json.
    for (const char* name : {"chat_template.jinja", "chat_template.json"}) fs::remove(place / name);
  }
  tokenizer.write();
  JsonFile special(place / "special_tokens_map.json");
  if (special.exists()) {
    set_token(special.values, "eos_token", chat.eos);
    set_token(special.values, "pad_token", chat.pad);
    special.write();
  }

  JsonFile config(place / "config.json");
  JsonFile generation(place / "generation_config.json");
  OrderedJson& keys = language_keys(config.values);
  std::vector<int64_t> ends, before = ids_in(keys);
  if (generation.exists()) before = ids_in(generation.values);
  const auto end_with = [&](int64_t id) {
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  };
  if (chat.eos) end_with(chat.eos->id);
  for (const int32_t id : chat.stop_ids) end_with(id);
  const bool all_known = std::ranges::all_of(
      ends, [&](int64_t id) { return std::ranges::find(before, id) != before.end(); });
  std::ranges::for_each(before, end_with);
  if (!ends.empty() && !(generation.exists() && all_known)) {
    generation.values["eos_token_id"] =
        ends.size() == 1 ? OrderedJson(ends.front()) : OrderedJson(ends);
  }
  if (chat.pad && generation.values.value("pad_token_id", OrderedJson()).is_null()) {
    generation.values["pad_token_id"] = chat.pad->id;
  }
  // A new generation_config.json replaces the generation keys of config.json.
  if (!generation.exists() && !generation.values.empty() && keys.contains("bos_token_id")) {
    generation.values["bos_token_id"] = keys.at("bos_token_id");
  }
  generation.write();
  if (config.exists() && chat.eos) {
    const std::vector<int64_t> known = ids_in(keys);
    if (std::ranges::find(known, chat.eos->id) == known.end()) {
      keys["eos_token_id"] = chat.eos->id;
      config.write();
    }
  }
}

void write_added_tokens(const std::string& folder, const AddedTokens& added) {
  const fs::path path = fs::path(folder) / "tokenizer.json";
  if (added.empty() || !is_there(path.string())) return;
  write_file_atomically(path.string(), Tokenizer::load(folder, added).file_text());
}

}  // namespace longspan
