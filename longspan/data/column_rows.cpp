#include "longspan/data/column_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "longspan/input/json_text.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

constexpr size_t kMostLeftOut = 10, kShownField = 60, kShownType = 40;

std::string note_of(const std::vector<LeftOutColumn>& columns, const std::string& path) {
  std::vector<std::string> noted;
  for (const LeftOutColumn& column : columns) {
    if (noted.size() == kMostLeftOut) {
      noted.push_back(fmt::format("and {} more", columns.size() - kMostLeftOut));
      break;
    }
    noted.push_back(fmt::format("{} ({})", shortened(column.path, kShownField),
                                shortened(column.type, kShownType)));
  }
  return fmt::format(
      "{}: {} not read, for their types: {}", path,
      columns.size() == 1 ? "1 column is" : fmt::format("{} columns are", columns.size()),
      fmt::join(noted, ", "));
}

}  // namespace

std::string refusal_of(const LeftOutColumn& column, const std::string& path) {
  return fmt::format(
      "{}: the column {} has the type {}, which is not read{}", path,
      shortened(column.path, kShownField), shortened(column.type, kShownType),
      column.type == "binary"
          ? ". Text must be of the type string. Pictures are read from files: write each into a "
            "file, and give its path"
          : "; give the column as text");
}

bool for_each_column_row(const std::string& path, bool is_parquet, const RowTaker& taker) {
  ColumnsReader reader(InputFile(path, "dataset"), is_parquet ? ColumnsReader::Format::kParquet
                                                              : ColumnsReader::Format::kArrow);
  if (taker.leave_out) {
    for (const LeftOutColumn& column : reader.left_out()) taker.leave_out(column, path);
  }
  bool wants_more = true;
  std::string_view text;
  for (int64_t number = 1; wants_more && reader.next(text); ++number) {
    const std::string place = fmt::format("{}, row {}", path, number);
    wants_more = taker.take(parse_ordered_json(text, place), place);
  }
  if (!reader.left_out().empty()) taker.note(note_of(reader.left_out(), path));
  if (const int64_t count = reader.num_unbounded(); count > 0) {
    taker.note(fmt::format("{}: nan and infinite numbers are read as null: {}", path, count));
  }
  return wants_more;
}

}  // namespace longspan
