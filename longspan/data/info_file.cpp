#include "longspan/data/info_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/data/row_file.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/text/nearest.h"

namespace longspan {

nlohmann::json read_info(const std::string& info_file) {
  if (!is_there(info_file)) return nlohmann::json::object();
  refuse_utf16(info_file);
  nlohmann::json info = read_json_file(info_file, "dataset list");
  if (!info.is_object()) throw UserError(fmt::format("{}: wanted is an object", info_file));
  return info;
}

void refuse_name(const std::string& name, const nlohmann::json& info,
                 const std::string& info_file) {
  if (!is_there(info_file)) {
    throw UserError(fmt::format(
        "there is no {}. It says where datasets lie, for example\n  {{\"{}\": {{\"file_name\": "
        "\"my_rows.json\"}}}}\nSet dataset_dir to the folder that holds it, or give the path of a "
        "file of rows in dataset.",
        info_file, name));
  }
  std::vector<std::string> known;
  for (const auto& item : info.items()) known.push_back(item.key());
  throw UserError(
      fmt::format("{}: there is no dataset {}{}", info_file, name,
                  known.empty() ? "; the file is empty" : "; " + suggestion(name, known)));
}

}  // namespace longspan
