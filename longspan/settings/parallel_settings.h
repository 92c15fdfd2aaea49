// Sequence parallelism, expert parallelism and launching. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

inline constexpr int kOwnDegrees = 0;

struct ParallelSettings {
  int64_t ddp_timeout = 1800;
  int expert_parallel_size = 1;
  std::optional<int> fast_domain_size;  // default: the processes of a machine
  int sequence_parallel_size = 1;  // kOwnDegrees ("auto"): each row has its own number of ranks
  std::optional<int64_t> tokens_per_process;  // of a row with its own degree
  bool balance_batches = false;  // rows are dealt so that groups of ranks have equal work
  std::optional<std::string> sequence_parallel_mode;  // not set or "auto": chosen by the program
  std::optional<int> sequence_parallel_ulysses_degree, sequence_parallel_ring_degree;
  std::optional<int> sequence_parallel_window_size, sequence_parallel_head_waves;
  std::optional<int> nproc_per_node;
  std::string network_rates;  // a file of `longspan bench network`
  bool check_network = true;  // at the start of a run on several machines
};

inline bool has_own_degrees(const ParallelSettings& settings) {
  return settings.sequence_parallel_size == kOwnDegrees;
}
/// Whether rows are dealt to ranks by their work.
inline bool deals_rows(const ParallelSettings& settings) {
  return settings.balance_batches || has_own_degrees(settings);
}

}  // namespace longspan
