// Some rows of a parameter, for a caller that computes with these rows only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longspan {

struct ParameterRows {
  struct Run {
    int64_t begin, size;
  };
  at::Tensor parameter;
  std::vector<Run> runs;  // along the first dim

  static ParameterRows all_of(const at::Tensor& parameter) {
    return {parameter, {{0, parameter.size(0)}}};
  }
  /// Returns the rows, outside autograd.
  at::Tensor values() const;
  /// Adds to the parameter's .grad, which is created with zeros even where there are no rows. No-op
  /// for a frozen parameter.
  void add_gradient(const at::Tensor& gradient) const;
};

}  // namespace longspan
