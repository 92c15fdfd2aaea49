// Keys of the configuration that some methods of sequence parallelism take. Each method lists its
// keys (registers/method.h); checks, help, the benchmark and descriptions of plans read the list.
// No torch.
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
  std::optional<int> PlanRequest::* given;  // its value in a request
  int idle;       // values up to this one have no effect, so every method accepts them
  bool for_auto;  // `auto` chooses among the methods that take the key
  /// Returns the part of a plan's description after the method's name, e.g. " x ring 2"; may be
  /// empty.
  std::string (&words)(const ParallelPlan& plan);
};

/// Ranks that exchange heads, and ranks of a ring. Their product is the number of ranks per row.
extern const MethodKey kUlyssesDegree, kRingDegree;
/// Ranks of an inner ring.
extern const MethodKey kWindowSize;
/// Parts in which heads are exchanged and attended.
extern const MethodKey kHeadWaves;

/// The register: all keys (plan/method_keys.cpp).
std::span<const MethodKey* const> all_method_keys();

bool takes(const Method& method, const MethodKey& key);

/// In the register's order.
std::vector<const Method*> methods_that_take(const MethodKey& key);

}  // namespace longspan
