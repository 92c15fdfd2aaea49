// Reference log-probabilities computed once, ahead of training.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/report/console.h"
#include "longspan/stages/reference.h"

namespace longspan {

struct Config;

/// What the reference is asked for: the examples of a run, and how.
struct ReferenceJob {
  const Config& config;
  const Mesh& mesh;
  const SequenceParallel& attention;
  at::Device device;
  const ExampleSet& examples;   // of training and evaluation, whose numbers are their places
  std::function<bool()> stops;  // is this process told to stop?
  bool idle_rows = false;       // as in ObjectiveContext
};

/// A line of the file: one example's log-probabilities, with a checksum of them.
std::string reference_line(const std::string& key, size_t example,
                           const std::vector<double>& logps);

/// Computes the reference's log-probabilities of all documents of all examples. Writes them to
/// output_dir/reference_logps_<key>.jsonl as it goes, a line an example; the key is reference_key.
/// Takes what the file holds already, but for lines that are not as they were written: it computes
/// these again, and a warning says so. Data-parallel groups share the examples out. Makes the
/// reference only where something is missing, and frees it before it returns. nullopt: interrupted.
/// Collective over the world.
std::optional<ReferenceTable> precompute_reference(
    const ReferenceJob& job, const std::function<std::unique_ptr<Reference>()>& make_reference,
    Console& console);

}  // namespace longspan
