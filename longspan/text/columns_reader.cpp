#include "longspan/text/columns_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/text/rust_call.h"

namespace longspan {

namespace {

/// Calls the archive; puts the file's path before its messages.
template <typename... Args>
void call_for(const std::string& path, Args&&... args) {
  try {
    rust_call(std::forward<Args>(args)...);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace

void ColumnsReader::Free::operator()(LsrColumns* columns) const { lsr_columns_free(columns); }

ColumnsReader::ColumnsReader(InputFile file, Format format) : file_(std::move(file)) {
  LsrColumns* columns = nullptr;
  LsrString left_out{nullptr, 0};
  call_for(file_.path(), lsr_columns_open, file_.descriptor(), format == Format::kParquet, &columns,
           &left_out);
  columns_.reset(columns);
  for (const auto& field : parse_json(take_rust_string(left_out), file_.path())) {
    left_out_.push_back({field.at("column"), field.at("path"), field.at("type")});
  }
}

bool ColumnsReader::next(std::string_view& record) {
  LsrView read{nullptr, 0};
  uint64_t num_unbounded = 0;
  call_for(file_.path(), lsr_columns_next, columns_.get(), &read, &num_unbounded);
  num_unbounded_ = static_cast<int64_t>(num_unbounded);
  record = {read.data, read.size};
  return read.data != nullptr;
}

}  // namespace longspan
