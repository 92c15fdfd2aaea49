// Numbers of a row's tokens on a device, such as each token's document, which all layers use.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>

#include "longspan/rows/packing.h"

namespace longspan {

enum class RowNumbers {
  kDocuments,      ///< int64, by kernels/gated_delta_rule_composed
  kEarlierTokens,  ///< bytes, by kernels/causal_conv_composed
};

/// Returns make()'s tensor on `device`, where the current stream may read it. Documents, `what` and
/// `sizes` determine the numbers. Equal ones go to the device once: the numbers used last stay
/// there, of 16 MiB at most, or the last alone: both kinds of a row of 1.8 million tokens.
at::Tensor row_numbers(const Packing& packing, RowNumbers what, std::array<int64_t, 2> sizes,
                       at::Device device, const std::function<at::Tensor()>& make);

}  // namespace longspan
