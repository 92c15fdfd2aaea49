// Keys of the configuration that some methods of sequence parallelism take. A method's description
// lists its keys (plan/method.h): checks, help, the benchmark and the words for a plan read the
// list. No torch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

struct Method;
struct ParallelPlan;
struct PlanRequest;

struct MethodKey {
  std::string_view name;
  std::optional<int> PlanRequest::* given;  // what a request says of it
  int idle;       // values up to this one ask for nothing, so that every method takes them
  bool for_auto;  // whether `auto` chooses among the methods that take it
  /// What a plan says of it behind the method's name: " x ring 2"; empty: nothing.
  std::string (&words)(const ParallelPlan& plan);
};

/// Ranks that exchange heads, and ranks of a ring; their product is the ranks of a row.
extern const MethodKey kUlyssesDegree, kRingDegree;
/// Ranks of an inner ring.
extern const MethodKey kWindowSize;
/// Parts in which heads are exchanged and attended.
extern const MethodKey kHeadWaves;

/// All of them.
std::span<const MethodKey* const> all_method_keys();

bool takes(const Method& method, const MethodKey& key);

/// In the register's order.
std::vector<const Method*> methods_that_take(const MethodKey& key);

/// The first key by which the request asks for what the method does not have; null: there is none.
const MethodKey* foreign_key(const PlanRequest& request, const Method& method);

}  // namespace longspan
