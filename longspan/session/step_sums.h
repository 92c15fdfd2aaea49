// The numbers that a step sums over all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/stages/row.h"

namespace longspan {

class Objective;
struct BatchCounts;
struct RowLosses;

/// Starts the sums over the global batch. Each row counts once, however many ranks share the row.
/// The returned function is called once, and waits for the sums, but not for the GPU. Collective.
std::function<BatchCounts()> start_counts(std::span<const Row> rows, const Objective& objective,
                                          const Mesh& mesh);

/// Returns this rank's part of the loss and the flags, fp64 on `device`: the contributions that
/// count, and `of_experts`, the auxiliary loss (undefined: none).
at::Tensor step_sums(const RowLosses& losses, const at::Tensor& of_experts,
                     const std::vector<double>& flags, at::Device device);

}  // namespace longspan
