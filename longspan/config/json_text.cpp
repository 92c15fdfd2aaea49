#include "longspan/config/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"

namespace longspan {

namespace {

// What the parser says after "parse error at line 1, column 9: " and before its list of tokens.
std::string reason(std::string_view what) {
  const size_t place = what.find("column ");
  const size_t colon = place == std::string_view::npos ? place : what.find(": ", place);
  if (colon != std::string_view::npos) what.remove_prefix(colon + 2);
  return std::string(what.substr(0, 160));
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& file_name, int64_t first_line) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const int64_t line = first_line + std::count(text.begin(), text.begin() + at, '\n');
    throw UserError(
        fmt::format("{}, line {}: broken JSON: {}", file_name, line, reason(error.what())));
  }
}

std::string read_text_file(const std::string& path, std::string_view what) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UserError(fmt::format("{} is a folder; a {} is wanted", path, what));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UserError(fmt::format("cannot read the {} {}: {}", what, path, std::strerror(errno)));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

}  // namespace longspan
