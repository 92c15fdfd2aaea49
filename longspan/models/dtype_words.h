// What users and config.json call the dtypes of numbers.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace longspan {

/// float32, bfloat16, float16, float64: as torch and config.json (dtype, torch_dtype) have them.
/// Throws c10::Error for another dtype.
std::string_view long_name_of(c10::ScalarType dtype);

/// fp32, bf16, fp16, fp64. Throws as above.
std::string_view short_name_of(c10::ScalarType dtype);

/// By either name; nullopt: it is none.
std::optional<c10::ScalarType> dtype_named(std::string_view word);

}  // namespace longspan
