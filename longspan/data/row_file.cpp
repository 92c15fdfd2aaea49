#include "longspan/data/row_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/column_rows.h"
#include "longspan/data/csv_rows.h"
#include "longspan/data/file_kinds.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/text/bytes.h"
#include "longspan/text/compressed_file.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf", kWhiteSpace = " \t\r\n";
/// Bytes of a list in which its first object is looked for.
constexpr size_t kFirstPart = size_t{1} << 20;

/// Passes on a row, or the reason why the value is no row.
bool hand_over(const ordered_json& row, const std::string& place, const RowTaker& taker) {
  if (row.is_object()) return taker.take(row, place);
  return taker.refuse(
      fmt::format("{}: wanted is an object with columns, found {}", place, row.type_name()));
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kWhiteSpace) == std::string_view::npos;
}

/// Returns the first character that is not blank; 0 where there is none.
char first_letter(InputFile& file) {
  std::string part(4096, '\0');
  bool at_begin = true;
  while (const size_t size = file.read(part.data(), part.size())) {
    std::string_view text(part.data(), size);
    if (at_begin && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    at_begin = false;
    if (const size_t at = text.find_first_not_of(kWhiteSpace); at != std::string_view::npos) {
      return text[at];
    }
  }
  return '\0';
}

/// Finds the next line that is not blank.
bool next_line(LineReader& lines, std::string& line) {
  while (lines.next(line)) {
    if (!is_blank(line)) return true;
  }
  return false;
}

/// Lines end with a line feed, a carriage return or both, as in Python.
bool for_each_line_of_text(LineReader& lines, const std::string& path, const RowTaker& taker) {
  int64_t number = 0;
  const auto take_line = [&](const std::string& line) {
    const std::string place = fmt::format("{}, line {}", path, ++number);
    const ordered_json row = ordered_json::object({{"text", line}});
    try {
      row.dump();  // throws where the text is not UTF-8
    } catch (const ordered_json::type_error&) {
      return taker.refuse(fmt::format("{}: this is not UTF-8 text", place));
    }
    return taker.take(row, place);
  };
  std::string piece;
  while (lines.next(piece)) {
    if (!lines.ended_with_file() && piece.ends_with('\r')) piece.pop_back();
    size_t begin = 0;
    for (size_t end; (end = piece.find('\r', begin)) != std::string::npos; begin = end + 1) {
      if (!take_line(piece.substr(begin, end - begin))) return false;
    }
    // No line follows a carriage return at the very end of a file.
    if (begin == piece.size() && begin > 0 && lines.ended_with_file()) break;
    if (!take_line(piece.substr(begin))) return false;
  }
  return true;
}

bool for_each_element(const ordered_json& rows, const std::string& path, const RowTaker& taker) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!hand_over(rows[i], fmt::format("{}, row {}", path, i + 1), taker)) return false;
  }
  return true;
}

/// Returns the place after the brace that closes the object at `begin`; npos where there is none.
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

/// Returns the rows of {"data": [rows]}; nullptr for any other object.
const ordered_json* list_in(const ordered_json& object) {
  if (!object.is_object()) return nullptr;
  const auto data = object.find("data");
  const bool is_list =
      data != object.end() && data->is_array() && !data->empty() &&
      std::ranges::all_of(*data, [](const ordered_json& row) { return row.is_object(); });
  return is_list ? &*data : nullptr;
}

/// Reads consecutive objects, each over any number of lines.
bool for_each_object(std::string_view text, const std::string& path, bool unwraps_data,
                     const RowTaker& taker) {
  int64_t line = 1;
  bool is_first = true;
  for (size_t at = 0, counted = 0;;) {
    at = text.find_first_not_of(kWhiteSpace, at);
    if (at == std::string_view::npos) return true;
    line += std::count(text.begin() + counted, text.begin() + at, '\n');
    counted = at;
    const size_t end = std::min(end_of_object(text, at), text.size());
    const std::string_view object = text.substr(at, end - at);
    const bool is_all = is_first && is_blank(text.substr(end));
    is_first = false;
    if (is_all && unwraps_data) {
      const std::optional<ordered_json> whole = try_parse_ordered_json(object);
      const ordered_json* const rows = whole ? list_in(*whole) : nullptr;
      if (rows != nullptr) return for_each_element(*rows, path, taker);
    }
    if (!take_line(object, path, line, taker)) return false;
    at = end;
  }
}

/// Whether the file has one object a line. Then one of the first two lines is an object, since one
/// row may be broken.
bool has_an_object_a_line(LineReader& lines) {
  std::string first, second;
  if (!next_line(lines, first) || !next_line(lines, second)) return false;
  return try_parse_json(first) || try_parse_json(second);
}

}  // namespace

