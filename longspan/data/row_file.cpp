#include "longspan/data/row_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "longspan/config/json_text.h"
#include "longspan/config/user_error.h"

namespace longspan {

namespace {

using nlohmann::json;

void require_object(const json& row, const std::string& place) {
  if (!row.is_object()) {
    throw UserError(
        fmt::format("{}: wanted is an object with columns, found {}", place, row.type_name()));
  }
}

/// The first character that is not white space or a byte order mark; 0 in an empty file.
char first_character(std::ifstream& file) {
  char c = 0;
  while (file.get(c)) {
    if (std::strchr(" \t\r\n\xef\xbb\xbf", c) == nullptr) return c;
  }
  return 0;
}

}  // namespace

bool for_each_row(const std::string& path,
                  const std::function<bool(const json&, const std::string&)>& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UserError(fmt::format("cannot read the dataset {}: {}", path, std::strerror(errno)));
  }
  const char first = first_character(file);
  if (first == '[') {
    file.close();
    const json rows = parse_json(read_text_file(path, "dataset"), path);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string place = fmt::format("{}, row {}", path, i + 1);
      require_object(rows[i], place);
      if (!take(rows[i], place)) return false;
    }
    return true;
  }
  file.clear();
  file.seekg(0);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json row = parse_json(line, path, number);
    const std::string place = fmt::format("{}, line {}", path, number);
    require_object(row, place);
    if (!take(row, place)) return false;
  }
  return true;
}

}  // namespace longspan
