// The header of a safetensors file: what it says of the tensors behind it. No more is built of it
// than that, however large or deep it is.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// One line of a header. Offsets are in bytes from the start of the file.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin, end;
};

/// Largest header, in bytes: the limit of the reference implementation.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// "F32", "BF16", ...; nullptr where the format has no name for it.
const char* safetensors_name(at::ScalarType dtype);
/// Are they numbers as they are: no integers, and none in eight bits, which want scales?
bool has_plain_numbers(at::ScalarType dtype);

/// Throws UserError: the file is not a valid safetensors file.
[[noreturn]] void refuse_safetensors(const std::string& path, const std::string& what);

/// Bytes of the header by the first 8 bytes of a file of `file_size` bytes. Throws UserError when
/// the file does not hold so many, or the format does not allow it.
int64_t safetensors_header_size(const std::string& path, const char* first_8_bytes,
                                int64_t file_size);

/// Reads the header's JSON, in the order of the data. Throws UserError: broken JSON, names that are
/// there twice, dtypes that are not known, shapes that do not fit their bytes, holes, overlaps,
/// bytes beyond the file or of nobody.
std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& path,
                                                       std::string_view header, int64_t file_size);

}  // namespace longspan
