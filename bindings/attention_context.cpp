#include "bindings/attention_context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <optional>

#include "bindings/equal_calls.h"
#include "bindings/registration.h"
#include "cli/process/launcher_environment.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/comm/link.h"
#include "longspan/comm/process_group.h"

namespace longspan {
namespace {

struct ContextKey {
  std::string process_group, purpose;
  int64_t timeout_seconds;
  auto operator<=>(const ContextKey&) const = default;
};

struct Contexts {
  std::mutex mutex;
  std::map<ContextKey, std::unique_ptr<AttentionContext>> made;
  /// The timeouts of the contexts that were made, in order, by process group and purpose. A context
  /// that is made again has new keys in the store. Ranks with another timeout meet under the same
  /// keys.
  std::map<std::pair<std::string, std::string>, std::vector<int64_t>> timeouts;
};

Contexts& contexts() {
  static auto* contexts = new Contexts;  // outlives all threads; connections end with the process
  return *contexts;
}

struct Degree {
  const MethodKey* key;
  int ParallelPlan::* of_plan;
};
const std::array<Degree, 3> kDegrees{{{&kUlyssesDegree, &ParallelPlan::ulysses_size},
                                      {&kRingDegree, &ParallelPlan::ring_size},
                                      {&kWindowSize, &ParallelPlan::window_size}}};

int size_of(const std::string& process_group) {
  return process_group.empty() ? 1 : place_in(process_group).size;
}

std::string purpose_of(const SharedRows& rows, const AttentionSpec& heads, bool cuda) {
  return fmt::format("{}.{}/{}.{}/{}.{}/{}", rows.method, fmt::join(rows.degrees, "."),
                     heads.num_heads, heads.num_kv_heads, heads.key_dim, heads.value_dim,
                     cuda ? "cuda" : "cpu");
}

const LinkTraits& link_of(bool cuda) {
  const auto with_python = [](Link link) {
    LinkTraits traits = traits_of(link);
    traits.on_error = raise_in_backward;
    return traits;
  };
  if (cuda) {
    static const LinkTraits nccl = with_python(Link::kNccl);
    return nccl;
  }
  static const LinkTraits gloo = with_python(Link::kGloo);
  return gloo;
}

/// The rows and heads of group_of(). The method takes any heads.
SharedRows rows_of_group(const std::string& process_group) {
  return {process_group, "allgather", {}};
}
AttentionSpec any_heads() { return plain_attention(1, 1, 1); }

}  // namespace

std::array<int64_t, 3> degrees_of(const ParallelPlan& plan) {
  std::array<int64_t, 3> degrees{};
  for (size_t i = 0; i < degrees.size(); ++i) {
    if (takes(*plan.method, *kDegrees[i].key)) degrees[i] = plan.*(kDegrees[i].of_plan);
  }
  return degrees;
}

ParallelPlan plan_of(const SharedRows& rows, const AttentionLayers& layers,
                     const PlannedRows& planned) {
  return plan_for(size_of(rows.process_group), rows, layers, planned, {});
}

ParallelPlan choose_plan(const SharedRows& rows, const AttentionLayers& layers,
                         const PlannedRows& planned, int64_t timeout_seconds) {
  if (planned.cuda && !rows.process_group.empty()) require_nccl(rows.process_group);
  if (rows.method != "auto") return plan_of(rows, layers, planned);
  return plan_for(size_of(rows.process_group), rows, layers, planned,
                  network_of(rows.process_group, planned.cuda, timeout_seconds));
}

ParallelPlan plan_for(int size, const SharedRows& rows, const AttentionLayers& layers,
                      const PlannedRows& planned, const GroupNetwork& network) {
  PlanRequest request;
  request.ranks_per_machine = network.ranks_per_machine;
  request.network = network.rates;
  request.world_size = request.sequence_size = size;
  const bool is_chosen = rows.method != "auto" && rows.method != kLocal.name;
  request.method = is_chosen ? method_named(rows.method) : nullptr;
  for (size_t i = 0; i < kDegrees.size(); ++i) {
    if (rows.degrees[i] > 0) request.*(kDegrees[i].key->given) = static_cast<int>(rows.degrees[i]);
  }
  request.num_heads = layers.at(0).first.num_heads;
  request.num_kv_heads = layers.at(0).first.num_kv_heads;
  request.head_dim = layers.at(0).first.key_dim;
  request.value_dim = layers.at(0).first.value_dim;
  request.layers = layers;
  request.row = Packing::single(planned.num_tokens);
  request.element_bytes = planned.element_bytes;
  request.cuda = planned.cuda;
  request.recurrence = planned.recurrence;
  return make_parallel_plan(request);
}

AttentionContext& context_of(const SharedRows& rows, const AttentionSpec& heads, bool cuda,
                             int64_t timeout_seconds) {
  const ContextKey key{rows.process_group, purpose_of(rows, heads, cuda), timeout_seconds};
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<AttentionContext>& context = all.made[key];
  if (context) return *context;
  if (cuda && !rows.process_group.empty()) require_nccl(rows.process_group);
  auto made = std::make_unique<AttentionContext>();
  made->plan = plan_of(rows, {{heads, 1}}, {.num_tokens = 8192, .element_bytes = 4, .cuda = cuda});
  if (!rows.process_group.empty()) {
    std::vector<int64_t>& timeouts = all.timeouts[{key.process_group, key.purpose}];
    timeouts.push_back(timeout_seconds);
    made->mesh = mesh_of(rows.process_group, fmt::format("{}/{}", key.purpose, timeouts.size()),
                         made->plan, link_of(cuda), timeout_seconds, rendezvous_from_environment());
  }
  made->attention =
      make_attention(made->plan, made->mesh, cuda ? cuda_block_kernel() : cpu_block_kernel());
  context = std::move(made);
  return *context;
}

const Group& group_of(const std::string& process_group, bool cuda, int64_t timeout_seconds) {
  static const Group alone;
  if (process_group.empty()) return alone;
  return context_of(rows_of_group(process_group), any_heads(), cuda, timeout_seconds).mesh.sequence;
}

int64_t first_timeout(const std::string& process_group, bool cuda, int64_t timeout_seconds) {
  const std::string purpose = purpose_of(rows_of_group(process_group), any_heads(), cuda);
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  const auto timeouts = all.timeouts.find({process_group, purpose});
  return timeouts == all.timeouts.end() ? timeout_seconds : timeouts->second.front();
}

void forget_contexts(const std::string& process_group) {
  forget_network(process_group);
  forget_calls(process_group);
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  for (auto context = all.made.begin(); context != all.made.end();) {
    if (context->first.process_group != process_group) {
      ++context;
      continue;
    }
    shut_down(context->second->mesh);
    context = all.made.erase(context);
  }
}

}  // namespace longspan
