// Samples of Python as examples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/rows/example.h"

namespace longspan {

/// Samples in the order of their examples.
struct GivenSamples {
  const std::vector<at::Tensor>& ids;      // of each sample: int64 [tokens]
  const std::vector<at::Tensor>& labels;   // the same shapes
  const std::vector<int64_t>& documents;   // number of samples of each example
  const std::vector<int64_t>& desirable;   // of each example
  const std::vector<std::string>& names;   // of columns
  const std::vector<at::Tensor>& columns;  // of each sample, in the order of `names`
};

/// Returns the examples. Throws UserError for shapes that do not fit, and for ids that do not fit
/// int32.
std::vector<Example> examples_of_python(const GivenSamples& given);

/// Returns the ids of an int64 tensor [tokens]. `what`: for errors. Throws UserError.
std::vector<int32_t> ids_of(const at::Tensor& tensor, const std::string& what);

}  // namespace longspan