bool take_line(std::string_view text, const std::string& path, int64_t line,
               const RowTaker& taker) {
  ordered_json row;
  try {
    row = parse_ordered_json(text, path, line);
  } catch (const UserError& error) {
    return taker.refuse(error.what());
  }
  return hand_over(row, fmt::format("{}, line {}", path, line), taker);
}

namespace {

void refuse_utf16_start(const std::string& path, const std::string& start) {
  const bool little = start.starts_with("\xff\xfe"), big = start.starts_with("\xfe\xff");
  if (!little && !big && start.find('\0') == std::string_view::npos) return;
  const char* name = little || big ? "UTF-16" : start[0] == '\0' ? "UTF-16BE" : "UTF-16LE";
  throw UserError(fmt::format(
      "{} is {} text (as PowerShell and some editors write it); wanted is UTF-8. Convert it: iconv "
      "-f {} -t UTF-8 {} > new_file",
      path, name, name, path));
}

/// Reads up to `most` bytes.
std::string first_part(InputFile& file, size_t most) {
  std::string text(most, '\0');
  size_t size = 0;
  while (const size_t num_read = file.read(text.data() + size, most - size)) size += num_read;
  text.resize(size);
  return text;
}

std::string without_mark(std::string text) {
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

/// Most bytes in memory of a list or of a line. A small compressed file may hold any number of
/// bytes.
int64_t most_bytes(const std::string& path) {
  return compression_ending(path).empty() ? kAnySize : kMaxLineBytes;
}

/// Reads the file whole, from its beginning.
std::string whole_text(const std::string& path, const RowTaker& taker) {
  InputFile file = open_decompressed(path, "dataset");
  const int64_t most = taker.most_whole_bytes;
  if (most >= most_bytes(path)) return without_mark(file.read_all(most_bytes(path)));
  std::string text;
  if (file.size() <= most) {
    text = first_part(file, static_cast<size_t>(most) + 1);
    text.shrink_to_fit();
    if (std::ssize(text) <= most) return without_mark(std::move(text));
  }
  const std::string_view ending = compression_ending(path);
  throw UserError(fmt::format(
      "{}: the file has more than {} in a JSON list or in objects of several lines, which are read "
      "whole; streaming reads at most that. Write one object a line: {} {} | jq -c '.[]' > "
      "rows.jsonl",
      path, name_bytes(most),
      ending.empty()    ? "cat"
      : ending == ".gz" ? "gzip -dc"
                        : "zstd -dc",
      path));
}

}  // namespace

void refuse_utf16(const std::string& path) { refuse_utf16_start(path, first_bytes(path, 4)); }

bool for_each_row(const std::string& path, bool unwraps_data, const RowTaker& taker) {
  const std::optional<FileKind> kind = kind_of_file(path);
  if (kind == FileKind::kParquet || kind == FileKind::kArrow) {
    return for_each_column_row(path, kind == FileKind::kParquet, taker);
  }
  InputFile file = open_decompressed(path, "dataset");
  refuse_utf16_start(path, first_part(file, 4));
  file.rewind();
  if (kind == FileKind::kCsv) return for_each_csv_row(path, taker);
  const char first = first_letter(file);
  file.rewind();
  LineReader lines(std::move(file), most_bytes(path));
  if (kind == FileKind::kText) return for_each_line_of_text(lines, path, taker);
  if (first == '[') {
    return for_each_element(parse_ordered_json(whole_text(path, taker), path), path, taker);
  }
  if (first == '{' && !has_an_object_a_line(lines)) {
    return for_each_object(whole_text(path, taker), path, unwraps_data, taker);
  }
  lines.rewind();
  std::string line;
  while (next_line(lines, line)) {
    const bool goes_on = taker.take_whole_line ? taker.take_whole_line(line, lines.number())
                                               : take_line(line, path, lines.number(), taker);
    if (!goes_on) return false;
  }
  return true;
}

std::optional<ordered_json> first_row(const std::string& path) {
  if (kind_of_file(path) == FileKind::kJson) {
    // The first object of a list. Parsing all of the list would take long.
    InputFile file = open_decompressed(path, "dataset");
    const std::string text = without_mark(first_part(file, kFirstPart));
    const size_t begin = text.find_first_not_of(kWhiteSpace);
    if (begin != std::string::npos && text[begin] == '[') {
      const size_t object = text.find_first_not_of(kWhiteSpace, begin + 1);
      const size_t end = object == std::string::npos || text[object] != '{'
                             ? std::string::npos
                             : end_of_object(text, object);
      if (end != std::string::npos) {
        return try_parse_ordered_json(std::string_view(text).substr(object, end - object));
      }
    }
  }
  std::optional<ordered_json> first;
  const auto take = [&](const ordered_json& row, const std::string&) {
    first = row;
    return false;
  };
  for_each_row(path, /*unwraps_data=*/true,
               {take, [](const std::string&) { return true; }, [](const std::string&) {}});
  return first;
}

}  // namespace longspan
