// Parser of safetensors headers. The parser's memory grows only with the descriptions of tensors,
// not with other content of a header.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// A tensor of the header. Offsets are in bytes from the start of the file.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin, end;
};

/// Largest header in bytes, as in the reference implementation.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// Returns "F32", "BF16", ...; nullptr where the format has no name for the dtype.
const char* safetensors_name(at::ScalarType dtype);
/// True for dtypes whose elements are values by themselves; false for integers, and for 8-bit
/// floats, which need scales.
bool has_plain_numbers(at::ScalarType dtype);

/// Throws UserError: the file is not a valid safetensors file.
[[noreturn]] void refuse_safetensors(const std::string& path, const std::string& what);

/// Returns the bytes of the header from the first 8 bytes of a file of `file_size` bytes. Throws
/// UserError where the file is shorter, or where the format forbids the size.
int64_t safetensors_header_size(const std::string& path, const char* first_8_bytes,
                                int64_t file_size);

/// Parses the header's JSON; entries are in the order of the data. Throws UserError for broken
/// JSON, repeated names, unknown dtypes, shapes that do not fit their bytes, holes, overlaps,
/// tensors that end beyond the file, and bytes after the last tensor.
std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& path,
                                                       std::string_view header, int64_t file_size);

}  // namespace longspan
