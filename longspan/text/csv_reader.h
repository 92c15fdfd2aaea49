// Splits a csv file into records and cells. No torch. (Backed by the `csv-core` crate, see rust/.)
//
// Commas separate cells. A cell that begins with a quote may contain commas, line ends and doubled
// quotes, and ends with a quote. Lines end with a line feed, a carriage return or both. Lines of
// spaces and tabs alone are skipped, as by pandas. A byte order mark is skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/input/input_file.h"

extern "C" {
struct LsrCsv;
}

namespace longspan {

struct CsvRecord {
  std::vector<std::string_view> cells;  // valid until the next record is read; at least one
  int64_t line = 0;                     // of the file, from 1: the line where the record begins
  bool is_utf8 = false;                 // all cells
};

/// Holds one record and one part of the file in memory.
class CsvReader {
 public:
  /// Throws UserError from next() where a record has more than `most_bytes`.
  explicit CsvReader(InputFile file, int64_t most_bytes = kMaxLineBytes);

  /// Reads the next record; returns false at the end. Throws UserError: a quote that is not closed.
  bool next(CsvRecord& record);

 private:
  struct Free {
    void operator()(LsrCsv* csv) const;
  };

  bool fill();
  void count_lines(std::string_view bytes);
  bool begin_record(std::string& indentation);
  void require_room(int64_t line, size_t num_bytes) const;

  InputFile file_;
  int64_t most_bytes_;
  std::unique_ptr<LsrCsv, Free> csv_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t line_ = 1;  // of the next byte
  bool at_begin_of_file_ = true, after_carriage_return_ = false;
};

}  // namespace longspan
