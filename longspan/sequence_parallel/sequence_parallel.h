// The interface of every method that distributes the tokens of a row (one sequence, or several
// packed sequences) over ranks: a token order plus an attention.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "longspan/attention/attention.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/batch.h"

namespace longspan {

class SequenceParallel : public Attention {
 public:
  /// Returns this process's rank within the group that shares a row.
  virtual int rank() const = 0;
  /// Returns the tokens of a row on `rank`, and the row with the method's padding. All ranks hold
  /// the same number of tokens, a multiple of `multiple` (a requirement of an outer method on its
  /// inner method). The padding is minimal; a padded row gets no further padding.
  virtual TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const = 0;

  /// Returns token_order_of() for this process.
  TokenOrder token_order(const Packing& packing, int64_t multiple = 1) const {
    return token_order_of(rank(), packing, multiple);
  }

  /// Sets the ranks that share a row (`group`: the ranks of token_order_of()), and the way in which
  /// these ranks share recurrent layers. make_attention() calls set_sharers() once.
  void set_sharers(Group group, RecurrentWay way) { sharers_ = Sharers{std::move(group), way}; }
  /// Returns the ranks that share a row.
  Group sharers() const { return sharers_ ? sharers_->group : Group(); }
  /// Throws std::logic_error before set_sharers().
  std::shared_ptr<const WholeRow> whole_row(const Packing& packing) const override;

 private:
  struct Sharers {
    Group group;
    RecurrentWay way;
  };
  std::optional<Sharers> sharers_;
};

/// Makes the attention of one rank per row: the plain kernel.
std::unique_ptr<SequenceParallel> make_local(const BlockKernel& kernel);

/// Makes DeepSpeed-Ulysses (arXiv 2309.14509) with the plan's degree and head waves. `inner`: the
/// attention of each share of the heads. Returns `inner` if the degree is 1.
std::unique_ptr<SequenceParallel> ulysses_around(std::unique_ptr<SequenceParallel> inner,
                                                 const ParallelPlan& plan, const Mesh& mesh);

/// Makes the attention of the plan's method. Each method is described in its own file in this
/// folder.
std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel);

}  // namespace longspan
