// One interface for every way to spread the tokens of a row over ranks: a token order plus an
// attention.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "longspan/attention/attention.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"
#include "longspan/data/batch.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

class SequenceParallel : public Attention {
 public:
  /// This process's rank among those that share a row.
  virtual int rank() const = 0;
  /// Which tokens of a row `rank` holds, and the padding that the method needs: as little as
  /// possible, and so that each rank holds the same number of tokens, a multiple of `multiple`
  /// (what an outer method asks of an inner one). A padded row needs no more padding.
  virtual TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const = 0;

  /// What this process holds.
  TokenOrder token_order(const Packing& packing, int64_t multiple = 1) const {
    return token_order_of(rank(), packing, multiple);
  }

  /// Who shares a row, for layers that go over whole rows, and how these share it. `group`: the
  /// ranks that token_order_of() counts. make_attention() calls it once.
  void set_sharers(Group group, RecurrentWay way) { sharers_ = Sharers{std::move(group), way}; }
  /// Throws std::logic_error before set_sharers().
  std::shared_ptr<const WholeRow> whole_row(const Packing& packing) const override;

 private:
  struct Sharers {
    Group group;
    RecurrentWay way;
  };
  std::optional<Sharers> sharers_;
};

/// Degree 1: the plain kernel.
std::unique_ptr<SequenceParallel> make_local(const BlockKernel& kernel);

/// DeepSpeed-Ulysses (arXiv 2309.14509) of the plan's degree and head waves, with `inner` as the
/// attention of each share of the heads; `inner` alone where the degree is 1.
std::unique_ptr<SequenceParallel> ulysses_around(std::unique_ptr<SequenceParallel> inner,
                                                 const ParallelPlan& plan, const Mesh& mesh);

/// By the plan's method, whose description is in a file of its own in this folder.
std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel);

}  // namespace longspan
