#include "longspan/text/csv_reader.h"

#include <fmt/format.h>

#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/text/rust_call.h"

namespace longspan {

namespace {

constexpr std::string_view kMarkOfCsv = "\xef\xbb\xbf";
/// Bytes of one read.
constexpr size_t kPartOfCsv = size_t{1} << 18;

}  // namespace

void CsvReader::Free::operator()(LsrCsv* csv) const { lsr_csv_free(csv); }

CsvReader::CsvReader(InputFile file, int64_t most_bytes)
    : file_(std::move(file)),
      most_bytes_(most_bytes),
      csv_(lsr_csv_new()),
      buffer_(kPartOfCsv, '\0') {}

bool CsvReader::fill() {
  begin_ = 0;
  end_ = file_.read(buffer_.data(), buffer_.size());
  if (std::exchange(at_begin_of_file_, false) &&
      std::string_view(buffer_.data(), end_).starts_with(kMarkOfCsv)) {
    begin_ = kMarkOfCsv.size();
  }
  return begin_ < end_;
}

void CsvReader::count_lines(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\r' || (c == '\n' && !after_carriage_return_)) ++line_;
    after_carriage_return_ = c == '\r';
  }
}

void CsvReader::require_room(int64_t line, size_t num_bytes) const {
  if (static_cast<int64_t>(num_bytes) <= most_bytes_) return;
  throw UserError(
      fmt::format("{}, line {}: the row that begins here has more than {} bytes, the most that a "
                  "row may have; is one of its quotes (\") not closed?",
                  file_.path(), line, most_bytes_));
}

/// Skips blank lines. Returns false at the end of the file. Otherwise the next byte belongs to a
/// record that begins with `indentation`.
bool CsvReader::begin_record(std::string& indentation) {
  for (;;) {
    if (begin_ == end_ && !fill()) return false;
    const std::string_view c(buffer_.data() + begin_, 1);
    if (c == "\n" || c == "\r") {
      indentation.clear();
    } else if (c == " " || c == "\t") {
      indentation += c;
      require_room(line_, indentation.size());
    } else {
      return true;
    }
    count_lines(c);
    ++begin_;
  }
}

bool CsvReader::next(CsvRecord& record) {
  std::string indentation;
  if (!begin_record(indentation)) return false;
  record.line = line_;
  LsrCsvRecord read{};
  bool is_complete = false;
  const auto push = [&](std::string_view bytes) {
    size_t used = 0;
    rust_call(lsr_csv_push, csv_.get(), rust_view(bytes), &used, &is_complete, &read);
    return used;
  };
  push(indentation);
  for (size_t num_bytes = indentation.size(); !is_complete;) {
    if (begin_ == end_ && !fill()) {
      push("\n");  // ends a record, except within quotes
      if (is_complete) break;
      throw UserError(fmt::format(
          "{}, line {}: a quote (\") of the row that begins here is not closed, and the rest of "
          "the file would be one cell; close it, or double a quote that is part of a text",
          file_.path(), record.line));
    }
    const std::string_view rest(buffer_.data() + begin_, end_ - begin_);
    const size_t used = push(rest);
    count_lines(rest.substr(0, used));
    begin_ += used;
    num_bytes += used;
    require_room(record.line, num_bytes);
  }
  record.is_utf8 = read.is_utf8;
  record.cells.clear();
  size_t begin = 0;
  for (size_t i = 0; i < read.num_cells; ++i) {
    record.cells.emplace_back(read.cells + begin, read.ends[i] - begin);
    begin = read.ends[i];
  }
  return true;
}

}  // namespace longspan
