#include "longspan/models/dtype_words.h"

#include <c10/util/Exception.h>

namespace longspan {
namespace {

struct DtypeWords {
  c10::ScalarType dtype;
  std::string_view long_name, short_name;
};
constexpr DtypeWords kDtypes[] = {{c10::ScalarType::Float, "float32", "fp32"},
                                  {c10::ScalarType::BFloat16, "bfloat16", "bf16"},
                                  {c10::ScalarType::Half, "float16", "fp16"},
                                  {c10::ScalarType::Double, "float64", "fp64"}};

const DtypeWords& words_of(c10::ScalarType dtype) {
  for (const DtypeWords& words : kDtypes) {
    if (words.dtype == dtype) return words;
  }
  TORCH_CHECK(false, "there are no models of ", dtype);
}

}  // namespace

std::string_view long_name_of(c10::ScalarType dtype) { return words_of(dtype).long_name; }
std::string_view short_name_of(c10::ScalarType dtype) { return words_of(dtype).short_name; }

std::optional<c10::ScalarType> dtype_named(std::string_view word) {
  for (const DtypeWords& words : kDtypes) {
    if (word == words.long_name || word == words.short_name) return words.dtype;
  }
  return std::nullopt;
}

}  // namespace longspan
