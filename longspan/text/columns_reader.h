// Reads the records of parquet and Arrow files. No torch. (Backed by the crates `parquet` and
// `arrow-ipc`, see rust/.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/input/input_file.h"

extern "C" {
struct LsrColumns;
}

namespace longspan {

/// A column, or a field within the messages of a column, that has no values in JSON.
struct LeftOutColumn {
  std::string column;
  std::string path;  // the column's name, or a field's ("messages.time")
  std::string type;  // for messages to the user: "timestamp(us)", "binary"
};

/// Holds some records in memory: of a parquet file about 8 MiB and a page of each column, of an
/// Arrow file one record batch. Values are Hugging Face datasets' Python values. Left out are
/// times, decimals, maps and other values that are not JSON, with the names of their columns; a
/// column with bytes anywhere in it is left out as a whole.
class ColumnsReader {
 public:
  enum class Format { kParquet, kArrow };

  /// Throws UserError: a broken file, another compression, two columns of one name, too many
  /// columns.
  ColumnsReader(InputFile file, Format format);

  const std::vector<LeftOutColumn>& left_out() const { return left_out_; }
  /// Sets `record` to the next record, a JSON object, valid until the next call. Returns false
  /// after the last one. Throws UserError as the constructor does.
  bool next(std::string_view& record);
  /// The numbers so far that are nan or infinite. They are null in the records.
  int64_t num_unbounded() const { return num_unbounded_; }

 private:
  struct Free {
    void operator()(LsrColumns* columns) const;
  };

  InputFile file_;
  std::unique_ptr<LsrColumns, Free> columns_;
  std::vector<LeftOutColumn> left_out_;
  int64_t num_unbounded_ = 0;
};

}  // namespace longspan
