// Passes each rank's tensors around a ring of ranks, and their gradients back to their owner.
//
// In a ring of R ranks, a rank holds the tensors of rank - s in step s, while those of step s + 1
// arrive. After R - 1 hops every rank has seen all of them.
//
// The gradients of a block follow it one step behind, from its owner's neighbour on. Each rank adds
// its contribution; after R - 1 hops they reach the owner, which adds its own last.
//
// The step of a ring may itself be a pass over a smaller ring (LoongTrain's double ring, arXiv
// 2406.18485, section 4.2): rings of D and W ranks make D - 1 + D (W - 1) = D W - 1 hops, like one
// ring of D W ranks. But only D - 1 of them use the links of the outer ring, each during a whole
// pass over the inner ring.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Nested rings, the outermost first. The digits of a rank are its ranks in the groups: with
/// {windows, window}, rank = rank in windows * size of window + rank in window.
class Rings {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// `travelling`: the tensors of rank `owner`; read-only.
  using ForwardStep = std::function<void(const Tensors& travelling, int owner)>;
  /// Returns this rank's contribution to the gradients of `travelling`, in new tensors; {} if it
  /// has not used them.
  using BackwardStep = std::function<Tensors(const Tensors& travelling, int owner)>;

  explicit Rings(std::vector<Group> groups) : groups_(std::move(groups)) {}

  int rank() const;
  int size() const;

  /// Calls `step` once with every rank's tensors, our own first. Shapes must be equal on all ranks.
  void forward(const Tensors& own, const ForwardStep& step) const;

  /// The same; returns the sum of all ranks' contributions to the gradients of our own tensors.
  /// Gradients have the shapes of `own` and the accumulation dtype of the kernels (fp32 for bf16).
  Tensors backward(const Tensors& own, const BackwardStep& step) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace longspan
