#include "longspan/data/row_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "longspan/config/json_text.h"
#include "longspan/config/user_error.h"

namespace longspan {

namespace {

using nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf", kWhiteSpace = " \t\r\n";

/// Json::parse with the messages of parse_json.
template <typename Json>
Json parsed(std::string_view text, const std::string& path, int64_t line = 1) {
  if constexpr (std::is_same_v<Json, json>) {
    return parse_json(text, path, line);
  } else {
    parse_json(text, path, line);
    return Json::parse(text);
  }
}

/// A row, or why it is none.
template <typename Json>
bool hand_over(const Json& row, const std::string& place, const RowTakerOf<Json>& taker) {
  if (row.is_object()) return taker.take(row, place);
  return taker.refuse(
      fmt::format("{}: wanted is an object with columns, found {}", place, row.type_name()));
}

template <typename Json>
bool parse_and_hand_over(std::string_view text, const std::string& path, int64_t line,
                         const RowTakerOf<Json>& taker) {
  Json row;
  try {
    row = parsed<Json>(text, path, line);
  } catch (const UserError& error) {
    return taker.refuse(error.what());
  }
  return hand_over(row, fmt::format("{}, line {}", path, line), taker);
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kWhiteSpace) == std::string_view::npos;
}

/// The next line that is not blank, without a byte order mark.
bool next_line(std::ifstream& file, std::string& line, int64_t& number) {
  while (std::getline(file, line)) {
    if (++number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    if (!is_blank(line)) return true;
  }
  return false;
}

/// Lines end with a line feed, a carriage return or both, as in Python.
template <typename Json>
bool for_each_line_of_text(std::ifstream& file, const std::string& path,
                           const RowTakerOf<Json>& taker) {
  int64_t number = 0;
  const auto take_line = [&](const std::string& line) {
    const std::string place = fmt::format("{}, line {}", path, ++number);
    const Json row = Json::object({{"text", line}});
    try {
      row.dump();  // throws when the text is not UTF-8
    } catch (const json::type_error&) {
      return taker.refuse(fmt::format("{}: this is not UTF-8 text", place));
    }
    return taker.take(row, place);
  };
  std::string piece;
  while (std::getline(file, piece)) {
    if (number == 0 && piece.starts_with(kByteOrderMark)) piece.erase(0, kByteOrderMark.size());
    if (!file.eof() && piece.ends_with('\r')) piece.pop_back();
    size_t begin = 0;
    for (size_t end; (end = piece.find('\r', begin)) != std::string::npos; begin = end + 1) {
      if (!take_line(piece.substr(begin, end - begin))) return false;
    }
    // Nothing follows a carriage return at the very end of a file.
    if (begin == piece.size() && begin > 0 && file.eof()) break;
    if (!take_line(piece.substr(begin))) return false;
  }
  return true;
}

template <typename Json>
bool for_each_element(const Json& rows, const std::string& path, const RowTakerOf<Json>& taker) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!hand_over(rows[i], fmt::format("{}, row {}", path, i + 1), taker)) return false;
  }
  return true;
}

/// Behind the brace that closes the object at `begin`; npos where none does.
size_t end_of_object(std::string_view text, size_t begin) {
  int64_t depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

/// {"data": [rows]}: the rows; nullptr where the object is something else.
template <typename Json>
const Json* list_in(const Json& object) {
  if (!object.is_object()) return nullptr;
  const auto data = object.find("data");
  const bool is_list = data != object.end() && data->is_array() && !data->empty() &&
                       std::ranges::all_of(*data, [](const Json& row) { return row.is_object(); });
  return is_list ? &*data : nullptr;
}

/// Objects one after the other, each over as many lines as it likes.
template <typename Json>
bool for_each_object(std::string_view text, const std::string& path, bool unwraps_data,
                     const RowTakerOf<Json>& taker) {
  int64_t line = 1;
  for (size_t at = 0, counted = 0;;) {
    at = text.find_first_not_of(kWhiteSpace, at);
    if (at == std::string_view::npos) return true;
    line += std::count(text.begin() + counted, text.begin() + at, '\n');
    counted = at;
    const size_t end = std::min(end_of_object(text, at), text.size());
    const std::string_view object = text.substr(at, end - at);
    const bool is_all = is_blank(text.substr(0, at)) && is_blank(text.substr(end));
    if (is_all && unwraps_data && json::accept(object)) {
      const Json whole = Json::parse(object);
      if (const Json* rows = list_in(whole)) return for_each_element(*rows, path, taker);
    }
    if (!parse_and_hand_over(object, path, line, taker)) return false;
    at = end;
  }
}

/// Is there an object a line? Then one of the first two lines is an object; a row may be broken.
bool has_an_object_a_line(std::ifstream& file) {
  std::string first, second;
  int64_t number = 0;
  if (!next_line(file, first, number) || !next_line(file, second, number)) return false;
  return json::accept(first) || json::accept(second);
}

}  // namespace

void refuse_utf16(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char begin[4] = {'x', 'x', 'x', 'x'};
  file.read(begin, sizeof(begin));
  const std::string_view start(begin, sizeof(begin));
  const bool little = start.starts_with("\xff\xfe"), big = start.starts_with("\xfe\xff");
  if (!little && !big && start.find('\0') == std::string_view::npos) return;
  const char* name = little || big ? "UTF-16" : begin[0] == '\0' ? "UTF-16BE" : "UTF-16LE";
  throw UserError(fmt::format(
      "{} is {} text (as PowerShell and some editors write it); wanted is UTF-8. Convert it: iconv "
      "-f {} -t UTF-8 {} > new_file",
      path, name, name, path));
}

namespace {

template <typename Json>
bool for_each_row_as(const std::string& path, bool unwraps_data, const RowTakerOf<Json>& taker) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UserError(fmt::format("cannot read the dataset {}: {}", path, std::strerror(errno)));
  }
  refuse_utf16(path);
  if (path.ends_with(".txt")) return for_each_line_of_text(file, path, taker);
  std::string line;
  int64_t number = 0;
  const bool has_rows = next_line(file, line, number);
  const char first = has_rows ? line[line.find_first_not_of(kWhiteSpace)] : '\0';
  const auto rewind = [&] {
    file.clear();
    file.seekg(0);
    number = 0;
  };
  if (first == '[') {
    file.close();
    const Json rows = parsed<Json>(read_text_file(path, "dataset"), path);
    return for_each_element(rows, path, taker);
  }
  rewind();
  if (first == '{' && !has_an_object_a_line(file)) {
    file.close();
    return for_each_object(read_text_file(path, "dataset"), path, unwraps_data, taker);
  }
  rewind();
  while (next_line(file, line, number)) {
    if (!parse_and_hand_over(line, path, number, taker)) return false;
  }
  return true;
}

}  // namespace

bool for_each_row(const std::string& path, bool unwraps_data, const RowTaker& taker) {
  return for_each_row_as(path, unwraps_data, taker);
}

bool for_each_ordered_row(const std::string& path, bool unwraps_data,
                          const OrderedRowTaker& taker) {
  return for_each_row_as(path, unwraps_data, taker);
}

}  // namespace longspan
