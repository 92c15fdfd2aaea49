// Names of dtypes in users' configurations and in config.json.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace longspan {

/// Returns float32, bfloat16, float16 or float64, as in torch and config.json (dtype, torch_dtype).
/// Throws c10::Error for other dtypes.
std::string_view long_name_of(c10::ScalarType dtype);

/// Returns fp32, bf16, fp16 or fp64. Throws c10::Error for other dtypes.
std::string_view short_name_of(c10::ScalarType dtype);

/// Parses a long or a short name; nullopt if `word` is neither.
std::optional<c10::ScalarType> dtype_named(std::string_view word);

}  // namespace longspan
