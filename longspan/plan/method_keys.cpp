// The register of the keys of methods.
#include "longspan/registers/method_key.h"

#include <fmt/format.h>

#include "longspan/plan/parallel_plan.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

std::string words_of_ulysses_degree(const ParallelPlan& plan) {
  return fmt::format(", ulysses {}", plan.ulysses_size);
}
std::string words_of_ring_degree(const ParallelPlan& plan) {
  return fmt::format(" x ring {}", plan.ring_size);
}
std::string words_of_windows(const ParallelPlan& plan) {
  return fmt::format(" in windows of {}", plan.window_size);
}
std::string words_of_waves(const ParallelPlan& plan) {
  if (plan.head_waves == plan.method->head_waves.own) return "";
  return ", heads in " + counted(plan.head_waves, "wave");
}

}  // namespace

const MethodKey kUlyssesDegree{.name = "sequence_parallel_ulysses_degree",
                               .given = &PlanRequest::ulysses_degree,
                               .idle = 0,
                               .for_auto = true,
                               .words = words_of_ulysses_degree};
const MethodKey kRingDegree{.name = "sequence_parallel_ring_degree",
                            .given = &PlanRequest::ring_degree,
                            .idle = 0,
                            .for_auto = true,
                            .words = words_of_ring_degree};
const MethodKey kWindowSize{.name = "sequence_parallel_window_size",
                            .given = &PlanRequest::window_size,
                            .idle = 0,
                            .for_auto = false,
                            .words = words_of_windows};
const MethodKey kHeadWaves{.name = "sequence_parallel_head_waves",
                           .given = &PlanRequest::head_waves,
                           .idle = 1,
                           .for_auto = true,
                           .words = words_of_waves};

std::span<const MethodKey* const> all_method_keys() {
  static constexpr const MethodKey* kKeys[] = {&kUlyssesDegree, &kRingDegree, &kWindowSize,
                                               &kHeadWaves};
  return kKeys;
}

}  // namespace longspan
