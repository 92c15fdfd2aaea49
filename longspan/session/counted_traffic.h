// Counters of the bytes that the ranks of a run send, and a reference model that reports its passes
// to the counters.
#pragma once

#include <memory>

#include "longspan/expert_parallel/expert_parallel.h"
#include "longspan/report/row_traffic.h"
#include "longspan/session/run_plan.h"
#include "longspan/stages/reference.h"

namespace longspan {

struct Config;

/// The objects of a session that send.
struct TrafficParts {
  const RunPlan& plan;
  const Mesh& mesh;
  const ExpertParallel* experts;  // null: nothing is sent to experts
  at::Device device;
  bool output_is_known;  // an argument of attention_volume()
};

/// Returns the counters for the policy and its reference. Mesh and experts must outlive the result.
RowTraffic row_traffic_of(const Config& config, const TrafficParts& parts);

/// Returns a reference that gives the results of `own`, and tells `traffic` of each pass. `traffic`
/// must outlive the result.
std::unique_ptr<Reference> counted_reference(std::unique_ptr<Reference> own, RowTraffic& traffic);

}  // namespace longspan
