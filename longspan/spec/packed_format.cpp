#include "longspan/spec/packed_format.h"

#include <algorithm>
#include <string_view>

namespace longspan {
namespace {

constexpr int64_t kPartAlignment = 16;

int64_t padded(int64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

int64_t groups_of(const GroupedBits& format, int64_t num_columns) {
  if (format.group_size <= 0) return 1;
  return (num_columns + format.group_size - 1) / format.group_size;
}

/// Whether `parts` are consecutive parts of the name, which dots divide.
bool has_parts(const std::string& name, const std::string& parts) {
  return ("." + name + ".").find("." + parts + ".") != std::string::npos;
}

}  // namespace

GroupedLayout::GroupedLayout(const GroupedBits& format, int64_t rows, int64_t columns)
    : num_rows(rows),
      num_columns(columns),
      num_groups(groups_of(format, columns)),
      row_bytes((columns + 1) / 2),
      scales(padded(rows * row_bytes)),
      zeros(padded(scales + 4 * rows * num_groups)),
      groups(padded(zeros + rows * num_groups)),
      bytes(padded(groups + 4 * columns)) {}

EightBitLayout::EightBitLayout(int64_t rows, int64_t columns)
    : scales(padded(rows * columns)), bytes(padded(scales + 4 * rows)) {}

int64_t packed_bytes(const PackedFormat& format, int64_t num_rows, int64_t num_columns) {
  if (const auto* blocks = std::get_if<FourBits>(&format)) {
    return FourBitLayout(*blocks, num_rows * num_columns).bytes;
  }
  if (std::holds_alternative<EightBits>(format)) return EightBitLayout(num_rows, num_columns).bytes;
  return GroupedLayout(std::get<GroupedBits>(format), num_rows, num_columns).bytes;
}

bool FolderBits::holds(const ParameterSpec& parameter) const {
  if (!is_quantized_matrix(parameter) || parameter.part != ModelPart::kLanguage ||
      !parameter.stored_as.ends_with(kWeightEnding)) {
    return false;
  }
  const std::string linear =
      parameter.stored_as.substr(0, parameter.stored_as.size() - kWeightEnding.size());
  const auto ends = [&](const std::string& name) { return linear.ends_with(name); };
  const auto named = [&](const std::string& name) { return ends(name) || has_parts(linear, name); };
  if (std::ranges::any_of(kept, named)) return false;
  return only.empty() ||
         std::ranges::any_of(only, [&](const std::string& name) { return ends("." + name); });
}

}  // namespace longspan
