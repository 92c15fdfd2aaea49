// Some rows of a parameter, for who computes with these alone.
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
  /// The rows, outside of autograd.
  at::Tensor values() const;
  /// Adds to the parameter's .grad. Where there are no rows it is made, of zeros. Does nothing for
  /// a parameter that is not trained.
  void add_gradient(const at::Tensor& gradient) const;
};

}  // namespace longspan
