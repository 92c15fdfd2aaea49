// Methods of sequence parallelism for Python's attention: one object for each process group, method
// and shape of heads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/group_network.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/sequence_parallel/whole_sequence.h"
#include "longspan/spec/attention_spec.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {

/// The ranks that share rows, and their method.
struct SharedRows {
  std::string process_group;  // its name; empty: this process alone
  std::string method;         // value of sequence_parallel_mode; "local": one rank
  /// Ranks of a Ulysses group, of a ring, of a window (Method::keys); 0: the cost model chooses, or
  /// the method takes no such key.
  std::array<int64_t, 3> degrees;
};

/// Kinds of attention, each with its number of layers.
using AttentionLayers = std::vector<std::pair<AttentionSpec, int64_t>>;

/// The rows and the device for which a plan is made.
struct PlannedRows {
  int64_t num_tokens;     // of a row
  int64_t element_bytes;  // of queries and keys
  bool cuda;
  std::optional<RecurrenceSpec> recurrence = {};  // of layers with a recurrence, if any
};

/// Returns the degrees of a plan; 0 for keys that the method does not take.
std::array<int64_t, 3> degrees_of(const ParallelPlan& plan);

/// Returns the plan of a method. Throws UserError.
ParallelPlan plan_of(const SharedRows& rows, const AttentionLayers& layers,
                     const PlannedRows& planned);

/// As plan_of(), or the plan of the method that is estimated to be the fastest on the group's
/// network if `rows.method` is "auto". Collective. Throws UserError, CommunicationError.
ParallelPlan choose_plan(const SharedRows& rows, const AttentionLayers& layers,
                         const PlannedRows& planned, int64_t timeout_seconds);

/// Returns the plan for a process group of `size` ranks that need not exist in this process. "auto"
/// is the fastest method on `network`.
ParallelPlan plan_for(int size, const SharedRows& rows, const AttentionLayers& layers,
                      const PlannedRows& planned, const GroupNetwork& network);

/// A method on a process group.
struct AttentionContext {
  ParallelPlan plan;
  Mesh mesh;
  std::unique_ptr<SequenceParallel> attention;
  std::optional<Packing> packing;                 // of whole_sequence
  std::shared_ptr<WholeSequence> whole_sequence;  // of the last row with recurrent layers
};

/// Returns the context of these heads. The first call for a process group, method, shape of heads
/// and timeout makes the context, and is collective. Throws UserError, CommunicationError.
AttentionContext& context_of(const SharedRows& rows, const AttentionSpec& heads, bool cuda,
                             int64_t timeout_seconds);

/// Returns the ranks of a process group, for collectives other than attention. An empty name: this
/// rank alone. The first call for a process group is collective. Throws UserError,
/// CommunicationError.
const Group& group_of(const std::string& process_group, bool cuda, int64_t timeout_seconds);

/// Returns the timeout of the first call of group_of() for a process group; before it,
/// `timeout_seconds`. Ranks that pass different timeouts meet with the first one.
int64_t first_timeout(const std::string& process_group, bool cuda, int64_t timeout_seconds);

/// Closes the connections of a process group's contexts. Collective.
void forget_contexts(const std::string& process_group);

}  // namespace longspan
