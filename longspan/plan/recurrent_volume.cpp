#include "longspan/plan/recurrent_volume.h"

#include <algorithm>
#include <stdexcept>

#include "longspan/registers/method.h"
#include "longspan/rows/token_order.h"

namespace longspan {
namespace {

int64_t bytes_by_heads(const ParallelPlan& plan, const Packing& padded, const RecurrenceSpec& net,
                       int64_t element_bytes) {
  const int64_t P = plan.sequence_size, foreign = padded.num_tokens() - padded.num_tokens() / P;
  int64_t numbers = 0;  // elements per token
  for (int64_t rank = 0; rank < P; ++rank) {
    const HeadsOfRank values = heads_of_rank_in(rank, P, net.num_value_heads),
                      keys = heads_along(values, net.num_value_heads, net.num_key_heads);
    numbers += (values.end - values.begin) * (2 * net.value_dim + 2) +
               (keys.end - keys.begin) * 2 * net.key_dim;
  }
  return numbers * foreign * element_bytes;
}

/// Returns the number of a row's tokens that are not on the rank of their slice.
int64_t tokens_elsewhere(const ParallelPlan& plan, const Packing& padded) {
  const int64_t size = padded.num_tokens() / plan.sequence_size;
  int64_t moved = 0;
  for (int rank = 0; rank < plan.sequence_size; ++rank) {
    for (const int64_t place : plan.method->token_order(plan, padded, /*multiple=*/1, rank).index) {
      if (place / size != rank) ++moved;
    }
  }
  return moved;
}

/// Returns the elements of a token in inputs (including gates) and outputs.
int64_t numbers_of_token(const RecurrenceSpec& net) {
  return net.num_channels() + 2 * net.num_value_heads + net.num_values();
}

/// Bytes of a slice's map of states.
int64_t map_bytes(const RecurrenceSpec& net, int64_t element_bytes) {
  return net.num_value_heads * net.key_dim * (net.key_dim + net.value_dim) *
         std::max<int64_t>(4, element_bytes);
}

int64_t bytes_by_states(const ParallelPlan& plan, const Packing& padded, const RecurrenceSpec& net,
                        int64_t element_bytes) {
  const int64_t P = plan.sequence_size, size = padded.num_tokens() / P;
  const int64_t window = std::min(net.conv_width - 1, size) * net.num_channels();
  return tokens_elsewhere(plan, padded) * numbers_of_token(net) * element_bytes +
         P * (P - 1) * (window * element_bytes + map_bytes(net, element_bytes));
}

}  // namespace

bool goes_by_heads(RecurrentWay way, const Packing& row) {
  switch (way) {
    case RecurrentWay::kHeads:
      return true;
    case RecurrentWay::kStates:
      return row.has_forks();
  }
  throw std::logic_error("a recurrence that shares rows in no way");
}

HeadsOfRank heads_of_rank_in(int64_t rank, int64_t num_ranks, int64_t num_heads) {
  return {rank * num_heads / num_ranks, (rank + 1) * num_heads / num_ranks};
}

HeadsOfRank heads_along(const HeadsOfRank& heads, int64_t num_heads, int64_t num_others) {
  const int64_t each = num_heads / num_others, begin = heads.begin / each;
  if (heads.begin == heads.end) return {begin, begin};
  return {begin, (heads.end + each - 1) / each};
}

AttentionVolume recurrent_volume(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes,
                                 bool checkpointing) {
  if (plan.sequence_size == 1) return {};
  const int64_t once = goes_by_heads(plan.recurrent_way, padded)
                           ? bytes_by_heads(plan, padded, net, element_bytes)
                           : bytes_by_states(plan, padded, net, element_bytes);
  return {once, checkpointing ? 2 * once : once};
}

int64_t entering_tokens(const ParallelPlan& plan, const Packing& padded) {
  if (plan.sequence_size == 1 || goes_by_heads(plan.recurrent_way, padded)) return 0;
  const int64_t size = padded.num_tokens() / plan.sequence_size;
  int64_t most = 0;
  for (int64_t d = 0; d < padded.num_documents(); ++d) {
    // The first slice that the document enters has the most tokens of it.
    const int64_t slice = padded.begin(d) / size + 1;
    most = std::max(most, std::min(padded.end(d), (slice + 1) * size) - slice * size);
  }
  return most;
}

AttentionMemory recurrent_memory(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes) {
  if (plan.sequence_size == 1 || padded.num_tokens() == 0) return {};
  const int64_t t = padded.num_tokens() / plan.sequence_size;
  const bool by_heads = goes_by_heads(plan.recurrent_way, padded);
  const bool moves = by_heads || tokens_elsewhere(plan, padded) > 0;
  const int64_t twice = moves ? t * numbers_of_token(net) * element_bytes : 0;
  const int64_t maps = by_heads ? 0 : plan.sequence_size * map_bytes(net, element_bytes);
  // Values and outputs with the columns of the map; in the rule's backward values, and gradients of
  // outputs and of values in place of those without.
  const int64_t entering = entering_tokens(plan, padded) * net.num_value_heads,
                wide =
                    entering * (net.key_dim + net.value_dim) * std::max<int64_t>(4, element_bytes),
                plain = entering * net.value_dim * element_bytes;
  AttentionMemory memory;
  memory.forward = static_cast<double>(twice + maps + 2 * wide);
  memory.backward = static_cast<double>(twice + maps + 3 * wide - 2 * plain);
  memory.output = static_cast<double>(t * net.num_values() * element_bytes);
  // While the rule runs, inputs and outputs exist only as the rank's heads or slice. Heads that
  // ranks do not share out evenly take more than the rank's own tokens.
  const bool are_even = !by_heads || net.num_key_heads % plan.sequence_size == 0;
  memory.outside_rule = static_cast<double>(are_even ? twice : 0);
  return memory;
}

double recurrent_seconds(const ParallelPlan& plan, const Packing& row, const RecurrenceSpec& net,
                         int64_t element_bytes, bool checkpointing, const ClusterModel& cluster) {
  const Packing padded = padded_row(plan, row);
  const int64_t P = plan.sequence_size, N = net.num_value_heads;
  const bool by_heads = goes_by_heads(plan.recurrent_way, padded);
  const FlopCost rule = rule_flops_of(net, net.value_dim + (by_heads ? 0 : net.key_dim));
  const auto T = static_cast<double>(padded.num_tokens());
  const double head_tokens = by_heads ? T * static_cast<double>((N + P - 1) / P)
                                      : T / static_cast<double>(P) * static_cast<double>(N);
  const double work = head_tokens * static_cast<double>(rule.forward) * (checkpointing ? 2 : 1) /
                          cluster.forward_flops +
                      head_tokens * static_cast<double>(rule.backward) / cluster.backward_flops;
  const AttentionVolume volume = recurrent_volume(plan, padded, net, element_bytes, checkpointing);
  const bool inside = plan.sequence_size <= cluster.ranks_per_machine;
  const double rate = inside ? cluster.inside_bytes : cluster.between_bytes,
               delay = inside ? cluster.inside_delay : cluster.between_delay;
  constexpr double kCollectives = 6;  // of a forward and its backward, each with all other ranks
  return work +
         static_cast<double>(volume.forward + volume.backward) / static_cast<double>(P) / rate +
         kCollectives * static_cast<double>(P - 1) * delay;
}

}  // namespace longspan
