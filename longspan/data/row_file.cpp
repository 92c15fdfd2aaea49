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

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

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

/// Lines end with a line feed, a carriage return or both, as in Python.
bool for_each_line(std::ifstream& file, const std::string& path,
                   const std::function<bool(const json&, const std::string&)>& take) {
  int64_t number = 0;
  const auto hand_over = [&](const std::string& line) {
    const std::string place = fmt::format("{}, line {}", path, ++number);
    const json row = json::object({{"text", line}});
    try {
      row.dump();  // throws when the text is not UTF-8
    } catch (const json::type_error&) {
      throw UserError(fmt::format("{}: this is not UTF-8 text", place));
    }
    return take(row, place);
  };
  std::string piece;
  while (std::getline(file, piece)) {
    if (number == 0 && piece.starts_with(kByteOrderMark)) piece.erase(0, kByteOrderMark.size());
    if (!file.eof() && piece.ends_with('\r')) piece.pop_back();
    size_t begin = 0;
    for (size_t end; (end = piece.find('\r', begin)) != std::string::npos; begin = end + 1) {
      if (!hand_over(piece.substr(begin, end - begin))) return false;
    }
    // Nothing follows a carriage return at the very end of a file.
    if (begin == piece.size() && begin > 0 && file.eof()) break;
    if (!hand_over(piece.substr(begin))) return false;
  }
  return true;
}

}  // namespace

bool for_each_row(const std::string& path,
                  const std::function<bool(const json&, const std::string&)>& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UserError(fmt::format("cannot read the dataset {}: {}", path, std::strerror(errno)));
  }
  if (path.ends_with(".txt")) return for_each_line(file, path, take);
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
    if (number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json row = parse_json(line, path, number);
    const std::string place = fmt::format("{}, line {}", path, number);
    require_object(row, place);
    if (!take(row, place)) return false;
  }
  return true;
}

}  // namespace longspan
