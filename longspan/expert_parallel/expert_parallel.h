// Expert parallelism (GShard, arXiv 2006.16668): each rank holds some of the experts of each layer.
// A row (the activations of a token for one of its experts) is sent to the rank of the expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/layers/expert_exchange.h"

namespace longspan {

/// Rank p of P ranks holds experts [p E / P, (p + 1) E / P) of each layer of E experts. No row is
/// dropped or padded. Bytes: expert_volume() in plan/expert_volume.h.
class ExpertParallel : public ExpertExchange {
 public:
  /// `group`: the ranks that divide the experts; more than one rank.
  explicit ExpertParallel(Group group) : group_(std::move(group)) {}

  ExpertRange here(int64_t num_experts) const override;
  /// Collective over the group, like all functions of the returned routes. This object must outlive
  /// the routes.
  std::unique_ptr<ExpertRoutes> open(const at::Tensor& counts_E) override;
  std::unique_ptr<ExpertRoutes> open_again(std::vector<int64_t> numbers) override;

  /// Counts on this rank: routes opened (without open_again()), and rows sent to experts of other
  /// ranks.
  struct Use {
    int64_t num_opened = 0, num_rows = 0;
  };
  const Use& used() const { return used_; }
  const Group& group() const { return group_; }

 private:
  Group group_;
  Use used_;
};

}  // namespace longspan
