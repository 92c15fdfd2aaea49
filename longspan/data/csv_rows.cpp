#include "longspan/data/csv_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/data/file_kinds.h"
#include "longspan/text/compressed_file.h"
#include "longspan/text/counted.h"
#include "longspan/text/csv_reader.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// Rows whose columns get a type together: `chunksize` of Hugging Face datasets' csv builder.
constexpr int64_t kRowsOfOneType = 10'000;
/// Bounds the nulls of a row with few cells.
constexpr size_t kMostColumns = 1000;
constexpr size_t kMostNotedColumns = 10, kShownName = 60;

/// pandas' STR_NA_VALUES without "".
bool stands_for_no_value(std::string_view cell) {
  static const std::unordered_set<std::string_view> texts = {
      "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
      "<NA>", "N/A",      "NA",  "NULL",    "NaN",      "None", "n/a",  "nan",    "null"};
  return texts.contains(cell);
}

bool equals_in_any_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

std::optional<bool> as_boolean(std::string_view cell) {
  if (equals_in_any_case(cell, "true")) return true;
  if (equals_in_any_case(cell, "false")) return false;
  return std::nullopt;
}

/// Returns the number in a cell that pandas reads as a number: decimal, also between white space,
/// or infinity without white space. A number beyond a double's range is infinity or 0.
std::optional<ordered_json> as_number(std::string_view cell) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const size_t begin = cell.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t size = cell.size();
  cell = cell.substr(begin, cell.find_last_not_of(kSpaces) + 1 - begin);
  const bool has_spaces = cell.size() < size, is_negative = cell.starts_with('-');
  if (is_negative || cell.starts_with('+')) cell.remove_prefix(1);
  if (equals_in_any_case(cell, "inf") || equals_in_any_case(cell, "infinity")) {
    if (has_spaces) return std::nullopt;
    return is_negative ? -HUGE_VAL : HUGE_VAL;
  }
  if (cell.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return std::nullopt;
  if (cell.empty() || cell[0] == '-' || cell[0] == '+') return std::nullopt;
  const char *const first = cell.data(), *const last = first + cell.size();
  const auto takes_all = [&](const std::from_chars_result& read) {
    return read.ec == std::errc() && read.ptr == last;
  };
  uint64_t whole = 0;
  if (takes_all(std::from_chars(first, last, whole))) {
    if (!is_negative) return whole;
    if (whole <= static_cast<uint64_t>(INT64_MAX)) return -static_cast<int64_t>(whole);
  }
  double number = 0;
  const std::from_chars_result read = std::from_chars(first, last, number);
  if (read.ptr != last || read.ec == std::errc::invalid_argument) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    number = std::strtod(std::string(cell).c_str(), nullptr);
  }
  return is_negative ? -number : number;
}

/// The type of a column, as far as its cells are known.
struct ColumnType {
  bool may_be_number = true, may_be_boolean = true;
};

std::string problem_of(const CsvRecord& record) {
  if (!record.is_utf8) return "this is not UTF-8 text";
  const bool has_nul = std::ranges::any_of(record.cells, [](std::string_view cell) {
    return cell.find('\0') != std::string_view::npos;
  });
  return has_nul ? "a cell has a NUL character" : "";
}

std::string problem_of_row(const CsvRecord& record, size_t num_columns) {
  if (record.cells.size() <= num_columns) return problem_of(record);
  return fmt::format(
      "the row has {}, but the first line names {}; put a cell with commas into quotes (\")",
      counted(std::ssize(record.cells), "cell"),
      counted(static_cast<int64_t>(num_columns), "column"));
}

std::vector<std::string> column_names(const CsvRecord& header, const std::string& path) {
  const std::string place = fmt::format("{}, line {}", path, header.line);
  if (const std::string problem = problem_of(header); !problem.empty()) {
    throw UserError(fmt::format("{}: {}", place, problem));
  }
  if (header.cells.size() > kMostColumns) {
    throw UserError(fmt::format("{}: the file has {} columns; at most {} are read", place,
                                header.cells.size(), kMostColumns));
  }
  std::vector<std::string> names;
  std::unordered_set<std::string_view> seen;
  names.reserve(header.cells.size());  // `seen` refers to the names
  for (const std::string_view cell : header.cells) {
    names.push_back(cell.empty() ? fmt::format("Unnamed: {}", names.size()) : std::string(cell));
    if (!seen.insert(names.back()).second) {
      throw UserError(fmt::format("{}: two columns are called {}; give each a name of its own",
                                  place, shortened(names.back(), kShownName)));
    }
  }
  return names;
}

/// Reads a file ahead of its rows, which need the types of their columns.
class TypeReader {
 public:
  TypeReader(const std::string& path, size_t num_columns)
      : reader_(open_decompressed(path, "dataset")), num_columns_(num_columns) {
    reader_.next(record_);  // the names of the columns
  }

