// Makes a parameter on demand: reads it from a file, or draws it at random.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Returns the dtype of the parameter in a model of `dtype`, and in its files: buffers are at least
/// fp32.
inline at::ScalarType stored_dtype(const ParameterSpec& parameter, at::ScalarType dtype) {
  return is_buffer(parameter.role) && c10::elementSize(dtype) < 4 ? at::kFloat : dtype;
}

/// Makes the numbers of a parameter, whole or a run of them.
class ParameterMaker {
 public:
  using Whole = std::function<at::Tensor()>;
  using Run = std::function<at::Tensor(int64_t begin, int64_t end)>;

  ParameterMaker() = default;
  /// Runs are cut out of the whole.
  template <typename Make>
    requires std::is_invocable_r_v<at::Tensor, Make>
  ParameterMaker(Make whole) : whole_(std::move(whole)) {}
  /// `run` returns the numbers [begin, end) of `whole`, 1-D, and takes less than the whole.
  ParameterMaker(Whole whole, Run run) : whole_(std::move(whole)), run_(std::move(run)) {}

  at::Tensor operator()() const { return whole_(); }
  /// Returns the numbers [begin, end) of the contiguous tensor, 1-D, on the CPU.
  at::Tensor run(int64_t begin, int64_t end) const {
    return run_ ? run_(begin, end) : whole_().flatten().slice(0, begin, end);
  }
  /// Returns a maker of `change(numbers)`, where `change` changes each number by itself.
  ParameterMaker changed(std::function<at::Tensor(const at::Tensor&)> change) const {
    const Whole whole = [own = *this, change] { return change(own()); };
    if (!run_) return whole;
    return {whole, [own = *this, change](int64_t begin, int64_t end) {
              return change(own.run(begin, end));
            }};
  }

 private:
  Whole whole_;
  Run run_;  // may be empty
};

/// Sources are called one after the other, so that no process holds all parameters.
struct ParameterSource {
  ParameterSpec spec;
  at::ScalarType dtype;
  bool trained = false;
  /// Returns a new contiguous tensor of the spec's shape and of `dtype`, on the CPU.
  ParameterMaker make;
  /// Returns the packed bytes (spec/packed_format.h) of the tensor of the files that has the
  /// parameter, on the CPU; null: the files have the parameter's numbers.
  std::function<at::Tensor()> make_packed = {};
};

}  // namespace longspan
