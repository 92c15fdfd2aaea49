// Passes each rank's tensors around a ring of ranks, and the gradients back to the tensors' owner.
//
// In step s of a ring of R ranks, a rank holds the tensors of rank - s, while the tensors of step s
// + 1 arrive. After R - 1 hops every rank has held the tensors of all ranks.
//
// The tensors travel in parts. A rank waits for a part where the step uses the part, and passes it
// on. A hop therefore overlaps with the step before it, and with the step's work on earlier parts.
//
// The gradients of a rank's tensors travel one step behind the tensors, each part as soon as it is
// complete. The owner's neighbour makes the first contribution, and each later rank adds its
// contribution. After R - 1 hops the gradients reach the owner. The owner computes its own
// contribution during this last hop, so that the backward begins with the neighbour's tensors. The
// first hop may begin before the backward.
//
// The step of a ring may itself be a pass over a smaller ring (LoongTrain's double ring, arXiv
// 2406.18485, section 4.2). Rings of D and W ranks make D - 1 + D (W - 1) = D W - 1 hops, as many
// as one ring of D W ranks. Only D - 1 of these hops use the links of the outer ring. Each of these
// D - 1 hops overlaps with a whole pass over the inner ring.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Nested rings, the outermost first. A rank is a mixed-radix number whose digits are the ranks in
/// the groups: with {windows, window}, rank = rank in windows * size of window + rank in window.
class Rings {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// A rank's tensors, the same number of parts on all ranks.
  using Parts = std::vector<Tensors>;
  /// `travelling`: a part of the tensors of rank `owner`; read-only.
  using ForwardStep = std::function<void(const Tensors& travelling, int owner, size_t part)>;
  /// Returns this rank's contribution to the gradients of `travelling`, in new tensors; {} if this
  /// rank has not used the tensors.
  using BackwardStep = std::function<Tensors(const Tensors& travelling, int owner, size_t part)>;

  explicit Rings(std::vector<Group> groups) : groups_(std::move(groups)) {}

  int rank() const;
  int size() const;

  /// Calls `step` once with every part of every rank's tensors, beginning with this rank's tensors.
  /// Visits all parts of a rank before the next rank. Shapes must be equal on all ranks.
  void forward(const Parts& own, const ForwardStep& step) const;

  /// Starts the first hop of backward(), which may wait for the hop later. Returns one Pending for
  /// each part, or none if there is no hop.
  std::vector<Pending> start_backward(const Parts& own) const;

  /// Calls `step` once with every part of every rank's tensors, with this rank's tensors last.
  /// Returns the sum of all ranks' contributions to the gradients of this rank's tensors. Gradients
  /// have the shapes of `own` and the accumulation dtype of the kernels (fp32 for bf16).
  /// `first_hop`: of start_backward(), on all ranks or on none.
  Parts backward(const Parts& own, const BackwardStep& step,
                 std::vector<Pending> first_hop = {}) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace longspan
