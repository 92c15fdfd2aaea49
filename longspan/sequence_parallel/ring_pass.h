// Tensors that travel round a ring of ranks, and their gradients that travel home.
//
// A ring of R ranks: in step s a rank holds what rank - s set out with, and the block of step s + 1
// is in flight meanwhile. R - 1 hops, after which every rank has seen every block.
//
// Gradients of a block set out from the neighbour of its owner, one step behind the block, gather
// what each rank adds, and arrive at the owner after R - 1 hops; the owner adds its own share last.
//
// The step of a ring may itself be a pass over a smaller ring (LoongTrain's double ring, arXiv
// 2406.18485, section 4.2): rings of D and W ranks make D - 1 + D (W - 1) = D W - 1 hops, as one
// ring of D W ranks does, but only D - 1 of them on the links of the outer ring, each under a
// whole pass over the inner one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Rings within rings, the outermost first. A rank is the number whose digits are its ranks in the
/// groups: with {windows, window}, rank in windows * size of window + rank in window.
class Rings {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// `travelling` is what rank `owner` set out with; it must not be written to.
  using ForwardStep = std::function<void(const Tensors& travelling, int owner)>;
  /// Returns what this rank adds to the gradients of `travelling`, in new tensors; nothing at all
  /// ({}) where it has not used them.
  using BackwardStep = std::function<Tensors(const Tensors& travelling, int owner)>;

  explicit Rings(std::vector<Group> groups) : groups_(std::move(groups)) {}

  int rank() const;
  int size() const;

  /// Calls `step` once with every rank's tensors, our own first. All ranks give the same shapes.
  void forward(const Tensors& own, const ForwardStep& step) const;

  /// The same, and returns the sum of what all ranks added to the gradients of our own tensors.
  /// Gradients have the shapes of `own` and the dtype in which kernels accumulate (fp32 for bf16).
  Tensors backward(const Tensors& own, const BackwardStep& step) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace longspan
