// The arguments of one call of attention, which all ranks of a group pass alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// T: tokens of this rank, N: query heads, M: kv heads, H: elements of a query's or key's head, V:
/// elements of a value's head.
struct AttentionArguments {
  const at::Tensor &q_TNH, &k_TMH, &v_TMV;
  const at::Tensor& sinks_N;                   // undefined: none
  const std::optional<at::Tensor>& documents;  // packing_numbers.h; empty: one document
  const std::string& method;
  const std::vector<int64_t>& degrees;
  double scale;
  std::optional<int64_t> window;
  std::optional<double> softcap;
};

/// Throws UserError for tensors that do not fit together, and for limits that are none.
void check_arguments(const AttentionArguments& call);

/// Returns a text for require_equal_calls(). Throws UserError for documents that are none.
std::string text_of(const AttentionArguments& call);

}  // namespace longspan