  /// Returns the types of the columns in the next kRowsOfOneType rows.
  std::vector<ColumnType> next() {
    std::vector<ColumnType> types(num_columns_);
    for (int64_t i = 0; i < kRowsOfOneType && reader_.next(record_); ++i) {
      if (!problem_of_row(record_, num_columns_).empty()) continue;
      for (size_t column = 0; column < record_.cells.size(); ++column) {
        const std::string_view cell = record_.cells[column];
        ColumnType& type = types[column];
        const bool is_text = !type.may_be_number && !type.may_be_boolean;
        if (is_text || cell.empty() || stands_for_no_value(cell)) continue;
        type.may_be_number = type.may_be_number && as_number(cell);
        type.may_be_boolean = type.may_be_boolean && as_boolean(cell);
      }
    }
    return types;
  }

 private:
  CsvReader reader_;
  size_t num_columns_;
  CsvRecord record_;
};

/// Counts the cells whose text stands for no value.
class MissingTexts {
 public:
  explicit MissingTexts(const std::vector<std::string>& names)
      : names_(names), columns_(names.size()) {}

  void add(size_t column, int64_t line) {
    if (columns_[column].count++ == 0) columns_[column].first_line = line;
  }

  /// Returns a note; "" where there are no such cells.
  std::string note(const std::string& path) const {
    std::vector<std::string> noted;
    int64_t num_more = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto& [count, first_line] = columns_[i];
      if (count == 0) continue;
      if (noted.size() == kMostNotedColumns) {
        ++num_more;
        continue;
      }
      noted.push_back(fmt::format("{} ({}, first in line {})", shortened(names_[i], kShownName),
                                  counted(count, "cell"), first_line));
    }
    if (noted.empty()) return "";
    return fmt::format(
        "{}: cells with NA, None, null, nan or the like are read as empty, as by pandas: {}{}",
        path, fmt::join(noted, ", "),
        num_more == 0 ? "" : fmt::format(" and {}", counted(num_more, "more column")));
  }

 private:
  struct Column {
    int64_t count = 0, first_line = 0;
  };
  const std::vector<std::string>& names_;
  std::vector<Column> columns_;
};

ordered_json value_of(std::string_view cell, const ColumnType& type) {
  // The file may have changed since its types were read.
  if (type.may_be_number) {
    if (std::optional<ordered_json> number = as_number(cell)) return *std::move(number);
  }
  if (type.may_be_boolean) {
    if (const std::optional<bool> boolean = as_boolean(cell)) return *boolean;
  }
  return std::string(cell);
}

ordered_json row_of(const CsvRecord& record, const std::vector<std::string>& names,
                    const std::vector<ColumnType>& types, MissingTexts& missing) {
  ordered_json row = ordered_json::object();
  // Appends to the container: the names differ, and an insertion would search all of them.
  auto& columns =
      static_cast<ordered_json::object_t::Container&>(row.get_ref<ordered_json::object_t&>());
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string_view cell = i < record.cells.size() ? record.cells[i] : std::string_view();
    const bool stands_for_none = stands_for_no_value(cell);
    if (stands_for_none) missing.add(i, record.line);
    const bool is_null = cell.empty() || stands_for_none;
    columns.emplace_back(names[i], is_null ? ordered_json() : value_of(cell, types[i]));
  }
  return row;
}

}  // namespace

bool for_each_csv_row(const std::string& path, const RowTaker& taker) {
  CsvReader reader(open_decompressed(path, "dataset"));
  CsvRecord record;
  if (!reader.next(record)) return true;
  const std::vector<std::string> names = column_names(record, path);
  TypeReader type_reader(path, names.size());
  std::vector<ColumnType> types;
  MissingTexts missing(names);
  bool wants_more = true;
  for (int64_t i = 0; wants_more && reader.next(record); ++i) {
    if (i % kRowsOfOneType == 0) types = type_reader.next();
    const std::string place = fmt::format("{}, line {}", path, record.line);
    const std::string problem = problem_of_row(record, names.size());
    wants_more = problem.empty() ? taker.take(row_of(record, names, types, missing), place)
                                 : taker.refuse(fmt::format("{}: {}", place, problem));
  }
  if (const std::string note = missing.note(path); !note.empty()) taker.note(note);
  return wants_more;
}

std::string csv_reason(const std::string& place, const ordered_json& value) {
  const size_t name = place.rfind(", line ");
  if (name == std::string::npos) return "";
  if (kind_of_file(std::string_view(place).substr(0, name)) != FileKind::kCsv) return "";
  if (value.is_null()) return "; an empty cell, NA, None, null, nan or the like is no value";
  if (!value.is_number() && !value.is_boolean()) return "";
  return fmt::format(
      "; a csv column whose cells are all {} has no texts: give such a file as jsonl, with the "
      "values in quotes",
      value.is_number() ? "numbers" : "true or false");
}

}  // namespace longspan
