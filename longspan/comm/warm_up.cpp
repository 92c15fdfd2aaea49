#include "longspan/comm/warm_up.h"

#include <ATen/ops/zeros.h>

#include <vector>

#include "longspan/comm/backend.h"
#include "longspan/comm/submeshes.h"
#include "longspan/plan/rank_groups.h"

namespace longspan {
namespace {

constexpr int64_t kElements = 256;  // of a rank's part

using Collective = void (*)(const Group& group, const at::Tensor& parts);

void exchange(const Group& group, const at::Tensor& parts) { group.all_to_all(parts).wait(); }
void gather(const Group& group, const at::Tensor& parts) { group.all_gather(parts[0]).wait(); }
void scatter(const Group& group, const at::Tensor& parts) { group.reduce_scatter(parts).wait(); }
void pass_on(const Group& group, const at::Tensor& parts) { group.shift({parts[0]}).wait(); }
void sum(const Group& group, const at::Tensor& parts) { group.sum_(parts); }

std::vector<Collective> collectives_of(const RankGroup& group) {
  using enum GroupKind;
  // A method chooses among them.
  if (group.shares_row) return {exchange, gather, scatter, pass_on, sum};
  switch (group.kind) {
    case kExperts:
      return {exchange, sum};
    case kShard:
    case kExpertShard:
      return {gather, scatter, sum};
    default:
      return {gather, sum};
  }
}

}  // namespace

void warm_up(const Mesh& mesh, at::Device device) {
  for (const RankGroup& kind : groups_of_rank({}, 0)) {
    const Group& group = mesh.*member_of(kind.kind);
    if (group.size() == 1) continue;
    const at::Tensor parts =
        at::zeros({group.size(), kElements}, at::dtype(at::kFloat).device(device));
    for (const Collective collective : collectives_of(kind)) collective(group, parts);
  }
  if (mesh.parts) mesh.parts->each([&](const Mesh& part) { warm_up(part, device); });
}

}  // namespace longspan
