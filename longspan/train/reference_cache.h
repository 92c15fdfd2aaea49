// Reference log-probabilities that are computed once, before training.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/report/events.h"
#include "longspan/stages/reference.h"
#include "longspan/train/reference_key.h"

namespace longspan {

/// Inputs of the computation.
struct ReferenceJob {
  ReferenceSettings settings;
  const std::string& output_dir;
  const Mesh& mesh;
  SequenceParallel& attention;
  at::Device device;
  const ExampleSet& examples;   // of training and evaluation, numbered consecutively
  std::function<bool()> stops;  // true if this process is told to stop
  bool idle_rows = false;       // as in ObjectiveContext
};

/// Returns a line of the file: one example's log-probabilities and their checksum.
std::string reference_line(const std::string& key, size_t example,
                           const std::vector<double>& logps);

/// Returns the reference's log-probabilities of all documents of all examples. Appends the values,
/// one line per example, to output_dir/reference_logps_<key>.jsonl, where the key is reference_key.
/// Reuses intact lines of this file; computes other lines again, with a warning. Data-parallel
/// groups divide the examples. Makes the reference only if values are missing, and frees the
/// reference before returning. nullopt: interrupted. Collective over the world.
std::optional<ReferenceTable> precompute_reference(
    const ReferenceJob& job, const std::function<std::unique_ptr<Reference>()>& make_reference,
    const Events& events);

}  // namespace longspan
