#include "longspan/sequence_parallel/row_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/comm/submeshes.h"
#include "longspan/text/counted.h"

namespace longspan {

void require_equal_plans(const Group& world, const RanksOfRun& ranks,
                         const std::map<int, ParallelPlan>& plans) {
  std::string own = counted(ranks.ranks_per_machine, "process") + " on its machine";
  for (const auto& [degree, of_rows] : plans) {
    own += fmt::format("; {}: {}", degree, describe_method(of_rows));
  }
  const std::vector<std::string> all = world.gather_text(own);
  const auto other = std::ranges::find_if(all, [&](const auto& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw UserError(fmt::format(
      "The ranks would deal rows in different ways. Rank 0 has {}. Rank {} has {}. Start as many "
      "processes on each machine, or leave out balance_batches and sequence_parallel_size: auto.",
      all[0], other - all.begin(), *other));
}

RowGroups::RowGroups(std::map<int, ParallelPlan> plans, const Mesh& mesh, const BlockKernel& kernel)
    : plans_(std::move(plans)), mesh_(mesh), kernel_(kernel) {}

void RowGroups::connect(const RanksOfRun& ranks) {
  if (plans_.empty()) return;
  require_equal_plans(mesh_.world, ranks, plans_);
  // All ranks make their groups in one order.
  for (const auto& [degree, plan] : plans_) {
    for (const RankRange& range : ranks.ranges(degree)) {
      if (!range.holds(mesh_.world.rank())) continue;
      attention_[range] = degree == 1 ? make_local(kernel_)
                                      : make_attention(plan, mesh_.parts->of(range, plan), kernel_);
    }
  }
}

}  // namespace longspan
