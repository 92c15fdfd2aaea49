#include "longspan/text/end_tokens.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"

namespace longspan {

namespace {

using nlohmann::json;

void add_ids(const json& object, const std::string& file, std::set<int32_t>& ids) {
  const json value = object.value("eos_token_id", json());
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number()) continue;
    ids.insert(static_cast<int32_t>(whole_number(id, file + ": eos_token_id", 0, kMostIndexed)));
  }
}

}  // namespace

EndTokens end_tokens_in(const std::string& folder) {
  EndTokens ends;
  bool is_first = true;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = model_file(folder, name);
    if (!is_there(path)) continue;
    const json object = read_json_file(path, "configuration");
    if (!object.is_object()) throw UserError(fmt::format("{} is not a JSON object.", path));
    std::set<int32_t> ids;
    add_ids(object, name, ids);
    const auto text = object.find("text_config");
    if (text != object.end() && text->is_object()) add_ids(*text, name, ids);
    ends.all.insert(ids.begin(), ids.end());
    if (is_first) ends.of_generate = ids;
    is_first = false;
  }
  return ends;
}

}  // namespace longspan
